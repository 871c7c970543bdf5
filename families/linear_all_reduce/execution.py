"""A candidate on the ranks of this process: the one that it is in a job, or all of them, which share a GPU.

Ranks that share a process have a stream and a layer group each. While one of them waits on the device nothing may
wait for the device, neither loading code nor allocating: so everything is done once before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ...evidence.gate import poison
from ...runtime.communicator import objection
from ...runtime.communicator.channel import Channel
from ...runtime.communicator.owner import ChannelOwner
from ...runtime.device import Device, serves
from ...runtime.dispatch import Dispatch
from ...runtime.errors import LoadError
from ...runtime.request import Signature
from ...runtime.selection import Choice
from ...table import Buffer, Candidate, Workload
from .decisions import FAMILY
from .overlap.gemm import leaving_free
from .overlap.group import LayerGroup, loaded
from .overlap.rows import SliceSchedule

RESERVE_BYTES = 2**30
"""Of torch's memory for each stream, which its allocator then needn't ask the device for."""


class Execution:
    """See `evidence.executable.Executable`; tensors of several ranks carry the rank as their first dimension."""

    def __init__(self, workload: Workload, at: int, groups: Sequence[LayerGroup]) -> None:
        """Take the layer groups of the ranks, for calls of `at` rows."""
        self._groups = groups
        self.signature = _signature(workload, at, len(groups))
        self.buffers = (*self.signature.inputs, *self.signature.outputs)
        self._streams: list[torch.cuda.Stream] = []
        if len(groups) > 1:
            self._streams = [torch.cuda.Stream(groups[0].comm.device) for _ in groups]  # type: ignore[no-untyped-call]
            self._warm(at)

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compute `result`; memory that the allocator hands out for it is poisoned before."""
        self._compute([tensors[buffer.name] for buffer in self.signature.inputs], tensors["result"])

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None
    ) -> Sequence[torch.Tensor]:
        """[result], fresh unless it is given."""
        if len(self._groups) == 1 and outputs is None:
            return [self._groups[0](*_tensors(inputs))]
        (result,) = outputs or [inputs[0].new_empty(self.signature.outputs[0].shape)]
        self._compute(inputs, result)
        return [result]

    def _compute(self, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        if len(self._groups) == 1:
            _poison(result)
            result.copy_(self._groups[0](*_tensors(inputs)))
            return
        caller = torch.cuda.current_stream(result.device)
        for rank, (group, stream) in enumerate(zip(self._groups, self._streams, strict=True)):
            stream.wait_stream(caller)
            with torch.cuda.stream(stream):
                _poison(result[rank])
                result[rank].copy_(group(*_tensors([tensor[rank] for tensor in inputs])))
        for stream in self._streams:
            caller.wait_stream(stream)

    def _warm(self, at: int) -> None:
        """Load kernels and GEMMs of every slice, and let the allocator reserve memory, on every stream."""
        for group, stream in zip(self._groups, self._streams, strict=True):
            with torch.cuda.stream(stream):
                reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=stream.device)
                del reserve
                given = [
                    torch.zeros(buffer.shape[1:], dtype=getattr(torch, buffer.dtype), device=stream.device)
                    for buffer in self.signature.inputs
                ]
                x, weight, scale = _tensors(given)
                decision = group.decide(x, weight)
                out = x.new_empty((at, weight.shape[0]))
                _poison(out)
                gemm = group.gemm(x, weight, scale, None, decision.kernels)
                for rows in decision.schedule.slices(at, out.shape[1] * out.element_size()):
                    with leaving_free(decision.schedule.free_sms):
                        gemm(rows.begin, rows.end, out[rows.begin : rows.end])
        torch.cuda.synchronize(self._groups[0].comm.device)


def execution_of(
    dispatch: Dispatch,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    at: int,
    here: Device,
    comm: ChannelOwner,
) -> Execution:
    """A candidate on the ranks that `comm` has in this process, for calls of `at` rows; decided as if it were forced.

    Raises:
        LoadError: its kernels don't load, the channel isn't there, or ranks that share a process would need a
            process group.
    """
    local = comm.local_ranks > 1
    if local and SliceSchedule.of(candidate.route, candidate.options).transport == "group":
        raise LoadError(
            f"route {candidate.route} reduces in a process group, and ranks that share a process have none; start it "
            f"with `torchrun --nproc-per-node {comm.world_size} -m kernwright ...`"
        )
    if arch != serves(candidate.builds, here.arch):
        raise LoadError(f"{arch} isn't the build of {candidate.name} that {here} takes; name no --arch")
    reason = objection(candidate.capabilities, workload.spec, comm)
    if reason is not None:
        raise LoadError(reason)
    op: Any = dispatch.operator(FAMILY)
    choice, root = Choice(workload, candidate, arch, candidate.builds[arch]), dispatch.table.root
    quantisation, nonfinite = str(workload.fields["quantisation"]), workload.fields["nonfinite"]
    groups = []
    for rank in range(comm.local_ranks):
        channel = comm.channel(workload.spec) if candidate.capabilities else None
        one: Any = comm
        if local:
            assert channel is not None
            channel = Channel(channel.plan, channel.memory[rank : rank + 1], channel.addresses, rank)
            one = SimpleNamespace(rank=rank, world_size=comm.world_size, device=comm.device)
        decision = loaded(root, choice, here, comm, channel)
        groups.append(
            LayerGroup(
                one,
                lambda _x, _weight, decision=decision: decision,  # type: ignore[misc]
                op.plain_all_reduce(comm),
                quantisation,
                nonfinite,  # type: ignore[arg-type]
            )
        )
    if local:
        _load_kernels(comm.load(root, choice.build, arch, here), candidate)
    return Execution(workload, at, groups)


def _load_kernels(module: Any, candidate: Candidate) -> None:
    """Let the driver load the kernels' code, which it puts off until they are queried."""
    from cupy_backends.cuda.api import driver

    for kernel in candidate.kernels.values():
        driver.occupancyMaxActiveBlocksPerMultiprocessor(module.address(kernel.symbol), kernel.block[0], 0)


def _poison(like: torch.Tensor) -> None:
    """Spoil the block that the allocator gives to the next tensor of this size on this stream."""
    poison(torch.empty_like(like))


def _tensors(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """x, weight and its scale; codes of a quantised weight travel as bytes."""
    x, weight, *scale = inputs
    return (x, weight.view(torch.float8_e4m3fn), scale[0]) if scale else (x, weight, None)


def _signature(workload: Workload, at: int, ranks: int) -> Signature:
    fields = workload.fields
    dtype, width, k = str(fields["dtype"]), int(str(fields["width"])), int(str(fields["k"]))
    each = (ranks,) if ranks > 1 else ()
    quantised = fields["quantisation"] != "none"
    weight = [Buffer("weight", (*each, width, k), "uint8" if quantised else dtype)]
    if quantised:
        weight.append(Buffer("weight_scale", (*each, width, 1), "float32"))
    x, result = Buffer("x", (*each, at, k), dtype), Buffer("result", (*each, at, width), dtype)
    return Signature((x, *weight), (result,))
