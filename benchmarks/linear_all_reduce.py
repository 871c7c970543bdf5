"""Figures of row-parallel linears on two GPUs that no record holds: every arm at every M in turns, and timelines.

    OUT=figures torchrun --nproc-per-node 2 benchmarks/linear_all_reduce.py
    torchrun --nproc-per-node 2 benchmarks/linear_all_reduce.py --rows 8192 --groups 5 --trace copies_4

Records are `kernwright bench`'s. This adds the bounds (the GEMM and NCCL alone) and what is dispatched, all in one
round, and writes `linear_all_reduce.json`. NVLink multicast stays off.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as distributed
import typer
from kernwright.evidence.graphs import Graph, capture, replay_ms
from kernwright.evidence.health import Monitor, UnderPowerCap, monitor, problem
from kernwright.evidence.ranks import agreed, job, slowest
from kernwright.families.linear_all_reduce.chain import LinearChain
from kernwright.families.linear_all_reduce.evidence import EVIDENCE, TIMED_AT
from kernwright.generated import dispatch
from kernwright.runtime.communicator.group import GroupCommunicator
from kernwright.table import Workload
from kernwright.version import VERSION

Call = Callable[[Any], Any]

SHAPES = ((5120, 4096), (7168, 9216), (5120, 12800))
"""N and K of one rank."""
SERIAL = ("serial, NCCL", "serial, two-shot", "serial, ours")
"""Arms that a sliced one has to beat."""
CONTROL = "serial, ours"
"""The plain path, as dispatched where nothing is admitted."""
BOUNDS = ("GEMM alone", "NCCL alone")
FUSED = "torch fused_matmul_reduce_scatter"


def main(
    out: Annotated[Path | None, typer.Option(help="Folder; by default $OUT, else figures.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="M; by default 256 to 16384.")] = None,
    groups: Annotated[int, typer.Option(help="Groups of samples, each with two of every arm.")] = 9,
    replays: Annotated[int, typer.Option(help="Graph replays in a sample.")] = 5,
    trace: Annotated[
        list[str] | None, typer.Option(help="Arms to write a timeline of, at 8192 rows.")
    ] = None,
) -> None:
    """Run on every rank of the job."""
    folder = out or Path(os.environ.get("OUT", "figures"))
    index = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(index)
    device = torch.device("cuda", index)
    with job() as ours, torch.no_grad(), dispatch.communicator(specs=_specs(), device=device) as comm:
        if not comm.channels:
            raise SystemExit(f"no channel: {comm.absence(_specs()[0])}")
        with monitor(device, ours.pids) as watch:
            bench = Bench(comm, watch, groups, replays)
            table = [bench.measure(*shape, m) for shape in SHAPES for m in rows or TIMED_AT]
        for arm in trace or ():
            for shape in SHAPES:
                timeline(comm, arm, *shape, folder)
        comm.check()
        if ours.rank == 0:
            document = {
                "device": torch.cuda.get_device_name(index),
                "world_size": ours.size,
                "torch": torch.__version__,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "kernwright": VERSION,
                "calls_in_a_graph": 4,
                "rows": table,
                "dispatched": verdict(table),
            }
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "linear_all_reduce.json"
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(f"wrote {path}", flush=True)


def timeline(comm: GroupCommunicator, arm: str, width: int, k: int, folder: Path, m: int = 8192) -> None:
    """What every stream and copy engine of rank 0 does when, in a run of four calls; chrome://tracing reads it."""
    arms = Arms.of(comm, width, k, m)
    call = arms.calls[arm]
    for _ in range(3):
        arms.chain.run(call)
    torch.cuda.synchronize()
    distributed.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for weight, *_ in arms.chain.weights[:2]:
            call([arms.chain.x, weight])
        torch.cuda.synchronize()
    if comm.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        name = arm.replace(" ", "_").replace(",", "")
        profile.export_chrome_trace(str(folder / f"trace_{name}_m{m}_w{width}_k{k}.json"))


def _specs() -> list[str]:
    """Ours first, and those of all_reduce, whose kernels may serve the plain path."""
    works = [_workload(width, k, 1) for width, k in SHAPES]
    own = [work.spec for work in works]
    return list(dict.fromkeys([*own, *EVIDENCE.channels(dispatch.DISPATCH.table.workloads, works[0])]))


def _workload(width: int, k: int, m: int) -> Workload:
    """The workload of the library that such a call belongs to, on two ranks."""
    return next(
        work
        for work in dispatch.DISPATCH.table.workloads
        if work.family == "linear_all_reduce"
        and (work.fields["width"], work.fields["k"], work.fields["world_size"]) == (width, k, 2)
        and work.fields["m"][0] <= m <= work.fields["m"][1]  # type: ignore[index, operator]
    )


