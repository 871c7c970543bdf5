"""All checks of one schedule, and fuzzing: the same launches under many schedules."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .compare import BufferMismatch, compare
from .launch import POISONS, Array, DeviceBuffer, EmulatedLaunch, Outcome, run
from .report import Fault, Uninitialised, Unwritten
from .schedule import Interleaving, schedules

CheckProblem = Fault | BufferMismatch
Expected = Mapping[DeviceBuffer, Array]


@dataclass(frozen=True)
class Checked:
    """One schedule, run with every poison."""

    schedule: Interleaving
    arrays: Mapping[DeviceBuffer, Array]
    problems: tuple[CheckProblem, ...]


@dataclass(frozen=True)
class Fuzzed:
    """Many schedules, up to the first that shows a problem."""

    seeds: int
    """Schedules that were run."""
    seconds: float
    schedule: Interleaving | None
    """The failing one: running it again does the same."""
    problems: tuple[CheckProblem, ...]

    def __str__(self) -> str:
        if self.schedule is None:
            return f"{self.seeds} schedules in {self.seconds:.1f} s, no problem."
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{self.schedule} fails; it replays exactly:\n{listed}"


def check(
    launches: Sequence[EmulatedLaunch],
    expected: Expected | None = None,
    schedule: Interleaving = Interleaving(),  # noqa: B008
) -> Checked:
    """Run under two poisons: faults, what differs in a bit from `expected`, and what depends on unwritten memory."""
    outcomes = [run(launches, schedule, poison) for poison in POISONS]
    for outcome in outcomes:
        if outcome.fault is not None:
            return Checked(schedule, outcome.arrays, (outcome.fault,))
    problems = [*_unwritten_memory(outcomes), *_mismatches(outcomes[0], expected or {})]
    return Checked(schedule, outcomes[0].arrays, tuple(problems))


def fuzz(launches: Sequence[EmulatedLaunch], expected: Expected | None, seeds: int, first: int = 0) -> Fuzzed:
    """Run under `seeds` schedules until one shows a fault or another result than expected (None: than the first)."""
    started = time.perf_counter()
    count = 0
    for schedule in schedules(seeds, first):
        outcome = run(launches, schedule)
        count += 1
        if outcome.fault is not None:
            return Fuzzed(count, time.perf_counter() - started, schedule, (outcome.fault,))
        if expected is None:
            expected = outcome.arrays
        problems = tuple(_mismatches(outcome, expected))
        if problems:
            return Fuzzed(count, time.perf_counter() - started, schedule, problems)
    return Fuzzed(count, time.perf_counter() - started, None, ())


def _mismatches(outcome: Outcome, expected: Expected) -> list[BufferMismatch]:
    compared = (compare(buffer, outcome.arrays[buffer], array) for buffer, array in expected.items())
    return [mismatch for mismatch in compared if mismatch is not None]


def _unwritten_memory(outcomes: Sequence[Outcome]) -> list[Fault]:
    """Elements that follow the poison: untouched ones hold it, others were computed from it."""
    problems: list[Fault] = []
    one, other = outcomes
    for buffer, array in one.arrays.items():
        width = array.dtype.itemsize
        first, second = (outcome.arrays[buffer].reshape(-1).view(f"u{width}") for outcome in (one, other))
        differs = first != second
        if not differs.any():
            continue
        patterns = [np.frombuffer(bytes([poison]) * width, f"u{width}")[0] for poison in POISONS]
        untouched = (first == patterns[0]) & (second == patterns[1])
        for kind, elements in ((Unwritten, untouched), (Uninitialised, differs & ~untouched)):
            count = int(np.count_nonzero(elements))
            if count:
                problems.append(kind(buffer.name, buffer.rank, count, int(elements.argmax())))
    return problems
