"""Checks and measures row-parallel linears with their all-reduce on two GPUs, every arm in one job, alternating.

    OUT=figures torchrun --nproc-per-node 2 benchmarks/linear_all_reduce.py
    torchrun --nproc-per-node 2 benchmarks/linear_all_reduce.py --rows 8192 --no-checks --groups 5

Writes `linear_all_reduce.json` and, for every cell, ledger records below `records/`. All records of a cell are
against its control, the plain path as dispatched, so that their gains can be compared; a candidate's is taken at
those rows of the cell where it gained least. The other serial arms are their baselines. Exit status 1 if anything was
wrong. NVLink multicast stays off.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import linear_all_reduce_checks as checking
import torch
import torch.distributed as distributed
import torch.distributed._symmetric_memory as symmetric
import typer
from kernwright.evidence.graphs import Graph, capture, replay_ms
from kernwright.evidence.health import Monitor, Snapshot, monitor, problem
from kernwright.evidence.provenance import toolkit
from kernwright.evidence.ranks import agreed, slowest
from kernwright.generated import dispatch
from kernwright.generator import builds, plan_generation
from kernwright.ledger import Exactness, Group, Record, RecordedDevice, Timing, make_record
from kernwright.ledger.writer import write_record
from kernwright.runtime.communicator.group import GroupCommunicator
from kernwright.runtime.device import current
from kernwright.runtime.loader import machine_code
from kernwright.specs import find_workspace
from kernwright.version import VERSION

SHAPES = ((5120, 4096), (7168, 9216), (5120, 12800))
"""N and K of one rank."""
ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384)
SPECS = ("linear_all_reduce_5120", "linear_all_reduce_7168")
CALLS = 4
"""Of a graph, each with a weight of its own."""
POWER_CAP = 0x04
"""Large GEMMs run into it on a healthy GPU; alternating lets all arms run into it alike."""
SERIAL = ("serial, NCCL", "serial, two-shot", "serial, ours")
"""Arms that a sliced one has to beat."""
CONTROL = "serial, ours"
"""The plain path, as dispatched where nothing is admitted."""
BOUNDS = ("GEMM alone", "NCCL alone")
FUSED = "torch fused_matmul_reduce_scatter"

Entry = Callable[[int], Any]
"""One call with the weight of that number."""


def main(
    out: Annotated[Path | None, typer.Option(help="Folder; by default $OUT, else figures.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="M; by default 256 to 16384.")] = None,
    checks: Annotated[bool, typer.Option(help="Check before measuring.")] = True,
    times: Annotated[bool, typer.Option(help="Measure.")] = True,
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
    distributed.init_process_group("nccl", device_id=device)

    def say(text: str) -> None:
        if distributed.get_rank() == 0:
            print(text, flush=True)

    document: dict[str, Any] = {
        "device": torch.cuda.get_device_name(index),
        "world_size": distributed.get_world_size(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "kernwright": VERSION,
        "calls_in_a_graph": CALLS,
    }
    wrong = False
    with torch.no_grad(), dispatch.communicator(specs=_specs()) as comm:
        say(f"{comm.world_size} ranks, backend {comm.backend}, channels {', '.join(comm.channels)}")
        if not comm.channels:
            raise SystemExit(f"no channel: {comm.absence(SPECS[0])}")
        if checks:
            with dispatch.communicator(specs=[SPECS[0]], timeout_s=1.0) as late:
                document["checks"] = checking.run(comm, late, *SHAPES[0], say)
            wrong = any(entry["wrong_ranks"] for entry in document["checks"].values())
        if times:
            with monitor(device, frozenset(_pids())) as watch:
                bench = Bench(comm, watch, groups, replays, say)
                document["rows"] = [bench.measure(*shape, m) for shape in SHAPES for m in rows or ROWS]
                document["dispatched"] = verdict(document["rows"])
                if comm.rank == 0:
                    written = bench.write(folder / "records", document["rows"])
                    document["records"] = [str(path.relative_to(folder)) for path in written]
        for arm in trace or ():
            for shape in SHAPES:
                timeline(comm, arm, *shape, folder)
        comm.check()
    if distributed.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "linear_all_reduce.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {path}")
    distributed.barrier()
    distributed.destroy_process_group()
    sys.exit(1 if wrong else 0)


def timeline(comm: GroupCommunicator, arm: str, width: int, k: int, folder: Path, m: int = 8192) -> None:
    """What every stream and copy engine of rank 0 does when, in two calls; chrome://tracing reads it."""
    run = entries(comm, width, k, m).calls[arm]
    for _ in range(3):
        run(0)
    torch.cuda.synchronize()
    distributed.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run(0)
        run(1)
        torch.cuda.synchronize()
    if comm.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        name = arm.replace(" ", "_").replace(",", "")
        profile.export_chrome_trace(str(folder / f"trace_{name}_m{m}_w{width}_k{k}.json"))


