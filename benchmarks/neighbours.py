"""Boundaries in a decode step: a foreign kernel of 5 us in front of each, against the Triton chain behind the same.

    (cd benchmarks/hopper && python -m kernwright generate)
    python benchmarks/neighbours.py --out figures/

The foreign kernel is ordinary, triggers early, triggers early with a boundary's carveout, or does that and is
launched programmatically itself. Candidates are timed with their programmatic edge and with a plain one, each in
paired groups with the Triton chain behind the ordinary kernel. Writes `neighbours.json`; exit status 1 if a
candidate left anything but the control's bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import _boundary_benchmark
import _foreign
import torch
import typer
from _boundary_benchmark import LIBRARY, Boundaries
from kernwright.evidence.benchmark_run import GraphEmpty
from kernwright.evidence.graphs import Graph
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.families.hyper_connection.neighbours import Footprint, coresidency
from kernwright.ledger import Group
from kernwright.ledger.blocks import median
from kernwright.ledger.verdict import median_interval
from kernwright.version import VERSION

CONFIDENCE = 0.95
LIBRARY_CANDIDATES = ("one_kernel", "two_kernels", "staged_up", "replicated")
MUST = {"ordinary": 0.80}
GOAL = {"ordinary": 0.72, "early": 0.56, "early_carveout": 0.56, "chained": 0.56}
"""Of the Triton chain's total, whose foreign kernel is ordinary."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class Variant:
    """A candidate behind a kind of foreign kernel."""

    boundaries: Boundaries
    candidate: str
    kind: str
    plain: bool
    """Launched with an ordinary edge."""

    @property
    def title(self) -> str:
        """In a table."""
        return f"{self.candidate}{' (plain edge)' if self.plain else ''}"


def variants(library: Boundaries, sweep: Boundaries, kinds: Sequence[str]) -> Iterator[Variant]:
    """All that is timed; a plain edge, and a candidate that has no other, behind the ordinary kernel alone."""
    for owner, names in ((library, LIBRARY_CANDIDATES), (sweep, tuple(sweep.programmatic()))):
        for name in names:
            overlaps = name in owner.programmatic()
            if overlaps:
                for kind in kinds:
                    yield Variant(owner, name, kind, plain=False)
            yield Variant(owner, name, "ordinary", plain=overlaps)


