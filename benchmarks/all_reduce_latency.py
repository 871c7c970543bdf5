"""How long an all-reduce takes: our routes and as dispatched, NCCL, PyTorch's symmetric-memory ops.

A captured graph holds 20 calls; entries take turns, and a sample is that of the slowest rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as distributed
import torch.distributed._symmetric_memory as symmetric
from _all_reduce_routes import plan_of_route
from kernwright.evidence.graphs import Graph, capture, replay_ms
from kernwright.evidence.ranks import slowest
from kernwright.generated import dispatch
from kernwright.runtime.communicator.group import GroupCommunicator

CALLS = 20
"""In a graph."""
PEERS = ("NCCL", "PyTorch one_shot", "PyTorch two_shot")
ROUTES = ("tagged_words", "one_stage", "two_stage")

Entry = Callable[[], Any]


def entries(numel: int, dtype: torch.dtype, comm: GroupCommunicator) -> dict[str, Entry]:
    """Everything that can reduce such a payload, by name."""
    mine = torch.randn(numel, device=comm.device).to(dtype)
    out = torch.empty_like(mine)
    found: dict[str, Entry] = {}
    for route in ROUTES:
        try:
            plan = plan_of_route(route, numel, dtype, comm=comm)
        except ValueError:
            continue  # more than its packets carry
        found[route] = lambda plan=plan: plan([mine], [out])
    found["dispatched"] = lambda: dispatch.all_reduce(mine, comm=comm, out=out)
    found["dispatched symmetric"] = _symmetric(numel, dtype, comm)
    return found | peers(numel, dtype, comm)


def peers(numel: int, dtype: torch.dtype, comm: GroupCommunicator) -> dict[str, Entry]:
    """NCCL in place, and PyTorch's ops on its symmetric memory, which need no copy."""
    device, found = comm.device, {}
    mine = torch.randn(numel, device=device).to(dtype)
    found["NCCL"] = lambda: distributed.all_reduce(mine, group=comm.group)
    if dtype != torch.float16:  # PyTorch's take bfloat16 and float32 alone
        shared = symmetric.empty(numel, dtype=dtype, device=device)
        shared.copy_(mine)
        group = comm.group if comm.group is not None else distributed.group.WORLD
        symmetric.rendezvous(shared, group)
        name = group.group_name
        found["PyTorch one_shot"] = lambda: torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name)
        found["PyTorch two_shot"] = lambda: torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", name)
    return found


def _symmetric(numel: int, dtype: torch.dtype, comm: GroupCommunicator) -> Entry:
    def run() -> Any:
        acquired = dispatch.acquire_outputs([(numel,)], dtype, comm=comm)
        return dispatch.all_reduce_symmetric(acquired, comm=comm)

    return run


def measure(calls: dict[str, Entry], groups: int, replays: int) -> dict[str, dict[str, float]]:
    """Microseconds a call, by entry: median, quartiles."""
    graphs: dict[str, Graph[Any]] = {}
    for name, run in calls.items():
        try:
            graphs[name] = capture(lambda run=run: [run() for _ in range(CALLS)])
        except (RuntimeError, ValueError) as error:  # an op that this torch or this machine lacks
            graphs.pop(name, None)
            if distributed.get_rank() == 0:
                print(f"  {name} can't be captured: {str(error).splitlines()[0]}", flush=True)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for graph in graphs.values():
        slowest(replay_ms(graph, replays))
    for index in range(groups):
        order = list(graphs) if index % 2 == 0 else list(reversed(graphs))
        for name in order:
            distributed.barrier()
            samples[name].append(1000 * slowest(replay_ms(graphs[name], replays)) / CALLS)
    return {name: _summary(values) for name, values in samples.items()}


def _summary(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"us": round(middle, 3), "low": round(low, 3), "high": round(high, 3)}


def table(
    payloads: list[tuple[str, int]],
    dtypes: list[torch.dtype],
    comm: GroupCommunicator,
    groups: int,
    replays: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A row a payload and dtype; payloads are (label, elements)."""
    rows = []
    for dtype in dtypes:
        for label, numel in payloads:
            found = measure(entries(numel, dtype, comm), groups, replays)
            size = numel * dtype.itemsize
            best = min((found[name]["us"] for name in PEERS[1:] if name in found), default=None)
            ratio, symmetric_ratio = (
                None if best is None else round(found[name]["us"] / best, 3)
                for name in ("dispatched", "dispatched symmetric")
            )
            rows.append(
                {
                    "payload": label,
                    "bytes": size,
                    "dtype": str(dtype).removeprefix("torch."),
                    "entries": found,
                    "dispatched_over_best_pytorch": ratio,
                    "dispatched_symmetric_over_best_pytorch": symmetric_ratio,
                }
            )
            figures = "  ".join(f"{name} {value['us']:.2f}" for name, value in found.items())
            say(
                f"{label} {rows[-1]['dtype']} {size / 1024:.1f} KiB: {figures}; "
                f"over best PyTorch: dispatched {ratio}, symmetric {symmetric_ratio}"
            )
    return rows


def thresholds(rows: list[dict[str, Any]], dtype: str) -> dict[str, int | None]:
    """From which payload on the next route is the fastest and stays so: what a spec's [[threshold]] says."""
    own = sorted((row for row in rows if row["dtype"] == dtype), key=lambda row: row["bytes"])
    found: dict[str, int | None] = {"one_stage": None, "two_stage": None}
    for position, route in ((1, "one_stage"), (2, "two_stage")):
        for index, row in enumerate(own):
            later = own[index:]
            if all(_fastest(entry) >= position for entry in later):
                found[route] = row["bytes"]
                break
    return found


def _fastest(row: dict[str, Any]) -> int:
    times = [row["entries"].get(route, {"us": float("inf")})["us"] for route in ROUTES]
    return times.index(min(times))
