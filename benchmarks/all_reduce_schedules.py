"""Every schedule of the workspace `benchmarks/all_reduce` against PyTorch's ops and NCCL, in one job, alternating.

    (cd benchmarks/all_reduce && kernwright generate)
    torchrun --nproc-per-node 2 benchmarks/all_reduce_schedules.py --out figures/

Writes `all_reduce_schedules.json`: microseconds a call by payload and entry. Every schedule's sum is compared
with the right one before it is timed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import all_reduce_checks as checks
import all_reduce_latency as latency
import torch
import torch.distributed as distributed
import typer
from kernwright.evidence.explain import load_dispatch
from kernwright.runtime.communicator.group import GroupCommunicator
from kernwright.runtime.device import current, serves
from kernwright.specs import find_workspace

HERE = Path(__file__).parent / "all_reduce"
SIZES_KIB = (14, 112, 224, 448, 896, 1792, 3584, 7168, 14336, 28672)
KINDS = ("staged", "symmetric")


def schedules(
    dispatch: Any, comm: GroupCommunicator, numel: int, dtype: torch.dtype, kind: str
) -> dict[str, latency.Entry]:
    """A call by each candidate that carries such a payload."""
    (work,) = [w for w in dispatch.TABLE.workloads if w.fields["world_size"] == comm.world_size]
    here, size = current(comm.device), numel * dtype.itemsize
    generator = torch.Generator(comm.device).manual_seed(comm.rank)
    mine = torch.randn(numel, generator=generator, device=comm.device).to(dtype)
    everyone = [torch.empty_like(mine) for _ in range(comm.world_size)]
    distributed.all_gather(everyone, mine)
    expected, out = checks.in_rank_order(everyone), torch.empty_like(mine)
    if kind == "symmetric":
        # Plans read slot 0, which is what the first acquisition of a channel without any hands out.
        (view,) = dispatch.acquire_outputs([(numel,)], dtype, comm=comm)
        view.copy_(mine)
        dispatch.all_reduce_symmetric([view], comm=comm)
        comm.reset()
        view.copy_(mine)
        distributed.barrier()
        torch.cuda.synchronize()
    found: dict[str, latency.Entry] = {}
    for candidate in work.candidates:
        arch = serves(candidate.builds, here.arch)
        most = work.fields["packet_bytes"] if candidate.route == "tagged_words" else work.channel["capacity"]
        if arch is None or size > most:
            continue
        plan = dispatch.DISPATCH.plan_named(work.name, candidate.name, arch, kind, here, comm=comm, at=size)
        given = [mine] if kind == "staged" else []
        plan(given, [out])
        assert int(checks.different(out, expected)) == 0, f"{candidate.name}, {size} bytes, {kind}: wrong"
        found[candidate.name] = lambda plan=plan, given=given: plan(given, [out])
    return found


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    groups: Annotated[int, typer.Option(help="Samples of each entry.")] = 5,
    replays: Annotated[int, typer.Option(help="Graph replays in a sample.")] = 10,
) -> None:
    """Run on every rank of the job."""
    index = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(index)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", index))
    dispatch: Any = load_dispatch(find_workspace(HERE))
    rows = []
    with torch.no_grad(), dispatch.communicator() as comm:
        assert isinstance(comm, GroupCommunicator)
        assert comm.channels, comm.absence("")
        for kib in SIZES_KIB:
            numel = kib * 512
            for kind in KINDS:
                calls = schedules(dispatch, comm, numel, torch.bfloat16, kind)
                if kind == "staged":
                    calls |= latency.peers(numel, torch.bfloat16, comm)
                found = latency.measure(calls, groups, replays)
                rows.append({"bytes": 2 * numel, "kind": kind, "entries": found})
                if comm.rank == 0:
                    best = sorted(found.items(), key=lambda entry: entry[1]["us"])
                    print(kib, "KiB", kind, *(f"{n} {t['us']:.2f}" for n, t in best), sep="  ", flush=True)
        comm.check()
    if distributed.get_rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
        document = {"device": torch.cuda.get_device_name(index), "torch": torch.__version__, "rows": rows}
        (out / "all_reduce_schedules.json").write_text(
            json.dumps(document, indent=1) + "\n", encoding="utf-8"
        )
    distributed.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)
