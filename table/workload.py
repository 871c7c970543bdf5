"""A workload with its candidates, parts and records, and the table of all of them. Nothing here computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .candidate import Candidate
from .family import FamilyEntry
from .record import RecordLine

FORMAT = 5
"""Version of this data model; `generated/dispatch.py` states the one it was written for."""

FieldValue = str | int | float | tuple[int, int]
"""A workload field: a plain value, or an inclusive interval of integers (the one dynamic dimension)."""

Tree = tuple[int, int, int]
"""A reduction tree: segments, lanes, chunk (docs/numerics.md#reduction-trees)."""


def low_end(value: FieldValue) -> FieldValue:
    """A field as one value: an interval stands for its lower end."""
    return value[0] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the workload's dynamic interval, and the route that serves it: a cell of its own."""

    route: str
    low: int
    high: int
    """Inclusive."""
    device: str | None
    """The GPU's name as its driver gives it; None: every device that has no parts of its own."""
    measured: bool
    """Whether the borders were tuned on that device."""

    @property
    def span(self) -> tuple[int, int]:
        """Both ends."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Workload:
    """One concrete workload (a single dtype and world size) with its candidates; the first is the control."""

    family: str
    spec: str
    label: str
    """Short form without the target, e.g. `fp16-hc4-h2560-n1-r320-tp1`."""
    fields: Mapping[str, FieldValue]
    trees: Mapping[str, Tree]
    """Reduction trees (segments, lanes, chunk) by the name of the reduction; they fix the right answer."""
    candidates: tuple[Candidate, ...]
    records: tuple[RecordLine, ...] = ()
    parts: tuple[Part, ...] = ()
    """How thresholds split the dynamic interval; empty where all of it is one cell."""
    multiple: int = 1
    """What every value of the interval is a multiple of; borders of parts needn't be."""
    channel: Mapping[str, int] = field(default_factory=dict)
    """Layout of the memory in which ranks talk, `size` and where its parts begin; empty where they don't."""

    @property
    def name(self) -> str:
        """`<spec>/<label>`: unique in a table, which a label needn't be."""
        return f"{self.spec}/{self.label}"

    @property
    def control(self) -> Candidate:
        """The control: the candidate that the others are compared with."""
        return self.candidates[0]

    @property
    def interval(self) -> str | None:
        """The field that is an interval; None where all are fixed."""
        return next((name for name, value in self.fields.items() if isinstance(value, tuple)), None)

    def control_of(self, part: Part | None) -> Candidate:
        """The control of a part: the first candidate of its route; the workload's own where there are no parts."""
        if part is None:
            return self.control
        return next((c for c in self.candidates if c.route == part.route), self.control)

    def part_of(self, value: int, device: str | None) -> Part | None:
        """The part that a value of the interval lies in, on a device by name; None without parts."""
        for name in (device, None):
            for part in self.parts:
                if part.device == name and part.low <= value <= part.high:
                    return part
        return None


@dataclass(frozen=True, slots=True)
class Table:
    """Everything a dispatch module knows."""

    format: int
    root: Path
    """Folder that the builds' source paths are relative to."""
    workloads: tuple[Workload, ...]
    families: tuple[FamilyEntry, ...] = ()
    """Of each family that has a workload."""

    def family(self, name: str) -> FamilyEntry:
        """The entry of a family; one that states nothing where the table has none."""
        return next((entry for entry in self.families if entry.name == name), FamilyEntry(name))
