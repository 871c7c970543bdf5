"""A selection as text for users and as JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..table import Contract
from .eligibility import Stage
from .selection import Decision, Selection

SHOWN = 12
"""Candidates of other shapes that the text lists, where a table has many."""

REFERENCE = "reference"
"""What `chosen` says where torch serves the call."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which candidate serves a request on a device, and the reason for every candidate."""

    workload: str
    """Short form of what was asked for."""
    arch: str | None
    """The device's architecture; None for a CPU."""
    device: str
    policy: str
    kind: str
    chosen: str
    """The candidate's name, or `reference`."""
    contract: Contract
    reference: str
    """How the torch reference would compute it."""
    decisions: tuple[Decision, ...]

    @classmethod
    def of(cls, selection: Selection) -> Explanation:
        """Spell out a selection; nothing is decided again."""
        chosen = selection.chosen
        return cls(
            workload=chosen.workload.label if chosen else selection.request.label,
            arch=selection.device.arch,
            device=str(selection.device),
            policy=selection.policy,
            kind=selection.request.kind,
            chosen=chosen.candidate.name if chosen else REFERENCE,
            contract=selection.contract,
            reference=selection.request.reference_note,
            decisions=selection.decisions,
        )

    def to_json(self) -> dict[str, Any]:
        """`{workload, arch, chosen, contract, decisions: [{candidate, accepted, reason}]}`.

        A decision also names its workload, because candidates of several workloads may share a name.
        """
        return {
            "workload": self.workload,
            "arch": self.arch,
            "chosen": self.chosen,
            "contract": self.contract,
            "decisions": [
                {
                    "workload": decision.workload,
                    "candidate": decision.candidate,
                    "accepted": decision.accepted,
                    "reason": decision.reason,
                }
                for decision in self.decisions
            ],
        }

    def __str__(self) -> str:
        """Several lines: the outcome, then every candidate with its reason; of many for other shapes the nearest."""
        head = (
            f"{self.workload}, kind {self.kind}, on {self.device}, policy {self.policy}: "
            f"{self.chosen} (contract {self.contract})"
        )
        lines = [head]
        others = [decision for decision in self.decisions if decision.stage is Stage.SHAPE]
        left_out: set[int] = set()
        if len(others) > SHOWN:
            nearest = sorted(others, key=lambda decision: decision.mismatches)  # keeps the order of equals
            left_out = {id(decision) for decision in nearest[SHOWN:]}
        for decision in self.decisions:
            if id(decision) in left_out:
                continue
            mark = "+" if decision.accepted else "-"
            lines.append(f"  {mark} {decision.workload} {decision.candidate}: {decision.reason}")
        if left_out:
            lines.append(f"  - {len(left_out)} candidates of other shapes; the JSON form lists them")
        return "\n".join([*lines, f"  = reference: {self.reference}"])
