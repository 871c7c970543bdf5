"""`kernwright bench`: control, candidates and baselines in one run; every candidate ends as a record of the ledger.

A candidate is timed only after the exactness gate, its captured graph is checked for doing the work at all
(poisoned results, then a replay), and its results are compared once more after it was timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..ledger import Group, Record
from ..ledger.verdict import median
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..table import Workload
from .baselines import capture_external, compare_external, time_baselines
from .benchmark_run import GPU, BenchmarkRun, GpuBackend, Options
from .cells import Cell
from .family_evidence import FamilyEvidence
from .graphs import Graph
from .health import Monitor
from .outcome import Bench
from .verify import Wanted, chosen_builds

if TYPE_CHECKING:
    import torch


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
    keep: Callable[[Record], None] = lambda _record: None,
) -> Bench:
    """Verify and time candidates of a cell against its control, with baselines and the read floor.

    Where the evidence names several values of the interval, a candidate is timed at all of them, and its record is of
    the one where it gained least. Without names in `candidates` all are timed. `keep` is given each record as soon
    as it is made, so that a later crash loses none.

    Raises:
        NothingToVerify: no candidate that has a build for the GPU has such a name.
        ExternalUnusable: see `external.load`.
        GraphEmpty: the control's graph doesn't do its work.
    """
    runs = [BenchmarkRun(dispatch, evidence, workload, one, watch, options, backend) for one in cell.each()]
    run = runs[0]
    control = run.control
    chosen = chosen_builds(workload, Wanted(candidates), run.own)
    verified = run.verify(control)
    if not verified.passed:  # nothing that is compared with a wrong control could be called exact
        records = [run.record(control, verified, None, {}, ())]
        keep(records[0])
        return run.outcome(records)
    entries = [_Entries.of(each, on_done) for each in runs]
    first = entries[0]
    records = [run.record(control, verified, None, first.baselines, first.floor)]
    keep(records[0])
    compared = {control.name: compare_external(run, first.external, first.graph)} if first.external else {}
    on_done(control.name)
    timed: dict[str, tuple[Group, ...]] = {}
    for candidate in (entry for entry, _arch in chosen if entry is not control):
        try:
            verified = run.verify(candidate)
            groups = [each.run.time(each.graph, candidate) for each in entries] if verified.passed else [None]
        except LoadError as error:
            run.notes.append(f"{candidate.name} can't be loaded here: {error}")
            continue
        index = least_gain(groups)
        chosen_entry = entries[index]
        records.append(
            chosen_entry.run.record(
                candidate, verified, groups[index], chosen_entry.baselines, chosen_entry.floor
            )
        )
        keep(records[-1])
        if isinstance(groups[0], tuple):
            timed[candidate.name] = groups[0]
            if len(runs) > 1:
                where = chosen_entry.run.title
                run.notes.append(f"the record of {candidate.name} is of {where}, where it gained least")
            if first.external:
                compared[candidate.name] = compare_external(run, first.external, run.graph(candidate))
        on_done(candidate.name)
    return replace(
        run.outcome(records),
        peers=first.baselines,
        floor=first.floor,
        control=first.control,
        against=compared,
        timed=timed,
    )


@dataclass(frozen=True)
class _Entries:
    """What every candidate is compared with at one value of the interval."""

    run: BenchmarkRun
    graph: Graph[list[Sequence[torch.Tensor]]]
    """Of the control."""
    external: Graph[list[Sequence[torch.Tensor]]] | None
    baselines: dict[str, tuple[float, ...]]
    floor: tuple[float, ...]
    control: tuple[float, ...]

    @classmethod
    def of(cls, run: BenchmarkRun, on_done: Callable[[str], None]) -> _Entries:
        graph = run.graph(run.control)
        external = capture_external(run, run.options.against) if run.options.against else None
        baselines, floor = time_baselines(run, on_done), run.alone(run.capture(run.chain.read()))
        return cls(run, graph, external, baselines, floor, run.alone(graph))


def least_gain(timed: Sequence[tuple[Group, ...] | str | None]) -> int:
    """Which of several values of an interval a record is of: one with a wrong result, else that of the least gain."""

    def ratio(groups: tuple[Group, ...] | str | None) -> float:
        if not isinstance(groups, tuple):
            return math.inf
        valid = [group for group in groups if group.problem is None]
        return median([median(g.candidate) / median(g.control) for g in valid]) if valid else math.inf

    return max(range(len(timed)), key=lambda index: ratio(timed[index]))