@dataclass(frozen=True)
class Arms:
    """Every arm that can compute a shape here, by name, and the calls that it is timed with."""

    chain: LinearChain
    calls: dict[str, Call]

    @classmethod
    def of(cls, comm: GroupCommunicator, width: int, k: int, m: int) -> Arms:
        work = _workload(width, k, m)
        chain = EVIDENCE.chain_of_rank(work, comm.device, 0, comm.rank, m)
        assert isinstance(chain, LinearChain)
        alone = chain.x.new_empty(m, width)

        def nccl_alone(_: Any) -> list[torch.Tensor]:
            distributed.all_reduce(alone)
            return [alone]

        def ours(force: str | None, policy: str | None = None) -> Call:
            return lambda inputs: [dispatch.linear_all_reduce(*inputs, comm=comm, force=force, policy=policy)]

        calls: dict[str, Call] = {
            "GEMM alone": lambda inputs: [torch.mm(inputs[0], inputs[1].t(), out=alone)],
            "NCCL alone": nccl_alone,
            **{name: prepare(chain) for name, prepare in EVIDENCE.baselines(work).items()},
            CONTROL: ours(None, "control"),
            **{entry.name: ours(entry.name) for entry in work.candidates if entry.route != "serial"},
            "dispatched": ours(None),
        }
        return cls(chain, calls)


class Bench:
    """All arms of a shape, captured and timed in turns."""

    def __init__(self, comm: GroupCommunicator, watch: Monitor, groups: int, replays: int) -> None:
        self.comm, self.watch, self.groups, self.replays = comm, UnderPowerCap(watch), groups, replays

    def measure(self, width: int, k: int, m: int) -> dict[str, Any]:
        """A row of the table: microseconds a call and relative L2 from FP64, by arm."""
        arms = Arms.of(self.comm, width, k, m)
        graphs: dict[str, Graph[Any]] = {}
        errors: dict[str, float | str] = {}
        for name, call in arms.calls.items():
            graph, fault = None, None
            try:
                graph = capture(lambda call=call: arms.chain.run(call))
            except Exception as error:  # an op that this torch or this machine lacks
                fault = f"didn't run: {(str(error).strip() or repr(error)).splitlines()[0]}"
            fault = agreed(fault)  # an arm that one rank lacks would be waited for in vain
            if graph is None or fault is not None:
                errors[name] = fault or "didn't run"
                continue
            graph.replay()
            if name not in BOUNDS:
                errors[name] = distance(graph.result[-1][0], arms.chain, self.comm)
            graphs[name] = graph
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        faults: list[str | None] = []
        for graph in graphs.values():
            slowest(replay_ms(graph, self.replays))
        for _ in range(self.groups):
            before = self.watch.snapshot()
            for name in [*graphs, *reversed(graphs)]:  # a drift falls on both samples of an arm alike
                distributed.barrier()
                samples[name].append(slowest(replay_ms(graphs[name], self.replays)))
            faults.append(agreed(problem(before, self.watch.snapshot())))
        calls = arms.chain.calls
        times = {name: round(1000 * statistics.median(found) / calls, 1) for name, found in samples.items()}
        best = min((times[name] for name in SERIAL if name in times), default=None)
        if self.comm.rank == 0:
            figures = "  ".join(f"{name} {value:.0f}" for name, value in times.items())
            print(f"N {width} K {k} M {m}: {figures}; best serial {best}", flush=True)
        return {
            "width": width,
            "k": k,
            "m": m,
            "us": times,
            "quartiles": {
                name: [round(1000 * q / calls, 1) for q in statistics.quantiles(found, n=4)[::2]]
                for name, found in samples.items()
            },
            "relative_l2": errors,
            "best_serial": best,
            "invalid_groups": [fault for fault in faults if fault],
        }


def distance(result: torch.Tensor, chain: LinearChain, comm: GroupCommunicator) -> float:
    """Relative L2 of some rows of the last call from FP64, over all ranks' parts."""
    x, weight = chain.x, chain.weights[-1][0]
    some = torch.linspace(0, len(x) - 1, 64, device=x.device).long()
    truth = x[some].double() @ weight.double().t()
    distributed.all_reduce(truth, group=comm.group)
    return float((result[some].double() - truth).norm() / truth.norm())


def verdict(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As dispatched against the best serial arm, and the best arm of all: what must hold, and what could."""
    rows = []
    for row in table:
        if row["best_serial"] is None:
            continue
        sliced = {n: t for n, t in row["us"].items() if n not in (*SERIAL, *BOUNDS, FUSED, "dispatched")}
        name = min(sliced, key=sliced.__getitem__, default=None)
        rows.append(
            {
                "shape": [row["m"], row["width"], row["k"]],
                "dispatched_over_best_serial": round(row["us"]["dispatched"] / row["best_serial"], 4),
                "best": name,
                "best_serial_over_best": None
                if name is None
                else round(row["best_serial"] / sliced[name], 4),
            }
        )
    return rows


if __name__ == "__main__":
    typer.run(main)
