"""`kernwright tune`: measure routes over sizes on this machine, and write the thresholds into the spec file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..ledger import device_slug
from ..ledger.blocks import median
from ..runtime.dispatch import Dispatch
from ..specs.writer import put
from ..table import Candidate, Workload
from .benchmark_run import GPU, BenchmarkRun, GpuBackend, Options
from .cells import Cell
from .crossing import Crossings, Curve, crossings
from .family_evidence import FamilyEvidence, ThresholdEvidence, interval_of
from .graphs import Graph
from .health import Monitor, problem
from .rank_context import RankContext
from .ranks import agreed, slowest
from .session import NotHere
from .timing import Pace, warm


@dataclass(frozen=True)
class Tuned:
    """What was found for one workload on one device."""

    spec: str
    workload: str
    dtype: str
    world_size: int
    device: str
    curve: Curve
    crossings: Crossings
    unit: str = ""
    """What sizes count."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[int | str, ...]]:
        """A line a size: the size, microseconds by route, and the route that is taken."""
        begins = {route: begin for route, begin in self.crossings.begins.items() if begin is not None}
        lines: list[tuple[int | str, ...]] = []
        for index, size in enumerate(self.curve.sizes):
            taken = next(iter(self.curve.times))
            for route, begin in begins.items():
                taken = route if size >= begin else taken
            times = [column[index] for column in self.curve.times.values()]
            lines.append((size, *("" if time is None else f"{time:.2f}" for time in times), taken))
        return lines


def tune(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    place: RankContext,
    watch: Monitor,
    pace: Pace,
    on_done: Callable[[], None] = lambda: None,
    backend: GpuBackend = GPU,
) -> Tuned:
    """Time the first candidate of each route at every size of the grid; several ranks call this together.

    Raises:
        NotHere: the workload has no routes to choose from, or the GPU wasn't ours alone.
        GraphEmpty: a route's results aren't the others'.
    """
    interval = interval_of(workload)
    if not isinstance(evidence, ThresholdEvidence) or not workload.parts or interval is None:
        raise NotHere(f"{workload.label} of {workload.spec} has no thresholds to tune")
    here = backend.device(place.device)
    entry = dispatch.table.family(workload.family)
    first: dict[str, Candidate] = {}
    for candidate in workload.candidates:
        first.setdefault(candidate.route, candidate)
    routes = {route: first[route] for route in entry.routes if route in first}
    most = {route: evidence.most(workload, candidate) for route, candidate in routes.items()}
    sizes = tuple(evidence.sizes(workload))
    times: dict[str, list[float | None]] = {route: [] for route in routes}
    for size in sizes:
        run = BenchmarkRun(
            dispatch,
            evidence,
            workload,
            Cell(place, None, size),
            watch,
            Options(pace=pace),
            backend,
        )
        graphs = {route: run.graph(candidate) for route, candidate in routes.items() if size <= most[route]}
        found = _in_turns(graphs, watch, pace, backend)
        for route, column in times.items():
            column.append(1000 * found[route] / run.chain.calls if route in found else None)
        on_done()
    curve = Curve(sizes, {route: tuple(column) for route, column in times.items()}, most)
    return Tuned(
        workload.spec,
        workload.label,
        str(workload.fields["dtype"]),
        int(str(workload.fields["world_size"])),
        here.name or str(here),
        curve,
        crossings(curve, interval[0]),
        entry.unit,
    )


def steps(evidence: FamilyEvidence, workload: Workload) -> int:
    return len(evidence.sizes(workload)) if isinstance(evidence, ThresholdEvidence) else 0


def _in_turns(
    graphs: dict[str, Graph[Any]], watch: Monitor, pace: Pace, backend: GpuBackend
) -> dict[str, float]:
    """Median milliseconds of each graph over the healthy groups; in a group each is sampled once."""
    for graph in graphs.values():
        warm(graph, pace.replays, backend.sample)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for index in range(pace.most):
        order = list(graphs) if index % 2 == 0 else list(reversed(graphs))
        before = watch.snapshot()
        found = {name: slowest(backend.sample(graphs[name], pace.replays)) for name in order}
        fault = agreed(problem(before, watch.snapshot()))
        if fault is None:
            for name, time in found.items():
                samples[name].append(time)
        if len(next(iter(samples.values()))) == pace.groups:
            return {name: median(values) for name, values in samples.items()}
    raise NotHere(
        f"of {pace.most} groups of samples fewer than {pace.groups} were valid, the last one for: {fault}; tune when "
        "the GPU is ours alone"
    )


def write(path: Path, tuned: Tuned) -> None:
    """Put the thresholds into the spec file, in the entry of this device, dtype and world size.

    Raises:
        SpecError: another entry of the device holds for this dtype and world size too; the file is unchanged.
    """
    where = {"device": tuned.device, "dtype": tuned.dtype, "world_size": tuned.world_size}
    put(path, "threshold", where, {**tuned.crossings.begins, "measured": True})


def write_curve(folder: Path, tuned: Tuned) -> Path:
    """The curve as JSON, `tune-<spec>-<workload>-<device>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tune-{tuned.spec}-{tuned.workload}-{device_slug(tuned.device)}.json"
    path.write_text(json.dumps(tuned.to_json(), indent=1) + "\n", encoding="utf-8")
    return path
