"""A layer group: linears of one model that share a communicator, hence a channel, scratch and streams.

What serves M rows, and whether any schedule is admitted at all, is decided here, inside the opaque
operator, on every call: a compiled graph that had fixed it would be split at every linear, or be wrong later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....runtime import current
from ....runtime.arguments import check_device, refuse_grad
from ....runtime.unpooled import unpooled
from ..decisions import FAMILY
from .gemm import Gemm, dequantised_gemm, leaving_free, scaled_gemm, torch_gemm
from .kernels import Kernels
from .lanes import IN_ORDER, CudaLanes
from .pipeline import run
from .quantise import NonfinitePolicy, quantise_rows
from .reductions import ChannelPartials, CopyReduction, GroupReduction, KernelReduction
from .rows import Slice, SliceSchedule
from .scratch import MOST_EVENTS, Pool, Scratch

if TYPE_CHECKING:
    from pathlib import Path

    from ....runtime.communicator.channel import Channel
    from ....runtime.device import Device
    from ....runtime.selection import Choice


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """How calls of so many rows are carried out."""

    schedule: SliceSchedule
    kernels: Kernels | None = None
    """Of the candidate, loaded; None where torch does everything."""
    channel: Channel | None = None
    """The channel with the partial sums that peers read."""


def loaded(root: Path, choice: Choice, device: Device, comm: Any, channel: Channel | None) -> GroupDecision:
    """The decision for a candidate, with its kernels, if it has some, loaded.

    Raises:
        LoadError: they don't load here.
    """
    candidate = choice.candidate
    schedule = SliceSchedule.of(candidate.route, candidate.options)
    if not candidate.kernels:
        return GroupDecision(schedule)
    module = comm.load(root, choice.build, choice.arch, device)
    constants = {} if channel is None else channel.constants(comm.timeout_ns)
    assert device.index is not None
    return GroupDecision(schedule, Kernels(module, candidate, constants, device.index), channel)


PLAIN = GroupDecision(SliceSchedule("serial"))

Decide = Callable[[Tensor, Tensor], GroupDecision]
"""Decides by x [M, K] and the weight [N, K]."""


class LayerGroup:
    """Linears that are called one after the other on a stream.

    Attributes:
        comm: a communicator of ranks with a process each.
        decide: says how a call is carried out.
        quantisation: `none` or `fp8_per_token`.
        nonfinite: what a quantised row with Inf or NaN becomes.
        pool: scratch; a stream that is first seen inside a capture needs some, `pool.prepare(size)`.
    """

    def __init__(
        self,
        comm: Any,
        decide: Decide,
        all_reduce: Callable[[Tensor], None],
        quantisation: str = "none",
        nonfinite: NonfinitePolicy = "nan",
    ) -> None:
        """Take what decides, and the plain path's reduction: in place, on the current stream."""
        self.comm, self.quantisation, self.nonfinite = comm, quantisation, nonfinite
        self.decide, self._all_reduce = decide, all_reduce
        self.pool = Pool(self._scratch)
        self._enqueuing = threading.Lock()
        self._checked: set[object] = set()

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """The sum over ranks of `x @ weight.T`, and the bias, which rank 0 adds in its GEMM; see the op."""
        facts = (_facts(x)[1:], x.shape[-1:], *map(_facts, (weight, weight_scale, bias)))
        if facts not in self._checked or torch.is_grad_enabled():
            check(x, weight, weight_scale, bias, self.quantisation)
            check_device(x, self.comm, "x")
            self._checked.add(facts)
        bias = bias if self.comm.rank == 0 else None
        with _on(x.device):
            if x.dim() == 2:
                return self._run(x, weight, weight_scale, bias)
            result = self._run(x.reshape(-1, x.shape[-1]), weight, weight_scale, bias)
        return result.view(*x.shape[:-1], weight.shape[0])

    def _run(self, x: Tensor, weight: Tensor, weight_scale: Tensor | None, bias: Tensor | None) -> Tensor:
        m = x.shape[0]
        if m == 0 or weight.shape[0] == 0:
            return x.new_empty((m, weight.shape[0]))
        decision = self.decide(x, weight)
        plain = decision.schedule.plain or m < decision.schedule.min_m
        if plain and self.quantisation == "none":
            result = torch.nn.functional.linear(x, weight, bias)
            self._all_reduce(result)
            return result
        gemm = self.gemm(x, weight, weight_scale, bias, decision.kernels)
        result = x.new_empty((m, weight.shape[0]))
        if plain:
            gemm(0, m, result)
            self._all_reduce(result)
        else:
            self._pipeline(decision, gemm, result)
        return result

    def _pipeline(self, decision: GroupDecision, gemm: Gemm, result: Tensor) -> None:
        schedule = decision.schedule
        slices = schedule.slices(result.shape[0], result.shape[1] * result.element_size())
        turn = nullcontext() if decision.channel is None else decision.channel.turn()
        # Threads on one stream share its scratch and channel: the work of a call is enqueued as a whole.
        with self._enqueuing, turn:
            lanes, reduction = self._reduction(decision, slices, result)

            def multiply(part: Slice) -> None:
                with leaving_free(schedule.free_sms):
                    gemm(part.begin, part.end, reduction.partial(part))

            run(slices, lanes, multiply, reduction, schedule.additions)

    def _reduction(
        self, decision: GroupDecision, slices: tuple[Slice, ...], result: Tensor
    ) -> tuple[Any, GroupReduction | ChannelPartials]:
        schedule, channel = decision.schedule, decision.channel
        key = _key(result.device)
        size = _scratch_bytes(schedule, slices, result, self.comm.world_size)
        scratch, memory = self.pool.take(key, size, result.is_cuda and current.capturing())
        lanes = scratch.lanes if schedule.overlapped else IN_ORDER
        if schedule.transport == "group":
            return lanes, GroupReduction(memory, result, self._all_reduce_in_group)
        assert channel is not None
        assert decision.kernels is not None
        channel.check_sometimes()
        channel.follow(key[1])
        where = (channel, schedule.partials_at, result, decision.kernels)
        if schedule.transport == "reduce":
            return lanes, KernelReduction(*where)
        return lanes, CopyReduction(*where, schedule.stages, memory[:size])

    def gemm(
        self, x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, kernels: Kernels | None
    ) -> Gemm:
        """Quantise x, if the scheme does, and give what multiplies its rows."""
        if self.quantisation == "none":
            return torch_gemm(x, weight, bias)
        assert scale is not None
        codes, scales = self._quantised(x, kernels)
        multiply = scaled_gemm if x.is_cuda and x.dtype == torch.bfloat16 else dequantised_gemm
        return multiply(codes, scales, weight, scale, bias)

    def _quantised(self, x: Tensor, kernels: Kernels | None) -> tuple[Tensor, Tensor]:
        """Codes and scales, allocated on the caller's stream."""
        if kernels is None:
            return quantise_rows(x, self.nonfinite)
        dense = x.contiguous()
        if dense.data_ptr() % 16:  # a view that begins inside of a word
            dense = dense.clone()
        codes = torch.empty_like(dense, dtype=torch.float8_e4m3fn)
        scales = dense.new_empty((dense.shape[0], 1), dtype=torch.float32)
        kernels(
            "quantise",
            x=dense.data_ptr(),
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            rows=dense.shape[0],
        )
        return codes, scales

    def _all_reduce_in_group(self, partial: Tensor) -> None:
        torch.distributed.all_reduce(partial, group=self.comm.group)

    def _scratch(self) -> Scratch:
        device = self.comm.device
        lanes = CudaLanes(device, MOST_EVENTS) if device.type == "cuda" else IN_ORDER
        return Scratch(lambda size: unpooled(size, device), lanes)


