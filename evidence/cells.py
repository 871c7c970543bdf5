"""Cells: the parts of a workload's interval that are measured on their own, each by a value that stands for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ledger import RecordedPart as Measured
from ..table import Candidate, Part, Workload
from .family_evidence import (
    Chain,
    ChannelEvidence,
    FamilyEvidence,
    IntervalEvidence,
    interval_of,
    parts_on,
)
from .rank_context import RankContext


@dataclass(frozen=True)
class Cell:
    """What is timed of a workload, and where."""

    place: RankContext
    part: Part | None = None
    """None where all of the workload is one cell."""
    at: int | None = None
    """Value of the interval that is timed; None where there is none."""
    others: tuple[int, ...] = ()
    """Values that are timed as well."""

    def each(self) -> list[Cell]:
        return [replace(self, others=()), *(replace(self, at=at, others=()) for at in self.others)]

    def control(self, workload: Workload) -> Candidate:
        return workload.control_of(self.part)

    def admits(self, candidate: Candidate) -> bool:
        """Whether a candidate could serve the cell."""
        return self.part is None or candidate.route == self.part.route

    def chain(self, evidence: FamilyEvidence, workload: Workload, seed: int) -> Chain:
        place = self.place
        if self.at is None or not isinstance(evidence, ChannelEvidence):
            return evidence.chain(workload, place.device, seed)
        return evidence.chain_of_rank(workload, place.device, seed, place.rank, self.at)

    def measured(self, workload: Workload) -> Measured | None:
        """The part as a record states it."""
        if self.part is None or self.at is None:
            return None
        return Measured(field=workload.interval or "", low=self.part.low, high=self.part.high, at=self.at)

    def title(self, workload: Workload) -> str:
        """In words: `size 4 to 65536 at 512`, by the interval's name; empty for a workload without an interval."""
        if self.at is None:
            return ""
        span = f" {self.part.low} to {self.part.high}" if self.part else ""
        return f"{workload.interval}{span} at {self.at}"


def cells(
    workload: Workload, place: RankContext, device: str | None, evidence: FamilyEvidence | None = None
) -> Iterator[Cell]:
    """The cells of a workload on a device, by its name.

    A workload whose ranks talk is timed at one value in each part, or at those that its evidence names; the interval
    of another one is left to its evidence.
    """
    interval = interval_of(workload)
    if place.comm is None or interval is None:
        yield Cell(place)
        return
    parts = parts_on(workload, device)
    for part in parts:
        yield Cell(place, part, representative(*part.span))
    if not parts:
        named = evidence.timed_at(workload) if isinstance(evidence, IntervalEvidence) else ()
        values: tuple[int, ...] = tuple(named) or (representative(*interval),)
        yield Cell(place, None, values[0], values[1:])


def representative(low: int, high: int) -> int:
    """The value that represents an interval: a power of two near its geometric middle, else a multiple of 16 or 4."""
    middle = math.sqrt(low * high)
    power: int = 2 ** round(math.log2(middle))
    for value in (power, int(middle) // 16 * 16, -(-low // 4) * 4):
        if low <= value <= high:
            return value
    return low
