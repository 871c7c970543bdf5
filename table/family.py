"""What holds for all workloads of a family: its kinds, what its interval counts, how its waits are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CTA_FIELDS = ("failures", "cta", "expected", "seen")
"""Fields that every record of CTAs has: how many gave up; of the first one its number, call, and call last seen."""


@dataclass(frozen=True, slots=True)
class CtaRecord:
    """What kernels leave whose CTAs waited for each other in vain: 32-bit words in their state `record`."""

    fields: tuple[str, ...] = CTA_FIELDS
    """Names of the words, in order; all of `CTA_FIELDS` are among them."""
    awaited: str = "another CTA"
    """What was waited for, as a format of the other fields: `tile {tile} of part {part}`."""


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """What the runtime, the emulator and the evidence commands must know of a family; they know no family by name."""

    name: str
    kinds: tuple[str, ...] = ()
    """Kinds of the op; the first is what is meant where none is named."""
    unit: str = ""
    """What the interval counts, in the plural, for messages: `bytes`."""
    routes: tuple[str, ...] = ()
    """Routes that thresholds choose between, in the order in which they serve growing values of the interval."""
    waits: Mapping[int, str] = field(default_factory=dict)
    """What a rank may wait for, by its number in a channel's error record; not `OVERLAP`, nor `DISAGREEMENT`."""
    cta_record: CtaRecord = CtaRecord()
