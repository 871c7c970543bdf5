"""What one of two ranks measures over Gloo; run as `bench_worker.py RANK STORE ROOT RESULT`, the test reads RESULT.

Calls, comparisons and agreement between the ranks are real; times are scripted, because a CPU's say nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from kernwright.evidence.bench import Ledger, bench
from kernwright.evidence.benchmark_run import GpuBackend, Options
from kernwright.evidence.cells import cells
from kernwright.evidence.executable import executable
from kernwright.evidence.gate import Gate
from kernwright.evidence.health import Snapshot
from kernwright.evidence.rank_context import rank_context_of
from kernwright.evidence.ranks import RankJob, agreed
from kernwright.evidence.session import Session
from kernwright.evidence.tensors import bits_of
from kernwright.evidence.timing import Pace
from kernwright.evidence.verify import Verification
from kernwright.families.linear_all_reduce.chain import LinearChain
from kernwright.families.linear_all_reduce.evidence import LinearAllReduceEvidence
from kernwright.runtime.device import fake
from kernwright.specs import find_workspace

CPU = torch.device("cpu")
H200 = fake("sm_90", 132, "NVIDIA H200")
PACE = Pace(groups=3, replays=3, most=4)


@dataclass(frozen=True)
class ChainOfCpu(LinearChain):
    def read(self):
        return lambda: None


class Evidence(LinearAllReduceEvidence):
    """Timed at two numbers of rows, and told which candidate ran last."""

    called = "other"

    def timed_at(self, workload):
        low, high = workload.fields["m"]
        return [low, high]

    def chain_of_rank(self, workload, device, seed, rank, at):
        made = super().chain_of_rank(workload, device, seed, rank, at)
        return ChainOfCpu(made.x, made.weights)

    def executable(self, dispatch, workload, candidate, arch, at, here, place):
        made = super().executable(dispatch, workload, candidate, arch, at, here, place)

        def call(inputs):
            self.called = candidate.name
            return made(inputs)

        return call


class Graph:
    """A run that is done again at every replay, into the same tensors."""

    def __init__(self, name, run):
        self.name, self.result, self._run = name, run(), run

    def replay(self):
        for kept, again in zip(self.result or (), self._run() or (), strict=True):
            for tensor, fresh in zip(kept, again, strict=True):
                tensor.copy_(fresh)


class Watch:
    """A GPU that runs into its power cap, as large GEMMs let it."""

    driver = "570.1"

    def snapshot(self):
        return Snapshot(foreign=(), sm_mhz=1980, throttles=0, ecc_errors=0)


def main(rank: int, root: Path) -> dict[str, Any]:
    session, evidence = Session.open(find_workspace(root)), Evidence()
    work = next(w for w in session.workloads([]) if w.label == "bf16-w24-k48-m16to64-tp2")
    watch = Watch()
    compared: dict[str, int] = {}

    def verify(dispatch, _evidence, workload, candidate, arch, place, cases, _failures):
        """Every case of whole numbers, bit for bit, by calls of both ranks."""
        wrong = values = 0
        for case in (case for case in cases if case.exact_sums):
            run = executable(dispatch, evidence, workload, candidate, arch, case.kind, case.at, H200, place)
            given = evidence.tensors(workload, case, CPU)
            (found,) = run([tensor[rank] for tensor in given.values()])
            expected = evidence.expected(workload, case, bits_of(given))["result"]
            wrong += int((found.view(torch.int16).numpy().view("uint16") != expected).sum())
            values += found.numel()
        compared[candidate.name] = values
        problem = agreed(f"{wrong} wrong values" if wrong else None) or ""
        gate = Gate(len(cases), values, wrong, None)
        return Verification(workload.label, candidate.name, arch, "FP64", gate, (1,), 0.1, problem=problem)

    def capture(run):
        evidence.called = "other"
        run()
        return Graph(evidence.called, run)

    def sample(graph, _replays):
        rows = graph.result[0][0].shape[0] if graph.result else 0
        return {"serial": 2.0, "nccl": 1.5 if rows == 16 else 1.8}.get(graph.name, 2.5)

    records: list[Any] = []
    with rank_context_of(session.dispatch, evidence, work, CPU, RankJob(rank, 2, frozenset({rank}))) as place:
        found = [
            bench(
                session.dispatch,
                evidence,
                work,
                cell,
                watch,
                (),
                Options(PACE, blocks=3),
                backend=GpuBackend(lambda _: H200, verify, capture, sample, lambda _block: None),
                ledger=Ledger(records.append),
            )
            for cell in cells(work, place, "NVIDIA H200", evidence)
        ]
        obstacle = place.obstacle(work)
    return {
        "records": [record.model_dump(mode="json") for record in records],
        "titles": [result.title for result in found],
        "bars": [result.bars() for result in found],
        "notes": [note for result in found for note in result.notes],
        "compared": compared,
        "obstacle": obstacle,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = int(sys.argv[1])
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=own, world_size=2)
    with torch.inference_mode():
        result = main(own, Path(sys.argv[3]))
    Path(sys.argv[4]).write_text(json.dumps(result))
    distributed.destroy_process_group()
