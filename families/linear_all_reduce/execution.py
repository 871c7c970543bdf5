"""A candidate on the ranks of this process: the one that it is in a job, or all of them, which share a GPU.

Ranks that share a process have a stream and a layer group each. While one of them waits on the device nothing may
wait for the device, neither loading code nor allocating: so everything is done once before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ...evidence.gate import poison
from ...runtime.communicator import objection
from ...runtime.communicator.channel import Channel
from ...runtime.communicator.owner import ChannelOwner
from ...runtime.device import Device, serves
from ...runtime.dispatch import Dispatch
from ...runtime.errors import LoadError
from ...runtime.launch import Module
from ...runtime.request import Signature
from ...table import Buffer, Build, Candidate, Workload
from .decisions import FAMILY
from .overlap.gemm import leaving_free
from .overlap.group import GroupDecision, LayerGroup
from .overlap.kernels import Kernels
from .overlap.rows import SliceSchedule

if TYPE_CHECKING:
    from .op import LinearAllReduce

RESERVE_BYTES = 2**30
"""Of torch's memory for each stream, which its allocator then needn't ask the device for."""


class LocalRank:
    """One of several ranks of this process, as a layer group sees a communicator."""

    local_ranks = 1
    group = None

    def __init__(self, owner: ChannelOwner, spec: str, rank: int) -> None:
        """Take the rank's part of the channel of `spec`."""
        self.rank, self.world_size = rank, owner.world_size
        self.device, self.timeout_ns = owner.device, owner.timeout_ns
        self.load: Callable[[Path, Build, str, Device], Module] = owner.load
        whole = owner.channel(spec)
        self._channel = Channel(whole.plan, whole.memory[rank : rank + 1], whole.addresses, rank)

    def channel(self, name: str) -> Channel:
        """The channel."""
        del name
        return self._channel


@dataclass(frozen=True)
class Part:
    """A rank of this process."""

    group: LayerGroup
    decision: GroupDecision


