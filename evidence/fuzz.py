"""`kernwright fuzz`: a candidate under many interleavings on the emulator, or under ThreadSanitizer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..emulator import Fuzzed, Interleaving, find_races, fuzz
from ..runtime.dispatch import Dispatch
from ..table import Workload
from .emulated import emulated
from .family_evidence import Case, FamilyEvidence, serves
from .verify import Wanted, chosen_builds
from .verify_emulated import essential


@dataclass(frozen=True)
class FuzzResult:
    """What was found of one candidate for one kind of the op."""

    workload: str
    candidate: str
    kind: str
    seeds: int
    """Schedules that were run; 1 under ThreadSanitizer, whose result doesn't depend on the schedule."""
    seconds: float
    schedule: str
    """The failing schedule, which replays exactly; empty if none failed."""
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 3), "problems": list(self.problems)}


def fuzz_workload(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    candidates: Sequence[str],
    seeds: int,
    first: int,
    *,
    sanitize: bool,
) -> list[FuzzResult]:
    """Run every kind of every candidate under `seeds` schedules from `first` on, or once under ThreadSanitizer.

    Raises:
        NothingToVerify: no candidate has such a name.
        TooLarge: ThreadSanitizer can't hold so many threads; take a miniature workload.
        CompilerMissing: no host compiler is installed.
    """
    cases = essential(evidence.cases(workload))
    results = []
    for candidate, arch in chosen_builds(
        workload, Wanted(candidates), lambda entry: next(iter(entry.builds))
    ):
        if not candidate.kernels:  # a library does all of its work
            continue
        for case in one_of_each_kind(case for case in cases if serves(workload, candidate, case)):
            run = emulated(dispatch, evidence, workload, candidate, arch, case)
            if sanitize:
                start = time.perf_counter()
                faults = find_races(run.program.launches, Interleaving(first))
                failing = Interleaving(first) if faults else None
                found = Fuzzed(1, time.perf_counter() - start, failing, faults)
            else:  # without an answer in bits every schedule is compared with the first
                found = fuzz(run.program.launches, run.expected or None, seeds, first)
            results.append(
                FuzzResult(
                    workload.label,
                    candidate.name,
                    case.kind,
                    found.seeds,
                    found.seconds,
                    str(found.schedule or ""),
                    tuple(map(str, found.problems)),
                )
            )
    return results


def one_of_each_kind(cases: Iterable[Case]) -> list[Case]:
    """For each kind of the op normal values, or what the kind has instead."""
    found: dict[str, Case] = {}
    for case in cases:
        if case.kind not in found or (case.inputs == "normal" != found[case.kind].inputs):
            found[case.kind] = case
    return list(found.values())
