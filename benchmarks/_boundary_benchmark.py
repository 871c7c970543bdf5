"""The FP16 boundary of the library and of `benchmarks/hopper`, as chains that benchmark scripts time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from kernwright.evidence.benchmark_run import GPU, BenchmarkRun, Options
from kernwright.evidence.cells import Cell
from kernwright.evidence.explain import load_dispatch
from kernwright.evidence.health import Monitor, monitor
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.timing import Pace, flat
from kernwright.families.hyper_connection import op as hyper_connection
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.runtime.dispatch import Dispatch
from kernwright.runtime.plan import Plan
from kernwright.specs import find_workspace

LIBRARY = "qwen38_flash_tp1"
HOPPER = Path(__file__).parent / "hopper"


@contextmanager
def watched() -> Iterator[Monitor]:
    """The first GPU, locked and watched."""
    with monitor(torch.device("cuda", 0)) as watch:
        yield watch


@dataclass(frozen=True)
class Boundaries:
    """A spec's run, with the dispatch module that has its candidates."""

    run: BenchmarkRun
    dispatch: Dispatch

    def programmatic(self) -> list[str]:
        """Candidates whose launches overlap with what is in front of them."""
        return [
            entry.name
            for entry in self.run.workload.candidates
            if all(kernel.programmatic for kernel in entry.kernels.values())
        ]

    def plan(self, name: str, *, plain: bool = False) -> Plan:
        """A candidate's plan; `plain` launches it with ordinary edges, whatever it could do."""
        run, table = self.run, self.dispatch.table
        candidate = next(entry for entry in run.workload.candidates if entry.name == name)
        if not plain:
            return run.call(candidate)
        kernels = {kernel: replace(made, programmatic=False) for kernel, made in candidate.kernels.items()}
        work = replace(run.workload, candidates=(run.control, replace(candidate, kernels=kernels)))
        alone = Dispatch(replace(table, workloads=(work,)))
        hyper_connection.OP(alone)
        return alone.plan_named(work.name, name, run.arch(candidate), run.chain.kind, run.here)


def boundaries(spec: str, watch: Monitor, groups: int, replays: int) -> Boundaries:
    """A chain of 96 FP16 boundaries, and what the control stores in it.

    Args:
        spec: the library's, or one of `benchmarks/hopper`, which must be generated.
        watch: the GPU's health.
        groups: valid ones wanted.
        replays: behind a sample.
    """
    workspace = find_workspace() if spec == LIBRARY else find_workspace(HOPPER)
    dispatch: Dispatch = load_dispatch(workspace).DISPATCH
    work = next(
        entry
        for entry in dispatch.table.workloads
        if entry.spec == spec and entry.fields["dtype"] == "float16"
    )
    options = Options(pace=Pace(groups, replays, 2 * groups))
    found = BenchmarkRun(
        dispatch, EVIDENCE, work, Cell(RankContext(torch.device("cuda", 0))), watch, options, GPU
    )
    plan = found.call(found.control)
    found.expected = [tensor.clone() for tensor in flat(found.chain.run(plan))]
    return Boundaries(found, dispatch)
