"""Reductions: the process group's, our kernel's on a few SMs, and copy engines with a local addition.

Each belongs to one call and holds the addresses of its partial sums and result. What crosses streams is scratch and
the result; the scratch outlives the call, and the caller's stream is behind the side before the result can be freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rows import WORD, Slice, parts_of, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ....runtime.communicator.channel import Channel
    from .kernels import Kernels


class Reduction:
    """How partial sums of all ranks become a result; its methods enqueue on the current stream."""

    def begin(self, part: Slice) -> None:
        """Do what can be done with a slice that has been multiplied: reduce it, or fetch what others have of it."""
        raise NotImplementedError

    def add(self, part: Slice) -> None:
        """Add what was fetched, if `begin` didn't reduce."""

    def end(self, part: Slice) -> None:
        """Fetch the sums that others have added, if there are any."""

    def close(self) -> None:
        """End the call: its partial sums may be overwritten, here and by peers."""


class GroupReduction(Reduction):
    """`torch.distributed.all_reduce` in place, then a copy into the result."""

    def __init__(
        self, partials: torch.Tensor, result: torch.Tensor, all_reduce: Callable[[torch.Tensor], None]
    ) -> None:
        """Take scratch (uint8) of at least the result's bytes, the result [M, N], and what reduces in place."""
        self._partials = partials[: result.nbytes].view(result.dtype).view(result.shape)
        self._result, self._all_reduce = result, all_reduce

    def partial(self, part: Slice) -> torch.Tensor:
        """Where the GEMM of a slice writes."""
        return self._partials[part.begin : part.end]

    def begin(self, part: Slice) -> None:
        """Reduce it."""
        partial = self.partial(part)
        self._all_reduce(partial)
        self._result[part.begin : part.end].copy_(partial)


class ChannelPartials(Reduction):
    """Partial sums in a channel, slice by slice, each at a whole word."""

    def __init__(self, channel: Channel, partials_at: int, result: torch.Tensor, kernels: Kernels) -> None:
        """Take the channel of one rank, where its partial sums begin, the result [M, N], contiguous, and kernels."""
        self._rank, self._addresses, self._memory = channel.first, channel.addresses, channel.memory[0]
        self._at, self._result, self._kernels = partials_at, result, kernels
        self._width, self._element = result.shape[1], result.element_size()

    def partial(self, part: Slice) -> torch.Tensor:
        """Where the GEMM of a slice writes."""
        rows, begin = part.end - part.begin, self._at + part.at
        memory = self._memory[begin : begin + rows * self._width * self._element]
        return memory.view(self._result.dtype).view(rows, self._width)

    def _span(self, part: Slice) -> tuple[int, int]:
        """First element of a slice in the result, and how many it has."""
        return part.begin * self._width, (part.end - part.begin) * self._width


class KernelReduction(ChannelPartials):
    """Our all-reduce in two stages; CTAs of all ranks wait for each other, at last until all have read."""

    def begin(self, part: Slice) -> None:
        """Reduce it."""
        begin, numel = self._span(part)
        self._kernels("reduce", at=part.at, result=self._result.data_ptr(), begin_at=begin, numel=numel)


class CopyReduction(ChannelPartials):
    """Fetch the peers' partial sums by copy engines, add them here; one warp a meeting is all that waits on an SM."""

    def __init__(
        self,
        channel: Channel,
        partials_at: int,
        result: torch.Tensor,
        kernels: Kernels,
        stages: int,
        fetched: torch.Tensor,
    ) -> None:
        """Take what `ChannelPartials` does, the stages, and scratch (uint8) for what comes from the peers.

        One stage fetches whole slices, two this rank's part and then the others' sums.
        """
        super().__init__(channel, partials_at, result, kernels)
        self._stages, self._fetched = stages, fetched
        self._ranks = len(channel.addresses)
        self._others = [rank for rank in range(self._ranks) if rank != channel.first]
        self._stride = fetched.numel() // (2 * self._ranks)

    @staticmethod
    def fetched_bytes(slices: tuple[Slice, ...], width: int, element: int, ranks: int, stages: int) -> int:
        """Scratch that the slices of a call need: two take turns, so that one is fetched while one is added."""
        largest = max((part.end - part.begin) * width for part in slices)
        if stages == 2:
            begin, end = parts_of(largest, ranks, element)[0]
            largest = end - begin
        return 2 * ranks * words_of(largest * element) * WORD

    def begin(self, part: Slice) -> None:
        """Fetch this rank's part from all peers, when they have it."""
        low, high = self._own(part)
        self._meet(part)
        if high > low:
            for rank in self._others:
                self._fetch(rank, part.at, low, high, self._fetched_at(part) + rank * self._stride)

    def add(self, part: Slice) -> None:
        """Add it."""
        low, high = self._own(part)
        begin, _ = self._span(part)
        if high > low:
            self._kernels(
                "add",
                at=part.at + low * self._element,
                fetched=self._fetched_at(part),
                stride=self._stride // self._element,
                result=self._result.data_ptr(),
                begin_at=begin + low,
                numel=high - low,
            )

    def end(self, part: Slice) -> None:
        """In two stages: fetch the other parts' sums from the ranks that have added them."""
        if self._stages == 1:
            return
        begin, numel = self._span(part)
        self._meet(part)
        for rank, (low, high) in enumerate(parts_of(numel, self._ranks, self._element)):
            if rank != self._rank and high > low:
                target = self._result.data_ptr() + (begin + low) * self._element
                self._fetch(rank, part.at, low, high, target)

    def close(self) -> None:
        """All ranks have fetched; a result that lacks something is NaN."""
        self._kernels("close", result=self._result.data_ptr(), numel=self._result.numel())

    def _meet(self, part: Slice) -> None:
        self._kernels("meet", at=part.at, numel=self._span(part)[1])

    def _own(self, part: Slice) -> tuple[int, int]:
        """The elements of a slice that this rank adds."""
        _, numel = self._span(part)
        return (0, numel) if self._stages == 1 else parts_of(numel, self._ranks, self._element)[self._rank]

    def _fetched_at(self, part: Slice) -> int:
        """Where what is fetched of a slice lies."""
        return self._fetched.data_ptr() + part.index % 2 * self._ranks * self._stride

    def _fetch(self, rank: int, at: int, low: int, high: int, target: int) -> None:
        source = self._addresses[rank] + self._at + at + low * self._element
        self._kernels.copy(target, source, (high - low) * self._element)