def _specs() -> list[str]:
    """Ours, and those of all_reduce, whose kernels may serve the plain path."""
    ranks = distributed.get_world_size()
    works = [w for w in dispatch.DISPATCH.table.workloads if w.channel and w.fields["world_size"] == ranks]
    return list(dict.fromkeys(w.spec for w in works if w.family in ("all_reduce", "linear_all_reduce")))


def _pids() -> list[int]:
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, os.getpid())
    return found


class Bench:
    """All arms of a shape, captured, timed in turns, and made into records."""

    def __init__(
        self, comm: GroupCommunicator, watch: Monitor, groups: int, replays: int, say: Callable[[str], None]
    ) -> None:
        self.comm, self.watch, self.groups, self.replays, self.say = comm, watch, groups, replays, say
        self.samples: dict[tuple[int, int, int], dict[str, list[float]]] = {}
        self.faults: dict[tuple[int, int, int], list[str | None]] = {}

    def measure(self, width: int, k: int, m: int) -> dict[str, Any]:
        """A row of the table: microseconds a call and relative L2 from FP64, by arm."""
        arms = entries(self.comm, width, k, m)
        weights, x = arms.weights, arms.x
        graphs: dict[str, Graph[Any]] = {}
        errors: dict[str, float | str] = {}
        for name, run in arms.calls.items():
            graph, fault = None, None
            try:
                graph = capture(lambda run=run: [run(index) for index in range(CALLS)])
            except Exception as error:  # an op that this torch or this machine lacks
                fault = f"can't be run: {(str(error).strip() or repr(error)).splitlines()[0]}"
            fault = agreed(fault)  # an arm that one rank lacks would be waited for in vain
            if graph is None or fault is not None:
                errors[name] = fault or "can't be run"
                continue
            graph.replay()
            if name not in BOUNDS:
                errors[name] = distance(graph.result[-1], x, weights[-1], self.comm)
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
            faults.append(agreed(_fault(before, self.watch.snapshot())))
        self.samples[width, k, m], self.faults[width, k, m] = samples, faults
        times = {name: round(1000 * statistics.median(found) / CALLS, 1) for name, found in samples.items()}
        best = min((times[name] for name in SERIAL if name in times), default=None)
        figures = "  ".join(f"{name} {value:.0f}" for name, value in times.items())
        self.say(f"N {width} K {k} M {m}: {figures}; best serial {best}")
        return {
            "width": width,
            "k": k,
            "m": m,
            "us": times,
            "quartiles": {
                name: [round(1000 * q / CALLS, 1) for q in statistics.quantiles(found, n=4)[::2]]
                for name, found in samples.items()
            },
            "relative_l2": errors,
            "best_serial": best,
            "invalid_groups": [fault for fault in faults if fault],
        }

    def write(self, folder: Path, table: list[dict[str, Any]]) -> list[Path]:
        """A record for every candidate of every cell that was measured."""
        identities = {
            (b.workload.spec, b.workload.workload.label(), b.candidate.candidate.name): b.source.identity
            for b in builds(plan_generation(find_workspace()))
        }
        written = []
        for work in dispatch.DISPATCH.table.workloads:
            if work.spec not in SPECS or work.fields["world_size"] != self.comm.world_size:
                continue
            low, high = work.fields["m"]
            here = [
                row
                for row in table
                if (row["width"], row["k"]) == (work.fields["width"], work.fields["k"])
                and low <= row["m"] <= high
                and CONTROL in row["us"]
            ]
            for candidate in work.candidates:
                arm = CONTROL if candidate.route == "serial" else candidate.name
                rows = [row for row in here if arm in row["us"]]
                if rows and len(rows) == len(here):
                    worst = max(rows, key=lambda row: row["us"][arm] / row["us"][CONTROL])
                    identity = identities[work.spec, work.label, candidate.name]
                    written.append(write_record(folder, self.record(work, candidate, arm, worst, identity)))
        return written

    def record(self, work: Any, candidate: Any, arm: str, row: dict[str, Any], identity: str) -> Record:
        """What was measured of a candidate at the rows where it did worst."""
        key = (row["width"], row["k"], row["m"])
        samples, here = self.samples[key], current(self.comm.device)
        arch = next(iter(candidate.builds))
        build, root = candidate.builds[arch], dispatch.DISPATCH.table.root
        code = machine_code(root, build, arch, "cubin") if candidate.kernels else None
        error = row["relative_l2"][arm]
        near = isinstance(error, float) and error <= 4e-3
        pairs = [samples[name][2 * i : 2 * i + 2] for i in range(self.groups) for name in (CONTROL, arm)]
        timing = Timing(
            scope="end_to_end",
            calls=CALLS,
            replays=self.replays,
            groups=tuple(
                Group(control=tuple(pairs[2 * i]), candidate=tuple(pairs[2 * i + 1]), problem=fault)
                for i, fault in enumerate(self.faults[key])
            ),
            flops=2 * CALLS * row["m"] * row["width"] * row["k"],
            peers={name: tuple(found) for name, found in samples.items() if name not in (CONTROL, arm)},
        )
        assert here.arch is not None
        return make_record(
            measured_at=datetime.now(UTC).replace(microsecond=0).isoformat(),
            family=work.family,
            spec=work.spec,
            workload=work.label,
            candidate=candidate.name,
            control=work.control.name,
            device=RecordedDevice(arch=here.arch, sm_count=here.sm_count, name=here.name),
            toolkit=toolkit(self.watch.driver, code.nvrtc if code else None),
            source_sha256=build.sha256,
            control_source_sha256=work.control.builds[arch].sha256,
            cubin_sha256=hashlib.sha256(code.data).hexdigest() if code else None,
            identity=identity,
            exactness=Exactness(
                cases=1,
                values=row["m"] * row["width"],
                mismatches=int(not near),
                against=f"FP64 within relative L2 0.004, at M = {row['m']}",
                first=None if near else f"relative L2 is {error}",
            ),
            timing=None if candidate is work.control else timing,
        )