class Execution:
    """See `evidence.executable.Executable`; tensors of several ranks carry the rank as their first dimension."""

    def __init__(self, workload: Workload, at: int, parts: Sequence[Part]) -> None:
        """Take the ranks, for calls of `at` rows."""
        self._parts = parts
        self.signature = _signature(workload, at, len(parts))
        self.buffers = (*self.signature.inputs, *self.signature.outputs)
        self._streams: list[torch.cuda.Stream] = []
        if len(parts) > 1:
            self._streams = [torch.cuda.Stream(parts[0].group.comm.device) for _ in parts]  # type: ignore[no-untyped-call]
            self._warm(at)

    def prepare(self) -> None:
        """Eager calls keep spares for a stream that is first seen in a capture; nothing else is needed."""

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compute `result`; memory that the allocator hands out for it is poisoned before."""
        self._compute([tensors[buffer.name] for buffer in self.signature.inputs], tensors["result"])

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """[result], fresh."""
        if len(self._parts) == 1:
            return [self._of_rank(self._parts[0], inputs)]
        (shape,) = (buffer.shape for buffer in self.signature.outputs)
        result = inputs[0].new_empty(shape)
        self._compute(inputs, result)
        return [result]

    def _compute(self, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        if len(self._parts) == 1:
            self._poison(result)
            result.copy_(self._of_rank(self._parts[0], inputs))
            return
        caller = torch.cuda.current_stream(result.device)
        for rank, (part, stream) in enumerate(zip(self._parts, self._streams, strict=True)):
            stream.wait_stream(caller)
            with torch.cuda.stream(stream):
                self._poison(result[rank])
                result[rank].copy_(self._of_rank(part, [tensor[rank] for tensor in inputs]))
        for stream in self._streams:
            caller.wait_stream(stream)

    def _of_rank(self, part: Part, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        x, weight, scale = _tensors(inputs)
        return part.group(x, weight, scale)

    def _poison(self, like: torch.Tensor) -> None:
        """Spoil the block that the allocator gives to the next tensor of this size on this stream."""
        poison(torch.empty_like(like))

    def _warm(self, at: int) -> None:
        """Load kernels and GEMMs of every slice, and let the allocator reserve memory, on every stream."""
        for part, stream in zip(self._parts, self._streams, strict=True):
            schedule, kernels = part.decision.schedule, part.decision.kernels
            with torch.cuda.stream(stream):
                reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=part.group.comm.device)
                del reserve
                given = [
                    torch.zeros(buffer.shape[1:], dtype=getattr(torch, buffer.dtype), device=stream.device)
                    for buffer in self.signature.inputs
                ]
                x, weight, scale = _tensors(given)
                out = x.new_empty((at, weight.shape[0]))
                self._poison(out)
                gemm = part.group.gemm(x, weight, scale, None, kernels)
                for rows in schedule.slices(at, out.shape[1] * out.element_size()):
                    with leaving_free(schedule.free_sms):
                        gemm(rows.begin, rows.end, out[rows.begin : rows.end])
        torch.cuda.synchronize(self._parts[0].group.comm.device)


def execution_of(
    dispatch: Dispatch,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    at: int,
    here: Device,
    comm: ChannelOwner,
) -> Execution:
    """A candidate on the ranks that `comm` has in this process, for calls of `at` rows.

    Raises:
        LoadError: its kernels don't load, the channel isn't there, or ranks that share a process would need a
            process group.
    """
    schedule = SliceSchedule.of(candidate.route, candidate.options)
    local = comm.local_ranks > 1
    if local and schedule.transport == "group":
        raise LoadError(
            f"route {candidate.route} reduces in a process group, and ranks that share a process have none; start it "
            f"with `torchrun --nproc-per-node {comm.world_size} -m kernwright ...`"
        )
    if arch != serves(candidate.builds, here.arch):
        raise LoadError(f"{arch} isn't the build of {candidate.name} that {here} takes; name no --arch")
    reason = objection(candidate.capabilities, workload.spec, comm)
    if reason is not None:
        raise LoadError(reason)
    plain = _plain_all_reduce(dispatch, comm)
    ranks: list[Any] = (
        [LocalRank(comm, workload.spec, rank) for rank in range(comm.world_size)] if local else [comm]
    )
    parts = []
    for rank in ranks:
        decision = _decision(dispatch, workload, candidate, schedule, arch, here, rank)
        group = LayerGroup(
            rank,
            lambda _x, _weight, decision=decision: decision,  # type: ignore[misc]
            plain,
            str(workload.fields["quantisation"]),
            cast(Any, workload.fields["nonfinite"]),
        )
        parts.append(Part(group, decision))
    if local:
        _load_kernels(ranks[0].load(dispatch.table.root, candidate.builds[arch], arch, here), candidate)
    return Execution(workload, at, parts)


def _decision(
    dispatch: Dispatch,
    workload: Workload,
    candidate: Candidate,
    schedule: SliceSchedule,
    arch: str,
    here: Device,
    comm: Any,
) -> GroupDecision:
    """As the op decides where the candidate is forced."""
    if not candidate.kernels:
        return GroupDecision(schedule)
    channel = comm.channel(workload.spec) if candidate.capabilities else None
    constants = {} if channel is None else channel.constants(comm.timeout_ns)
    module = comm.load(dispatch.table.root, candidate.builds[arch], arch, here)
    assert here.index is not None
    return GroupDecision(schedule, Kernels(module, candidate, constants, here.index), channel)


def _load_kernels(module: Any, candidate: Candidate) -> None:
    """Let the driver load the kernels' code, which it puts off until somebody asks about them."""
    from cupy_backends.cuda.api import driver

    for kernel in candidate.kernels.values():
        driver.occupancyMaxActiveBlocksPerMultiprocessor(module.address(kernel.symbol), kernel.block[0], 0)


def _plain_all_reduce(dispatch: Dispatch, comm: ChannelOwner) -> Callable[[torch.Tensor], None]:
    """The op's own."""
    op: LinearAllReduce = cast("LinearAllReduce", dispatch.operator(FAMILY))
    return op.plain_all_reduce(comm)


def _tensors(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """x, weight and its scale; codes of a quantised weight travel as bytes."""
    x, weight, *scale = inputs
    return (x, weight.view(torch.float8_e4m3fn), scale[0]) if scale else (x, weight, None)


def _signature(workload: Workload, at: int, ranks: int) -> Signature:
    fields = workload.fields
    dtype, width, k = str(fields["dtype"]), int(str(fields["width"])), int(str(fields["k"]))
    each = (ranks,) if ranks > 1 else ()
    weight: tuple[Buffer, ...] = (Buffer("weight", (*each, width, k), dtype),)
    if fields["quantisation"] != "none":
        weight = (
            Buffer("weight", (*each, width, k), "uint8"),
            Buffer("weight_scale", (*each, width, 1), "float32"),
        )
    x, result = Buffer("x", (*each, at, k), dtype), Buffer("result", (*each, at, width), dtype)
    return Signature((x, *weight), (result,))