def decode(owner: Boundaries, call: Callable[..., Any], foreign: Callable[[], None]) -> Run:
    """The chain, with the foreign kernel in front of every boundary."""

    def step(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        foreign()
        found: Sequence[torch.Tensor] = call(inputs)
        return found

    return lambda: owner.run.chain.run(step)


def ratio(groups: Sequence[Group]) -> tuple[float, tuple[float, float] | None]:
    """Candidate over Triton: the median of the valid groups, and its interval."""
    valid = [sum(group.candidate) / sum(group.control) for group in groups if group.problem is None]
    return median(valid), median_interval(valid, CONFIDENCE)


def measure(variant: Variant, baseline: Graph[Any], foreign: _foreign.Foreign) -> dict[str, Any]:
    """One variant's figures."""
    owner = variant.boundaries
    plan = owner.plan(variant.candidate, plain=variant.plain)
    graph = owner.run.capture(decode(owner, plan, foreign.launcher(variant.kind)))
    owner.run.check(graph, variant.title)
    groups = owner.run.paired(baseline, graph)
    owner.run.check(graph, variant.title)
    valid = [group for group in groups if group.problem is None]
    if not valid:
        raise GraphEmpty(f"no group of {variant.title} is valid: {groups[-1].problem}")
    middle, interval = ratio(groups)
    return {
        "candidate": variant.candidate,
        "spec": owner.run.workload.spec,
        "foreign": variant.kind,
        "edge": "plain"
        if variant.plain
        else "programmatic"
        if variant.candidate in owner.programmatic()
        else "ordinary",
        "ms": median([sample for group in valid for sample in group.candidate]),
        "ratio": middle,
        "interval": interval,
        "groups": len(valid),
    }


def room(library: Boundaries, foreign: _foreign.Foreign) -> dict[str, str]:
    """What `coresidency` says of each kind of foreign kernel and the library's candidate of one kernel."""
    plan = library.plan("one_kernel")
    found = {}
    for kind in _foreign.KINDS:
        function = foreign.module.get_function(kind)
        neighbour = Footprint.of(function, _foreign.CTAS, _foreign.THREADS, name=kind)
        found[kind] = str(coresidency(plan, neighbour))
    return found


def main(
    out: Annotated[Path, typer.Option(help="Folder for neighbours.json.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="Candidates; by default all.")] = None,
    kinds: Annotated[list[str] | None, typer.Option(help="Kinds of foreign kernel; by default all.")] = None,
    peers: Annotated[bool, typer.Option(help="Time torch.compile, too.")] = True,
    groups: Annotated[int, typer.Option(help="Valid groups wanted; 7 or more give an interval.")] = 7,
    replays: Annotated[int, typer.Option(help="Graph replays in a sample.")] = 10,
) -> None:
    """Measure on the first GPU."""
    unknown = set(kinds or ()) - set(_foreign.KINDS)
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}; allowed are {', '.join(_foreign.KINDS)}", param_hint="--kinds"
        )
    with torch.no_grad(), _boundary_benchmark.watched() as watch:
        library, sweep = (
            _boundary_benchmark.boundaries(spec, watch, groups, replays)
            for spec in (LIBRARY, "neighbour_sweep")
        )
        foreign = _foreign.Foreign.load(library.run.here)
        document: dict[str, Any] = {
            "device": str(library.run.here),
            "kernwright": VERSION,
            "calls": library.run.chain.calls,
            "foreign_cycles": foreign.cycles,
            "foreign_alone_ms": {kind: _foreign.alone_ms(foreign, kind) for kind in _foreign.KINDS},
            "coresidency": room(library, foreign),
        }
        for kind, ms in document["foreign_alone_ms"].items():
            print(f"{kind:16s} alone {ms:.4f} ms; {document['coresidency'][kind]}")
        known = EVIDENCE.baselines(library.run.workload)
        baseline_name = "triton" if "triton" in known else "torch.compile"
        call = known[baseline_name](library.run.chain)
        ordinary = foreign.launcher("ordinary")
        baseline = library.run.capture(decode(library, call, ordinary))
        document["baseline"] = baseline_name
        document["baseline_ms"] = median(library.run.alone(baseline))
        print(f"{baseline_name} behind the ordinary kernel {document['baseline_ms']:.4f} ms: 1.000")
        figures: list[dict[str, Any]] = []
        document["variants"] = figures
        if peers and baseline_name != "torch.compile":
            compiled = library.run.capture(
                decode(library, known["torch.compile"](library.run.chain), ordinary)
            )
            found, interval = ratio(library.run.paired(baseline, compiled))
            document["torch.compile"] = {"ratio": found, "interval": interval}
            print(f"torch.compile behind the ordinary kernel: {found:.3f}")
        failed = False
        for variant in variants(library, sweep, kinds or _foreign.KINDS):
            if only and variant.candidate not in only:
                continue
            try:
                figures.append(measure(variant, baseline, foreign))
            except GraphEmpty as error:
                print(f"{variant.title} behind {variant.kind}: {error}")
                failed = True
                continue
            print(line(figures[-1], variant), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "neighbours.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    sys.exit(1 if failed else 0)


def line(figures: dict[str, Any], variant: Variant) -> str:
    """A variant's figures in words."""
    low, high = figures["interval"] or (float("nan"), float("nan"))
    goal, must = GOAL[variant.kind], MUST.get(variant.kind)
    reached = "goal" if figures["ratio"] <= goal else "must" if must and figures["ratio"] <= must else ""
    return (
        f"{variant.kind:16s}{variant.title:28s} {figures['ms']:.4f} ms  {figures['ratio']:.3f} "
        f"({low:.3f} to {high:.3f})  {reached}"
    )


if __name__ == "__main__":
    typer.run(main)