def check(
    x: Tensor, weight: Tensor, weight_scale: Tensor | None, bias: Tensor | None, quantisation: str
) -> None:
    """Check the tensors of a call against each other.

    Raises:
        ValueError, TypeError: shapes, dtypes or devices that don't fit.
        RuntimeError: something requires grad.
    """
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [..., K] and [N, K], both "
            "the part of one rank"
        )
    named = {"x": x, "weight": weight, "weight_scale": weight_scale, "bias": bias}
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    refuse_grad(given.items(), FAMILY)
    devices = {tensor.device for tensor in given.values()}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {tensor.device}" for name, tensor in given.items())
        raise ValueError(f"the tensors are on several devices ({where}); put all on that of x")
    wanted = x.dtype if quantisation == "none" else torch.float8_e4m3fn
    if weight.dtype != wanted:
        raise TypeError(
            f"weight is {weight.dtype} and x {x.dtype}; with quantisation {quantisation} it must be {wanted}"
        )
    if (weight_scale is None) != (quantisation == "none"):
        raise ValueError(
            f"weight_scale is {'missing' if weight_scale is None else 'given'}, and quantisation is {quantisation}; "
            "a quantised weight has one, another hasn't"
        )
    if weight_scale is not None and weight_scale.numel() not in (1, weight.shape[0]):
        raise ValueError(
            f"weight_scale has {weight_scale.numel()} elements; it must have one, or {weight.shape[0]}: one a row"
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")


def _facts(tensor: Tensor | None) -> tuple[object, ...]:
    """The facts that `check` depends on."""
    return (None,) if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _scratch_bytes(schedule: SliceSchedule, slices: tuple[Slice, ...], result: Tensor, ranks: int) -> int:
    """Memory of this rank alone that a call needs beside its tensors."""
    if schedule.transport == "group":
        return result.nbytes
    if schedule.transport == "reduce":
        return 0
    return CopyReduction.fetched_bytes(slices, result.shape[1], result.element_size(), ranks, schedule.stages)


def _on(device: torch.device) -> Any:
    """The device as the current one."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return nullcontext()
    return torch.cuda.device(device)


def _key(device: torch.device) -> tuple[object, int]:
    if device.type != "cuda":
        return device, 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return device, current.current_stream(index)
