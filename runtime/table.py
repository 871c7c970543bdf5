"""The dispatch table as data: what `generated/dispatch.py` is made of.

The generator writes these constructors; selection, plans and `explain` read them. Nothing here computes.
Buffers are known by the names of the op's tensors (`residual`, `down_weight`, ...) and of the
candidate's own scratch (`y`, `lora`, ...); a kernel's `args` are such names in the order of its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FORMAT = 3
"""Version of this data model; `generated/dispatch.py` states the one it was written for."""

Contract = Literal["exact", "tolerance"]
Verdict = Literal["admitted", "rejected", "invalid", "no_difference"]
Dim3 = tuple[int, int, int]
FieldValue = str | int | float | tuple[int, int]
"""A workload field: a plain value, or an inclusive interval of integers (the one dynamic dimension)."""


def low_end(value: FieldValue) -> FieldValue:
    """A field as one value: an interval stands for its lower end."""
    return value[0] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a candidate: its symbol, launch geometry and the buffers it takes."""

    symbol: str
    grid: Dim3
    block: Dim3
    args: tuple[str, ...]
    shared_bytes: int = 0
    """Dynamic shared memory, bytes."""
    programmatic: bool = False
    """It may begin before the launch in front of it has ended, and waits for that itself."""
    resident: bool = False
    """Its CTAs wait for each other or for peers: all must be on the device at once."""
    cooperative: bool = False
    """Launched so that the driver itself sees to that; for ranks that share a grid."""


@dataclass(frozen=True, slots=True)
class Build:
    """The generated source of a candidate for one architecture."""

    source: str
    """Path of the `.cu` file relative to the dispatch module's folder."""
    sha256: str
    """Digest of the source text: its identity in the ledger and in the cubin cache."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A named schedule for a workload, with its builds by architecture."""

    name: str
    route: str
    contract: Contract
    builds: Mapping[str, Build]
    kernels: Mapping[str, Kernel]
    steps: Mapping[str, tuple[str, ...]]
    """Kernels to launch, in order, for each kind of the op."""
    scratch: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of the buffers that only this candidate's kernels see, and only during a call."""
    state: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of the buffers that kernels keep between calls; all zeros before the first one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the family's op must know of the schedule beside its kernels, as plain values."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments that aren't one tensor, by name: `uint32`, `uint64`, or `pointers[4]`, a struct of so many."""
    tolerance: Mapping[str, float] = field(default_factory=dict)
    """Bounds of a candidate whose contract is `tolerance`: `atol`, `rtol`, `relative_l2`."""
    min_sms: int = 0
    capabilities: tuple[str, ...] = ()
    """What the communicator that owns the channel must be able to do (owner rule)."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What a measurement is valid for."""

    arch: str
    sm_count: int
    name: str


@dataclass(frozen=True, slots=True)
class Record:
    """What dispatch needs of a ledger record: for which source on which device, and the verdict."""

    candidate: str
    device: DeviceKind
    source_sha256: str
    exact: bool
    verdict: Verdict
    gain: float | None
    """Measured gain over the control, as a fraction (0.12 is 12% less time); None if it wasn't timed."""
    source: str
    """The record's file name in the ledger."""
    part: tuple[int, int] | None = None
    """The part of the workload's interval that it speaks of, inclusive; None where all of it is one cell."""
    distances: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    """Relative L2 from FP64 of each tensor, and torch eager's own; of a candidate under a tolerance."""


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
    trees: Mapping[str, tuple[int, int, int]]
    """Reduction trees (segments, lanes, chunk) by the name of the reduction; they fix the right answer."""
    candidates: tuple[Candidate, ...]
    records: tuple[Record, ...] = ()
    parts: tuple[Part, ...] = ()
    """How thresholds split the dynamic interval; empty where all of it is one cell."""
    channel: Mapping[str, int] = field(default_factory=dict)
    """Layout of the memory in which ranks talk, `size` and where its parts begin; empty where they don't."""

    @property
    def name(self) -> str:
        """`<spec>/<label>`: unique in a table, which a label needn't be."""
        return f"{self.spec}/{self.label}"

    @property
    def control(self) -> Candidate:
        """The candidate that the others must prove themselves against."""
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
