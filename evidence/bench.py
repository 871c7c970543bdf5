"""`kernwright bench`: control, candidates and baselines in one run; every candidate ends as a record of the ledger.

A candidate is timed only after the exactness gate, its captured graph is checked for doing the work at all
(poisoned results, then a replay), and its results are compared once more after it was timed. All that is timed is
allocated and captured anew for each block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ledger import Group, HeadToHead, Record
from ..ledger.blocks import median
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..table import Candidate, Workload
from .baselines import compare_external, time_baselines
from .benchmark_run import GPU, BenchmarkRun, GpuBackend, Options
from .cell_blocks import CellBlocks, Sampled
from .cells import Cell
from .family_evidence import FamilyEvidence
from .graphs import Graph
from .health import Monitor
from .outcome import Bench
from .ranks import first_says
from .verify import Verification, Wanted, chosen_builds


@dataclass(frozen=True)
class Ledger:
    """What a benchmark asks of the ledger; by default there is none."""

    keep: Callable[[Record], None] = lambda _record: None
    """Takes each record of a cell as soon as it is made."""
    displaced: Callable[[Record, Sequence[Record]], str] = lambda _record, _others: ""
    """Name of the candidate that a record would displace, beside the finished ones of this run; empty where none."""


NO_LEDGER = Ledger()


def bench(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    cell: Cell,
    watch: Monitor,
    candidates: Sequence[str],
    options: Options,
    on_done: Callable[[str], None] = lambda _name: None,
    backend: GpuBackend = GPU,
    ledger: Ledger = NO_LEDGER,
) -> Bench:
    """Verify and time candidates of a cell against its control, with baselines and the read floor.

    Where the evidence names several values of the interval, a candidate is timed at all of them, and its record is of
    the one where it gained least. Without names in `candidates` all are timed. A candidate that would displace the
    one that the ledger admits is timed against that one, too.

    Raises:
        NothingToVerify: no candidate that has a build for the GPU has such a name.
        ExternalUnusable: see `external.load`.
        GraphEmpty: the control's graph doesn't do its work.
    """

    def placed(block: int) -> list[BenchmarkRun]:
        return [
            BenchmarkRun(dispatch, evidence, workload, one, watch, options, backend, block)
            for one in cell.each()
        ]

    records: list[Record] = []

    def finish(record: Record) -> None:
        records.append(record)
        ledger.keep(record)
        on_done(record.candidate)

    blocks = CellBlocks(placed, options)
    run = blocks.first[0]
    control = run.control
    chosen = chosen_builds(workload, Wanted(candidates), run.own)
    verified = run.verify(control)
    if not verified.passed:  # nothing that is compared with a wrong control could be called exact
        finish(run.record(control, verified, None, {}, ()))
        return run.outcome(records)
    blocks.capture_controls()
    beside = [
        _Beside.of(each, graph, on_done) for each, graph in zip(blocks.first, blocks.graphs, strict=True)
    ]
    finish(run.record(control, verified, None, beside[0].baselines, beside[0].floor))
    others = [candidate for candidate, _arch in chosen if candidate is not control]
    passing = _verified(run, others, beside[0], finish)
    sampled = blocks.time([candidate for candidate in others if candidate.name in passing])
    drafts = [
        _Draft.of(candidate, passing[candidate.name], sampled[candidate.name], blocks.first, beside)
        for candidate in others
        if candidate.name in passing and not sampled[candidate.name].unloadable
    ]
    for record in _confirmed(blocks, workload, drafts, ledger):
        finish(record)
    run.notes += _notes(blocks, sampled, drafts)
    places = {candidate.name: place for place, candidate in enumerate(workload.candidates)}
    ordered = sorted(records[1:], key=lambda record: places[record.candidate])
    return replace(
        run.outcome([records[0], *ordered]),
        peers=beside[0].baselines,
        floor=beside[0].floor,
        control=beside[0].control,
        against={
            name: compare_external(run, tuple(found.against))
            for name, found in sampled.items()
            if found.against
        },
        timed={
            name: tuple(found.groups[0])
            for name, found in sampled.items()
            if name != control.name and not found.refused and found.groups[0]
        },
    )


def _verified(
    run: BenchmarkRun, candidates: Sequence[Candidate], beside: _Beside, finish: Callable[[Record], None]
) -> dict[str, Verification]:
    """The candidates that passed the gate; of the others the record is finished."""
    passing: dict[str, Verification] = {}
    for candidate in candidates:
        try:
            verified = run.verify(candidate)
        except LoadError as error:
            run.notes.append(f"{candidate.name} can't be loaded here: {error}")
            continue
        if verified.passed:
            passing[candidate.name] = verified
        else:
            finish(run.record(candidate, verified, None, beside.baselines, beside.floor))
    return passing


def _notes(blocks: CellBlocks, sampled: Mapping[str, Sampled], drafts: Sequence[_Draft]) -> Iterator[str]:
    for name, found in sampled.items():
        if found.unloadable:
            yield f"{name} can't be loaded here: {found.unloadable}"
    for draft in drafts if len(blocks.first) > 1 else ():
        if isinstance(draft.groups, tuple):
            yield f"the record of {draft.candidate.name} is of {draft.run.title}, where it gained least"


@dataclass(frozen=True)
class _Beside:
    """What is timed alone, at one value of the interval, and decides nothing."""

    baselines: dict[str, tuple[float, ...]]
    floor: tuple[float, ...]
    control: tuple[float, ...]

    @classmethod
    def of(cls, run: BenchmarkRun, graph: Graph[Any], on_done: Callable[[str], None]) -> _Beside:
        baselines, floor = time_baselines(run, on_done), run.alone(run.capture(run.chain.read()))
        return cls(baselines, floor, run.alone(graph))


@dataclass(frozen=True)
class _Draft:
    """A candidate's record without the comparison with the one that it would displace."""

    candidate: Candidate
    verified: Verification
    run: BenchmarkRun
    """At the value of the interval that the record is of."""
    groups: tuple[Group, ...] | str
    beside: _Beside

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        verified: Verification,
        sampled: Sampled,
        runs: Sequence[BenchmarkRun],
        beside: Sequence[_Beside],
    ) -> _Draft:
        groups = sampled.by_value
        index = least_gain(groups)
        return cls(candidate, verified, runs[index], groups[index], beside[index])

    def record(self, head_to_head: HeadToHead | None = None) -> Record:
        beside = self.beside
        return self.run.record(
            self.candidate, self.verified, self.groups, beside.baselines, beside.floor, head_to_head
        )


