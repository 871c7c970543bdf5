"""Where the time of `one_kernel` goes: the chain of 96 boundaries with one stage left out at a time.

    python benchmarks/hopper_ablation.py --out figures/
    (cd benchmarks/hopper && python -m kernwright generate) && \
        python benchmarks/hopper_ablation.py --spec hopper_sweep --candidate one_look_800

Stages overlap, so that differences don't add up: each says how much earlier the chain would end without the stage.
The texts are edits of the generated one (`_ablations.py`); their results are wrong, and nothing dispatches them.
Writes `hopper_ablation.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import _ablations
import _boundary_benchmark
import cupy
import torch
import typer
from _boundary_benchmark import LIBRARY, Boundaries
from kernwright.compiler.compile import compile_source
from kernwright.evidence.graphs import Graph
from kernwright.ledger.blocks import median
from kernwright.ledger.verdict import median_interval
from kernwright.runtime.launch import CudaModule
from kernwright.runtime.loader import source_text
from kernwright.runtime.plan import Plan
from kernwright.version import VERSION

CONFIDENCE = 0.95
TIMEOUT_NS = 2_000_000
"""Without a stage, CTAs might wait for what never comes."""


def main(
    out: Annotated[Path, typer.Option(help="Folder for hopper_ablation.json.")] = Path("figures"),
    spec: Annotated[str, typer.Option(help="The library's, or one of benchmarks/hopper.")] = LIBRARY,
    candidate: Annotated[str, typer.Option(help="Of route one_kernel.")] = "one_kernel",
    groups: Annotated[int, typer.Option(help="Valid groups wanted; 7 or more give an interval.")] = 7,
    replays: Annotated[int, typer.Option(help="Graph replays in a sample.")] = 20,
) -> None:
    """Measure on the first GPU."""
    with torch.no_grad(), _boundary_benchmark.watched() as watch:
        owner = _boundary_benchmark.boundaries(spec, watch, groups, replays)
        run = owner.run
        whole = owner.plan(candidate)
        base = run.capture(lambda: run.chain.run(whole))
        run.check(base, candidate)
        base_ms = median(run.alone(base))
        floor_ms = median(run.alone(run.capture(run.chain.read())))
        print(f"{candidate} of {spec}: {base_ms:.4f} ms; only reading the weights {floor_ms:.4f} ms")
        print(f"{'left out':36s}{'ms':>8s}{'less':>9s}   interval")
        document: dict[str, Any] = {
            "device": str(run.here),
            "kernwright": VERSION,
            "spec": spec,
            "candidate": candidate,
            "calls": run.chain.calls,
            "ms": base_ms,
            "floor_ms": floor_ms,
        }
        figures = document["variants"] = []
        for name, graph in graphs(owner, candidate):
            figures.append(compared(owner, name, base, base_ms, graph))
            print(line(figures[-1]), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "hopper_ablation.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def graphs(owner: Boundaries, candidate: str) -> Any:
    """Names and captured chains: the stages, other layouts, and ordinary edges."""
    run = owner.run
    for name, edits in _ablations.STAGES.items():
        plan = load_plan(owner, candidate, edits)
        yield name, run.capture(lambda plan=plan: run.chain.run(plan))
    for name, edits in _ablations.OTHERS.items():
        plan = load_plan(owner, candidate, edits)
        graph = run.capture(lambda plan=plan: run.chain.run(plan))
        run.check(graph, name)
        yield name, graph
    for name, edits in (("plain edge", ()), ("plain edge, no weights", _ablations.STAGES["no weights"])):
        plan = load_plan(owner, candidate, edits, plain=True)
        yield name, run.capture(lambda plan=plan: run.chain.run(plan))


def load_plan(owner: Boundaries, name: str, edits: Sequence[_ablations.Edit], *, plain: bool = False) -> Plan:
    """A plan of an edited text."""
    run = owner.run
    candidate = next(entry for entry in run.workload.candidates if entry.name == name)
    arch, here = run.arch(candidate), run.here
    text = source_text(owner.dispatch.table.root, candidate.builds[arch])
    artifact = compile_source(_ablations.edited(text, edits), file_name="ablation.cu", arch=arch)
    module = cupy.cuda.function.Module()
    with cupy.cuda.Device(here.index):
        module.load(artifact.data)
    if plain:
        kernels = {key: replace(kernel, programmatic=False) for key, kernel in candidate.kernels.items()}
        candidate = replace(candidate, kernels=kernels)
    return Plan(
        candidate,
        arch,
        run.chain.kind,
        owner.plan(name).signature,
        here,
        CudaModule(module, here.sm_count),
        {"timeout_ns": TIMEOUT_NS.to_bytes(8, "little")},
    )


def compared(
    owner: Boundaries, name: str, base: Graph[Any], base_ms: float, graph: Graph[Any]
) -> dict[str, Any]:
    """A variant's time beside the whole kernel's, in paired groups."""
    groups = owner.run.paired(base, graph)
    ratios = [sum(g.candidate) / sum(g.control) for g in groups if g.problem is None]
    if not ratios:
        return {"left_out": name, "problem": groups[-1].problem}
    middle, bounds = median(ratios), median_interval(ratios, CONFIDENCE)
    return {
        "left_out": name,
        "ms": middle * base_ms,
        "less_ms": (1 - middle) * base_ms,
        "interval_ms": None if bounds is None else [(1 - bounds[1]) * base_ms, (1 - bounds[0]) * base_ms],
        "groups": len(ratios),
    }


def line(figures: dict[str, Any]) -> str:
    """A row of the table."""
    if "problem" in figures:
        return f"{figures['left_out']:36s}{figures['problem']}"
    low, high = figures["interval_ms"] or (float("nan"), float("nan"))
    return (
        f"{figures['left_out']:36s}{figures['ms']:8.4f}{figures['less_ms']:+9.4f}   {low:+.4f} to {high:+.4f}"
    )


if __name__ == "__main__":
    typer.run(main)
