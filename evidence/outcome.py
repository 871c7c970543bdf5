"""Results of a benchmark of one workload, as bars, sentences and plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ledger import Group, Record
from ..ledger.blocks import median
from ..table import Scope

SUMMARY = ("candidate", "verdict", "gain", "interval", "reason")
"""What a result repeats of its records."""


@dataclass(frozen=True)
class Bench:
    """Outcome for one workload; every time is milliseconds of one run of the chain."""

    workload: str
    device: str
    scope: Scope
    calls: int
    bytes: int
    flops: int
    records: tuple[Record, ...]
    peers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    floor: tuple[float, ...] = ()
    control: tuple[float, ...] = ()
    """Samples of the control, alone."""
    against: dict[str, str] = field(default_factory=dict)
    """The result of each candidate's comparison with an external control, by the ledger's rule."""
    notes: tuple[str, ...] = ()
    """What wasn't timed, and why."""
    part: str = ""
    """What of the workload's interval was timed, in words."""
    timed: Mapping[str, tuple[Group, ...]] = field(default_factory=dict)
    """Candidates' groups at that value, where records may be of another one."""

    @property
    def title(self) -> str:
        """Workload, part, device and scope."""
        what = f"{self.workload}, {self.part}," if self.part else self.workload
        return f"{what} on {self.device}, scope {self.scope}"

    def bars(self) -> dict[str, float]:
        """Medians, fastest first; a candidate's over its valid groups."""
        found = {name: median(samples) for name, samples in self.peers.items() if samples}
        for record in self.records:
            groups = self.timed.get(record.candidate) or (record.timing.groups if record.timing else ())
            times = [time for group in groups if not group.problem for time in group.candidate]
            if record.candidate == record.control:
                times = list(self.control)
            if times:
                found[record.candidate] = median(times)
        if self.floor:
            found["read floor"] = median(self.floor)
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def lines(self) -> list[str]:
        """A line a verdict, and what the run moves and computes."""
        floor = median(self.floor) if self.floor else None
        size = f"{self.calls} calls, {self.bytes / 1e9:.3f} GB, {self.flops / 1e9:.2f} GFLOP"
        lines = [f"{size}; read at {self.bytes / floor / 1e9:.2f} TB/s" if floor else size]
        lines += [f"{record.candidate}: {record.verdict}. {record.reason}" for record in self.records]
        lines += [f"{name} against {text}" for name, text in self.against.items()]
        return lines + [f"note: {note}" for note in self.notes]

    def to_json(self) -> dict[str, Any]:
        """Medians and verdicts; the samples are in the records."""
        return {
            "workload": self.workload,
            "part": self.part or None,
            "device": self.device,
            "scope": self.scope,
            "calls": self.calls,
            "bytes": self.bytes,
            "flops": self.flops,
            "milliseconds": self.bars(),
            "records": [{name: getattr(record, name) for name in SUMMARY} for record in self.records],
            "against": self.against,
            "notes": list(self.notes),
        }
