"""What dispatch needs of the ledger: a line a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["admitted", "rejected", "invalid", "no_difference"]
Scope = Literal["kernel", "boundary", "chain", "end_to_end"]
"""What a figure covers; figures of different scope are never subtracted."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What a measurement is valid for."""

    arch: str
    sm_count: int
    name: str

    def __str__(self) -> str:
        """`sm_90, 132 SMs, NVIDIA H200`."""
        return f"{self.arch}, {self.sm_count} SMs, {self.name}"


@dataclass(frozen=True, slots=True)
class RecordLine:
    """What dispatch needs of a ledger record: for which code on which device, and the verdict."""

    candidate: str
    device: DeviceKind
    code: str | None
    """Digest of the code that was measured; None of a record from before digests covered code alone."""
    exact: bool
    verdict: Verdict
    gain: float | None
    """Measured gain over the control, as a fraction (0.12 is 12% less time); None if it wasn't timed."""
    source: str
    """File name in the ledger of the newest of its records."""
    part: tuple[int, int] | None = None
    """The part of the workload's interval that it covers, inclusive; None where all of it is one cell."""
    compiler: str | None = None
    """Version of the NVRTC that made the machine code, `12.9`; None where no kernel of ours was measured."""
    basis: str = ""
    """What the verdict rests on, in words, where it isn't an interval over blocks."""
    unconfirmed: str = ""
    """The admitted candidate that it wasn't compared with, or wasn't faster than, in a run of both."""
    distances: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    """Relative L2 from FP64 of each tensor, and torch eager's own; of a candidate under a tolerance."""
