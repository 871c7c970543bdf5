"""Checks and measures the families of several ranks on however many GPUs there are, in one call.

    torchrun --nproc-per-node 2 benchmarks/wide.py --out figures/
    python benchmarks/wide.py --local 4 --out figures/      # ranks that share one GPU: checks alone

Writes `wide.json`: what was checked, wrong values, latencies with baselines. Exit status 1 if anything was wrong.
NVLink multicast stays off.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import all_reduce_checks
import all_reduce_latency
import hyper_connection_ranks
import torch
import torch.distributed as distributed
import typer
from kernwright.generated import dispatch
from kernwright.version import VERSION

ROWS = (1, 2, 4, 8, 16, 32, 128)
SWEEP_KIB = (14, 28, 56, 112, 224, 448, 896, 1792, 3584, 7168, 14336, 28672)
FAMILIES = ("all_reduce", "hyper_connection")
"""`linear_all_reduce` has a script of its own, which takes as long as both."""


def main(
    out: Annotated[Path, typer.Option(help="Folder for wide.json.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="Families; by default all.")] = None,
    checks: Annotated[bool, typer.Option(help="Check before measuring.")] = True,
    groups: Annotated[int, typer.Option(help="Samples of each entry.")] = 9,
    replays: Annotated[int, typer.Option(help="Graph replays in a sample.")] = 20,
    local: Annotated[list[int] | None, typer.Option(help="World sizes of ranks that share a GPU.")] = None,
    rows: Annotated[bool, typer.Option(help="Measure [M, 7168] and [M, 3584] + [M, 7168] as well.")] = True,
) -> None:
    """Run on every rank of the job, or on ranks that share a GPU."""
    if local:
        sys.exit(on_one_gpu(local, out))
    index = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(index)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", index))
    rank, size = distributed.get_rank(), distributed.get_world_size()

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    properties = torch.cuda.get_device_properties(index)
    document: dict[str, Any] = {
        "device": properties.name,
        "world_size": size,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "kernwright": VERSION,
        "calls_in_a_graph": all_reduce_latency.CALLS,
    }
    wrong = False
    for family in only or FAMILIES:
        if family not in FAMILIES:
            raise typer.BadParameter(f"{family}; allowed are {', '.join(FAMILIES)}", param_hint="--only")
        if family == "all_reduce":
            found = all_reduce(say, checks=checks, groups=groups, replays=replays, rows=rows)
        else:
            found = hyper_connection(say, checks=checks, groups=groups, replays=replays)
        document[family] = found
        wrong = wrong or any(entry["wrong_ranks"] for entry in found.get("checks", {}).values())
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        path = out / "wide.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
    sys.exit(1 if wrong else 0)


def on_one_gpu(world_sizes: list[int], out: Path) -> int:
    """The checks that local ranks can do, by world size; gives the exit status."""
    document: dict[str, Any] = {"device": torch.cuda.get_device_name(), "kernwright": VERSION}
    for size in world_sizes:
        comm = dispatch.local_communicator(size, "cuda")
        print(f"all_reduce: {size} local ranks, channels {', '.join(comm.channels)}", flush=True)
        with torch.no_grad():
            found = all_reduce_checks.run(all_reduce_checks.Ranks(comm), lambda text: print(text, flush=True))
        document[f"{size} ranks"] = found
        comm.check()
        comm.close()
    out.mkdir(parents=True, exist_ok=True)
    (out / "wide_local.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(
        any(
            entry["wrong_ranks"]
            for found in document.values()
            if isinstance(found, dict)
            for entry in found.values()
        )
    )


def all_reduce(say: Any, *, checks: bool, groups: int, replays: int, rows: bool) -> dict[str, Any]:
    """Checks, then a sweep of payloads, then the shapes of decode steps."""
    with torch.no_grad(), dispatch.communicator() as comm:
        say(
            f"all_reduce: {comm.world_size} ranks, backend {comm.backend}, channels {', '.join(comm.channels)}"
        )
        if not comm.channels:
            say(f"  no channel: {comm.absence('')}")
            return {"absence": comm.absence("")}
        document: dict[str, Any] = {"backend": comm.backend}
        if checks:
            document["checks"] = all_reduce_checks.run(all_reduce_checks.Ranks(comm), say)
        wide = [torch.bfloat16, torch.float16, torch.float32]
        sweep = [(f"{kib} KiB", kib * 512) for kib in SWEEP_KIB]
        document["sweep"] = all_reduce_latency.table(sweep, [torch.bfloat16], comm, groups, replays, say)
        found = all_reduce_latency.thresholds(document["sweep"], "bfloat16")
        document["thresholds"] = {"bfloat16": found}
        say(f"thresholds for bfloat16: {found}")
        if rows:
            shapes = [(f"[{m}, 7168]", m * 7168) for m in ROWS]
            shapes += [(f"[{m}, 3584] + [{m}, 7168]", m * 10752) for m in ROWS]
            document["rows"] = all_reduce_latency.table(shapes, wide, comm, groups, replays, say)
        comm.check()
    return document


def hyper_connection(say: Any, *, checks: bool, groups: int, replays: int) -> dict[str, Any]:
    """Routes against the control, then milliseconds of 96 boundaries."""
    with torch.no_grad(), dispatch.communicator() as comm:
        if not comm.channels:
            say(f"hyper_connection: no channel: {comm.absence('')}")
            return {"absence": comm.absence("")}
        found = hyper_connection_ranks.run(comm, say, checks=checks, groups=groups, replays=replays)
        comm.check()
    return found


if __name__ == "__main__":
    typer.run(main)