def _fault(before: Snapshot, after: Snapshot) -> str | None:
    """As `health.problem`, but for the power cap and the clock that follows it."""
    calm = [replace(snapshot, throttles=snapshot.throttles & ~POWER_CAP) for snapshot in (before, after)]
    return problem(calm[0], replace(calm[1], sm_mhz=calm[0].sm_mhz))


class Arms:
    """Entries of a shape, with the tensors that they share."""

    def __init__(self, x: torch.Tensor, weights: list[torch.Tensor]) -> None:
        self.x, self.weights = x, weights
        self.calls: dict[str, Entry] = {}


def entries(comm: GroupCommunicator, width: int, k: int, m: int) -> Arms:
    """Every arm that can compute this shape here."""
    device, group = comm.device, distributed.group.WORLD
    generator = torch.Generator(device).manual_seed(comm.rank)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=device) / k**0.25).bfloat16()

    x, weights = drawn(m, k), [drawn(width, k) for _ in range(CALLS)]
    shared = symmetric.empty(m * width, dtype=torch.bfloat16, device=device)
    symmetric.rendezvous(shared, group)
    shared = shared.view(m, width)
    arms = Arms(x, weights)

    def nccl(index: int) -> torch.Tensor:
        result = torch.mm(x, weights[index].t())
        distributed.all_reduce(result)
        return result

    def two_shot(index: int) -> torch.Tensor:
        torch.mm(x, weights[index].t(), out=shared)
        return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group.group_name)

    def fused(index: int) -> torch.Tensor:
        part = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            x, weights[index].t(), "sum", 0, group.group_name
        )
        result = x.new_empty(m, width)
        distributed.all_gather_into_tensor(result, part)
        return result

    def ours(force: str | None, policy: str | None = None) -> Entry:
        return lambda index: dispatch.linear_all_reduce(
            x, weights[index], comm=comm, force=force, policy=policy
        )

    alone = x.new_empty(m, width)
    arms.calls |= {
        "GEMM alone": lambda index: torch.mm(x, weights[index].t(), out=alone),
        "NCCL alone": lambda _: distributed.all_reduce(alone),
        "serial, NCCL": nccl,
        "serial, two-shot": two_shot,
        CONTROL: ours(None, "control"),
        FUSED: fused,
    }
    for name in checking.names(width, k, comm.world_size):
        if name != "serial" and checking.serves(width, k, name, m):
            arms.calls[name] = ours(name)
    arms.calls["dispatched"] = ours(None)
    return arms


def distance(result: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, comm: GroupCommunicator) -> float:
    """Relative L2 of some rows from FP64, over all ranks' parts."""
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
