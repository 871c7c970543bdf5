"""How often each candidate was dispatched, and how often and why torch had to serve."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import Unsupported
from .explanation import REFERENCE
from .selection import Selection


@dataclass(slots=True)
class Tally:
    """A counter that a plan holds; threads that count at the same instant may lose a count."""

    calls: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the dispatch module was loaded."""

    dispatches: dict[tuple[str, str], int]
    """Calls by (workload label, candidate)."""
    fallbacks: dict[str, int]
    """Calls that torch served by cause: a field's name, `layout`, `device`, `communicator`, ..."""
    reference: int
    """Calls that torch served because policy `reference` says so, or because the family has no kernels."""


@dataclass(slots=True)
class Statistics:
    """The counters of one dispatch module."""

    _dispatches: dict[tuple[str, str], Tally] = field(default_factory=dict)
    _fallbacks: dict[str, Tally] = field(default_factory=dict)
    _reference: Tally = field(default_factory=Tally)

    def tally(self, selection: Selection) -> Tally:
        """The counter of calls that `selection` decides; the first fallback of each cause is logged."""
        if selection.chosen is not None:
            key = (selection.chosen.workload.label, selection.chosen.candidate.name)
            return self._dispatches.setdefault(key, Tally())
        fallback = selection.fallback
        if fallback is None:
            return self._reference
        if fallback.cause not in self._fallbacks:
            import logging  # a tenth of the package's import time, for a message that may never come

            logging.getLogger("kernwright").warning("%s", fallback_sentence(selection))
        return self._fallbacks.setdefault(fallback.cause, Tally())

    def snapshot(self) -> Stats:
        """The counts now; causes and candidates that served no call are left out."""
        return Stats(
            dispatches={key: tally.calls for key, tally in self._dispatches.items() if tally.calls},
            fallbacks={cause: tally.calls for cause, tally in self._fallbacks.items() if tally.calls},
            reference=self._reference.calls,
        )


def fallback_sentence(selection: Selection) -> str:
    """Say what falls back, to what, and why."""
    request, fallback = selection.request, selection.fallback
    why = (
        f"{fallback.candidate} of {fallback.workload}: {fallback.reason}" if fallback else "it has no kernels"
    )
    return (
        f"{request.family} {request.label} (kind {request.kind}) falls back to the torch {REFERENCE}, "
        f"contract {selection.contract}; {why}"
    )


def refuse(selection: Selection) -> Unsupported:
    """The error of strict mode: no kernel serves the call, with every candidate's reason."""
    request = selection.request
    reasons = "".join(f"\n  {d.workload} {d.candidate}: {d.reason}" for d in selection.decisions)
    return Unsupported(
        f"no kernel serves {request.family} {request.label} (kind {request.kind}) on {selection.device} "
        f"under policy {selection.policy}, and KERNWRIGHT_STRICT=1 forbids the fallback to torch:{reasons}"
    )
