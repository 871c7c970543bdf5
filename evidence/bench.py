"""`kernwright bench`: control, candidates and baselines in one run; every candidate gives a record.

A candidate is timed only after the exactness gate, its captured graph is checked for doing the work at all
(poisoned results, then a replay), and its results are compared once more after it was timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ledger import Record
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..table import Workload
from .baselines import capture_external, compare_external, time_baselines
from .benchmark_run import GPU, BenchmarkRun, GpuBackend, GraphEmpty, Options
from .cells import Cell
from .family_evidence import FamilyEvidence
from .health import Monitor
from .outcome import Bench
from .verify import Wanted, chosen_builds

__all__ = ["GPU", "Bench", "GpuBackend", "GraphEmpty", "Options", "bench"]


def bench(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    identities: dict[tuple[str, str], str],
    cell: Cell,
    watch: Monitor,
    candidates: Sequence[str],
    options: Options,
    on_done: Callable[[str], None] = lambda _name: None,
    backend: GpuBackend = GPU,
    keep: Callable[[Record], None] = lambda _record: None,
) -> Bench:
    """Verify and time candidates of a cell against its control, with baselines and the read floor.

    Args:
        dispatch, evidence, workload: what is measured.
        identities: digest of canonical workload, candidate and target, by (candidate, arch).
        cell: which part of it, and on which GPU; several ranks call this together.
        watch: the GPU's health.
        candidates: names; empty for all. The control is always there.
        options: how much, by which rule.
        on_done: told the name of every entry that is finished.
        backend: what touches the GPU.
        keep: given each record as soon as it is made, so that a later crash loses none.

    Raises:
        NothingToVerify: no candidate that has a build for the GPU has such a name.
        ExternalUnusable: see `external.load`.
        GraphEmpty: the control's graph doesn't do its work.
    """
    run = BenchmarkRun(dispatch, evidence, workload, identities, cell, watch, options, backend)
    control = run.control
    chosen = chosen_builds(workload, Wanted(candidates), run.own)
    verified = run.verify(control)
    if not verified.passed:  # nothing that is compared with a wrong control could be called exact
        records = [run.record(control, verified, None, {}, ())]
        keep(records[0])
        return run.outcome(records)
    graph = run.graph(control)
    external = capture_external(run, options.against) if options.against else None
    peers, floor = time_baselines(run, on_done), run.alone(run.capture(run.chain.read()))
    control_times = run.alone(graph)
    records = [run.record(control, verified, None, peers, floor)]
    keep(records[0])
    compared = {control.name: compare_external(run, external, graph)} if external else {}
    on_done(control.name)
    for candidate in (entry for entry, _arch in chosen if entry is not control):
        try:
            verified = run.verify(candidate)
            groups = run.time(graph, candidate) if verified.passed else None
        except LoadError as error:
            run.notes.append(f"{candidate.name} can't be loaded here: {error}")
            continue
        records.append(run.record(candidate, verified, groups, peers, floor))
        keep(records[-1])
        if external and isinstance(groups, tuple):
            compared[candidate.name] = compare_external(run, external, run.graph(candidate))
        on_done(candidate.name)
    return run.outcome(records, peers, floor, control_times, compared)
