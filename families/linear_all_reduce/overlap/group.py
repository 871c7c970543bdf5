"""A layer group: linears of one model that share a communicator, hence a channel, scratch and streams.

What serves M rows, and whether any schedule is admitted at all, is decided here, inside the opaque
operator, on every call: a compiled graph that had fixed it would be split at every linear, or be wrong later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ....runtime import current
from ....runtime.unpooled import unpooled
from .gemm import DequantisedGemm, Gemm, ScaledGemm, TorchGemm, leaving_free
from .lanes import IN_ORDER, CudaLanes
from .pipeline import run
from .quantise import NonfinitePolicy, quantise_rows
from .reductions import CopyReduction, GroupReduction, KernelReduction
from .rows import Slice, SliceSchedule
from .scratch import MOST_EVENTS, Pool, Scratch

if TYPE_CHECKING:
    from ....runtime.communicator.channel import Channel
    from .kernels import Kernels

Reduced = GroupReduction | KernelReduction | CopyReduction


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """How calls of so many rows are carried out."""

    schedule: SliceSchedule
    kernels: Kernels | None = None
    """Of the candidate, loaded; None where torch does everything."""
    channel: Channel | None = None
    """The channel with the partial sums that peers read."""

    @property
    def plain(self) -> bool:
        """Whether it is the plain linear and the plain all-reduce."""
        return self.schedule.plain


PLAIN = GroupDecision(SliceSchedule("serial"))

Decide = Callable[[torch.Tensor, torch.Tensor], GroupDecision]
"""Decides by x [M, K] and the weight [N, K]."""


class LayerGroup:
    """Linears that are called one after the other on a stream.

    Attributes:
        comm: the ranks.
        quantisation: `none` or `fp8_per_token`.
        nonfinite: what a quantised row with Inf or NaN becomes.
    """

    def __init__(
        self,
        comm: Any,
        decide: Decide,
        all_reduce: Callable[[torch.Tensor], None],
        quantisation: str = "none",
        nonfinite: NonfinitePolicy = "nan",
    ) -> None:
        """Bind.

        Args:
            comm: a communicator of ranks with a process each.
            decide: says how a call is carried out.
            all_reduce: the plain path's, in place, on the current stream.
            quantisation: of x, and of the weights.
            nonfinite: see `quantise`.
        """
        self.comm, self.quantisation, self.nonfinite = comm, quantisation, nonfinite
        self._decide, self._all_reduce = decide, all_reduce
        self._pool = Pool(self._scratch)
        self._checked: set[object] = set()

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sum over ranks of `x @ weight.T`, and the bias, which rank 0 adds in its GEMM; see the op."""
        facts = (_facts(x)[1:], x.shape[-1:], *map(_facts, (weight, weight_scale, bias)))
        if facts not in self._checked or torch.is_grad_enabled():
            check(x, weight, weight_scale, bias, self.quantisation)
            self._checked.add(facts)
        bias = bias if self.comm.rank == 0 else None
        with _on(x.device):
            if x.dim() == 2:
                return self._run(x, weight, weight_scale, bias)
            result = self._run(x.reshape(-1, x.shape[-1]), weight, weight_scale, bias)
        return result.view(*x.shape[:-1], weight.shape[0])

    def _run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        m = x.shape[0]
        if m == 0 or weight.shape[0] == 0:
            return x.new_empty((m, weight.shape[0]))
        decision = self._decide(x, weight)
        plain = decision.plain or m < decision.schedule.min_m
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

    def _pipeline(self, decision: GroupDecision, gemm: Gemm, result: torch.Tensor) -> None:
        schedule = decision.schedule
        slices = schedule.slices(result.shape[0], result.shape[1] * result.element_size())
        lanes, reduction = self._reduction(decision, slices, result)

        def multiply(part: Slice) -> None:
            with leaving_free(schedule.free_sms):
                gemm(part.begin, part.end, reduction.partial(part))

        run(slices, lanes, multiply, reduction, schedule.additions)

    def _reduction(
        self, decision: GroupDecision, slices: tuple[Slice, ...], result: torch.Tensor
    ) -> tuple[Any, Reduced]:
        schedule, channel = decision.schedule, decision.channel
        key = _key(result.device)
        size = _scratch_bytes(schedule, slices, result, self.comm.world_size)
        scratch, memory = self._pool.take(key, size, result.is_cuda and current.capturing())
        lanes = scratch.lanes if schedule.overlapped else IN_ORDER
        if schedule.transport == "group":
            return lanes, GroupReduction(memory, result, self._all_reduce_in_group)
        assert channel is not None
        assert decision.kernels is not None
        channel.check_sometimes()
        channel.follow(key[1])
        peers, at, kernels = ChannelPeers(channel), schedule.partials_at, decision.kernels
        if schedule.transport == "reduce":
            return lanes, KernelReduction(peers, at, result, kernels)
        return lanes, CopyReduction(peers, at, result, schedule.stages, memory[:size], kernels, kernels.copy)

    def gemm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor | None,
        bias: torch.Tensor | None,
        kernels: Kernels | None,
    ) -> Gemm:
        """Quantise x, if the scheme does, and give what multiplies its rows."""
        if self.quantisation == "none":
            return TorchGemm(x, weight, bias)
        assert weight_scale is not None
        codes, scales = self._quantised(x, kernels)
        kind = ScaledGemm if x.is_cuda else DequantisedGemm
        return kind(codes, scales, weight, weight_scale, bias)

    def _quantised(self, x: torch.Tensor, kernels: Kernels | None) -> tuple[torch.Tensor, torch.Tensor]:
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

    def _all_reduce_in_group(self, partial: torch.Tensor) -> None:
        torch.distributed.all_reduce(partial, group=self.comm.group)

    def _scratch(self) -> Scratch:
        device = self.comm.device

        def allocate(size: int) -> torch.Tensor:
            return unpooled(size, device)

        return Scratch(allocate, CudaLanes(device, MOST_EVENTS) if device.type == "cuda" else IN_ORDER)

    def prepare(self, size: int, streams: int = 1) -> None:
        """Have scratch of `size` bytes for so many streams that are first seen inside a capture."""
        with _on(self.comm.device):
            self._pool.prepare(size, streams)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that are held."""
        return self._pool.bytes


class ChannelPeers:
    """A channel of ranks with a process each, as a reduction sees it."""

    def __init__(self, channel: Channel) -> None:
        """Hold the channel."""
        self.rank, self.addresses, self.memory = channel.first, channel.addresses, channel.memory[0]


def check(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    quantisation: str,
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
    if torch.is_grad_enabled():
        for name, tensor in given.items():
            if tensor.requires_grad:
                raise RuntimeError(
                    f"{name} requires grad, and linear_all_reduce has no gradient; call it under torch.no_grad() or "
                    "torch.inference_mode()"
                )
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


def _facts(tensor: torch.Tensor | None) -> tuple[object, ...]:
    """The facts that `check` depends on."""
    return (None,) if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _scratch_bytes(
    schedule: SliceSchedule, slices: tuple[Slice, ...], result: torch.Tensor, ranks: int
) -> int:
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