def _confirmed(
    blocks: CellBlocks, workload: Workload, drafts: Sequence[_Draft], ledger: Ledger
) -> Iterator[Record]:
    """The records, each with the blocks against the candidate that it would displace.

    The least gain comes first, and each is compared with the winner of those before it: so one run finds the fastest.
    """
    made = [draft.record() for draft in drafts]
    done: list[Record] = []
    order = sorted(range(len(made)), key=lambda place: made[place].gain or 0.0)
    for place in map(int, first_says(" ".join(map(str, order))).split()):
        draft, record = drafts[place], made[place]
        name = first_says(ledger.displaced(record, done))
        standing = next((entry for entry in workload.candidates if entry.name == name), None)
        if standing is not None:
            groups = blocks.time_both(standing, draft.candidate, blocks.first.index(draft.run))
            if isinstance(groups, str):
                blocks.first[0].notes.append(f"{record.candidate} wasn't compared with {name}: {groups}")
            else:
                code = standing.builds[draft.run.arch(standing)].code
                both = HeadToHead(against=name, code_sha256=code, timing=draft.run.timing(groups))
                record = draft.record(both)
        done.append(record)
        yield record


def least_gain(timed: Sequence[tuple[Group, ...] | str | None]) -> int:
    """Which of several values of an interval a record is of: one with a wrong result, else that of the least gain."""

    def ratio(groups: tuple[Group, ...] | str | None) -> float:
        if not isinstance(groups, tuple):
            return math.inf
        valid = [group for group in groups if group.problem is None]
        return median([median(g.candidate) / median(g.control) for g in valid]) if valid else math.inf

    return max(range(len(timed)), key=lambda index: ratio(timed[index]))
