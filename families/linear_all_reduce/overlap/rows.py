"""A schedule out of the dispatch table, and the slices of rows that it asks for: integers, the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

WORD = 16
"""Bytes; slices and parts of them begin at whole words."""

Additions = Literal["side", "main"]
"""The stream on which slices that were fetched are added."""

Transport = Literal["group", "reduce", "copies"]
"""What reduces: the process group, our kernel on a few SMs, or copy engines with a local addition."""

TRANSPORTS: Mapping[str, Transport] = {
    "serial": "group",
    "serial_sm": "reduce",
    "sliced_nccl": "group",
    "sliced_sm": "reduce",
    "sliced_copy_engine": "copies",
}
"""By route."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `begin` to `end`, and where their partial sums lie."""

    index: int
    begin: int
    end: int
    at: int
    """Bytes into the partial sums; a multiple of 16."""


@dataclass(frozen=True, slots=True)
class SliceSchedule:
    """How a call of enough rows is carried out."""

    route: str
    weights: tuple[int, ...] = (1,)
    """Relative sizes of the slices."""
    align: int = 1
    """Bounds are multiples of so many rows; the last slice takes the rest."""
    min_m: int = 1
    """Fewer rows take the plain path."""
    free_sms: int = 0
    """SMs that the GEMM should leave free."""
    stages: int = 1
    """Of transport `copies`: 1 fetches whole slices, 2 its part of a slice and then the others' sums."""
    additions: Additions = "side"
    """Of transport `copies`: where slices are added."""
    partials_at: int = 0
    """Where the partial sums begin in a channel, bytes."""

    @classmethod
    def of(cls, route: str, options: Mapping[str, Any]) -> SliceSchedule:
        """The schedule of a candidate: its route and options as the dispatch table has them."""
        names = ("align", "min_m", "free_sms", "stages", "partials_at")
        stated = {name: int(options[name]) for name in names if name in options}
        additions: Additions = "main" if options.get("additions") == "main" else "side"
        return cls(route, tuple(options.get("slices", (1,))), additions=additions, **stated)

    @property
    def transport(self) -> Transport:
        """What reduces."""
        return TRANSPORTS[self.route]

    @property
    def plain(self) -> bool:
        """Whether it is the plain linear and the plain all-reduce."""
        return self.route == "serial"

    @property
    def overlapped(self) -> bool:
        """Whether reductions run on a stream of their own."""
        return self.route not in ("serial", "serial_sm")

    def slices(self, m: int, row_bytes: int) -> tuple[Slice, ...]:
        """Cut `m` rows; slices without a row are left out, so there may be fewer than asked for, at least one."""
        total = sum(self.weights)
        edges = [m * share // total // self.align * self.align for share in accumulate(self.weights)]
        cut: list[Slice] = []
        at = 0
        for begin, end in pairwise((0, *edges[:-1], m)):
            if end > begin:
                cut.append(Slice(len(cut), begin, end, at))
                at += words_of((end - begin) * row_bytes) * WORD
        return tuple(cut)


def words_of(size: int) -> int:
    """Words that `size` bytes take."""
    return -(-size // WORD)


def parts_of(numel: int, ranks: int, element_bytes: int) -> list[tuple[int, int]]:
    """The part of a slice that each rank adds, in elements: equal ones, of whole words; the last may be empty."""
    each = -(-numel // (ranks * (WORD // element_bytes))) * (WORD // element_bytes)
    return [(min(rank * each, numel), min((rank + 1) * each, numel)) for rank in range(ranks)]
