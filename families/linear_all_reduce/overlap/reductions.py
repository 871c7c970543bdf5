"""Reductions: the process group's, our kernel's on a few SMs, and copy engines with a local addition.

Each belongs to one call and holds the addresses of its partial sums and result. What crosses streams is scratch and
the result; the scratch outlives the call, and the caller's stream is behind the side before the result can be freed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .rows import WORD, Slice, parts_of, words_of

if TYPE_CHECKING:
    import torch

RankLaunch = Callable[..., None]
"""Launches a kernel on the current stream, given its arguments by name."""
Copy = Callable[[int, int, int], None]
"""Copies so many bytes to one address from another, on the current stream."""


class GroupReduction:
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

    def add(self, part: Slice) -> None:
        """Nothing to do."""

    def end(self, part: Slice) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: peers read nothing here."""


class Peers(Protocol):
    """A channel, as a reduction sees it."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of every rank's channel."""

    @property
    def memory(self) -> torch.Tensor:
        """This rank's, uint8."""


class ChannelPartials:
    """Partial sums in a channel, slice by slice, each at a whole word."""

    def __init__(self, peers: Peers, partials_at: int, result: torch.Tensor) -> None:
        """Take the channel, where its partial sums begin, and the result [M, N], contiguous."""
        self._peers, self._at, self._result = peers, partials_at, result
        self._width, self._element = result.shape[1], result.element_size()

    def partial(self, part: Slice) -> torch.Tensor:
        """Where the GEMM of a slice writes."""
        rows, begin = part.end - part.begin, self._at + part.at
        memory = self._peers.memory[begin : begin + rows * self._width * self._element]
        return memory.view(self._result.dtype).view(rows, self._width)

    def _span(self, part: Slice) -> tuple[int, int]:
        """First element of a slice in the result, and how many it has."""
        return part.begin * self._width, (part.end - part.begin) * self._width


class KernelReduction(ChannelPartials):
    """Our all-reduce in two stages; CTAs of all ranks wait for each other."""

    def __init__(self, peers: Peers, partials_at: int, result: torch.Tensor, launch: RankLaunch) -> None:
        """Take what `ChannelPartials` does, and what launches the kernel `reduce`."""
        super().__init__(peers, partials_at, result)
        self._launch = launch

    def begin(self, part: Slice) -> None:
        """Reduce it."""
        begin, numel = self._span(part)
        self._launch("reduce", at=part.at, result=self._result.data_ptr(), begin_at=begin, numel=numel)

    def add(self, part: Slice) -> None:
        """Nothing to do."""

    def end(self, part: Slice) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: the kernel's second barrier said that all ranks have read."""


class CopyReduction(ChannelPartials):
    """Fetch the peers' partial sums by copy engines, add them here; one warp a meeting is all that waits on an SM."""

    def __init__(
        self,
        peers: Peers,
        partials_at: int,
        result: torch.Tensor,
        stages: int,
        fetched: torch.Tensor,
        launch: RankLaunch,
        copy: Copy,
    ) -> None:
        """Take what `ChannelPartials` does, and the means.

        Args:
            peers: the channel.
            partials_at: where its partial sums begin, bytes.
            result: [M, N], contiguous.
            stages: 1 fetches whole slices, 2 this rank's part and then the others' sums.
            fetched: scratch for what comes from the peers, uint8; equal parts for the ranks.
            launch: launches the kernels `meet`, `add` and `close`.
            copy: enqueues a copy.
        """
        super().__init__(peers, partials_at, result)
        self._stages, self._fetched, self._launch, self._copy = stages, fetched, launch, copy
        self._ranks = len(peers.addresses)
        self._others = [rank for rank in range(self._ranks) if rank != peers.rank]
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
        self._launch("meet")
        if high > low:
            for rank in self._others:
                self._fetch(rank, part.at, low, high, self._fetched_at(part) + rank * self._stride)

    def add(self, part: Slice) -> None:
        """Add it."""
        low, high = self._own(part)
        begin, _ = self._span(part)
        if high > low:
            self._launch(
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
        self._launch("meet")
        for rank, (low, high) in enumerate(parts_of(numel, self._ranks, self._element)):
            if rank != self._peers.rank and high > low:
                target = self._result.data_ptr() + (begin + low) * self._element
                self._fetch(rank, part.at, low, high, target)

    def close(self) -> None:
        """All ranks have fetched; a result that lacks something is NaN."""
        self._launch("close", result=self._result.data_ptr(), numel=self._result.numel())

    def _own(self, part: Slice) -> tuple[int, int]:
        """The elements of a slice that this rank adds."""
        _, numel = self._span(part)
        return (
            (0, numel) if self._stages == 1 else parts_of(numel, self._ranks, self._element)[self._peers.rank]
        )

    def _fetched_at(self, part: Slice) -> int:
        """Where what is fetched of a slice lies."""
        return self._fetched.data_ptr() + part.index % 2 * self._ranks * self._stride

    def _fetch(self, rank: int, at: int, low: int, high: int, target: int) -> None:
        source = self._peers.addresses[rank] + self._at + at + low * self._element
        self._copy(target, source, (high - low) * self._element)
