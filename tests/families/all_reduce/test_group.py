"""Communicators of process groups without GPUs: what ranks agree on, and torch.distributed as the fallback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernwright
import pytest
from kernwright.families.all_reduce.distance import library_distance
from kernwright.runtime import Disagreement
from kernwright.runtime.communicator.agreement import Statement, agree, obstacle
from kernwright.runtime.communicator.channel import ChannelPlan, channel_plans

PLAN = ChannelPlan("mini", {"record": 0, "capacity": 2048, "size": 9000}, frozenset({"a"}))

DIGESTS = dict.fromkeys(
    ("workloads", "builds", "schedules", "thresholds", "records"), f"9, digest {'f' * 64}"
)
GENERATED = "Give all ranks the same, generated from the same spec files and records"


def statements(count: int = 4) -> list[Statement]:
    gpus = [f"gpu{rank}" for rank in range(count)]
    return [
        Statement(
            "host boot",
            f"cuda:{rank}",
            gpus[rank],
            tuple(g for g in gpus if g != gpus[rank]),
            count,
            "sm_90, 132 SMs, NVIDIA H200",
            "any",
            30 * 10**9,
            (PLAN,),
            "measured",
            "kernwright 1",
            {"mini": DIGESTS},
        )
        for rank in range(count)
    ]


def changed(rank: int, **fields: Any) -> list[Statement]:
    found = statements()
    found[rank] = replace(found[rank], **fields)
    return found


def test_equal_ranks_agree_and_nothing_stands_in_their_way() -> None:
    agree(statements())
    assert obstacle(statements()) is None


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            changed(1, channels=(replace(PLAN, offsets={**PLAN.offsets, "size": 12000}),)),
            "ranks disagree on the size of channel mini: ranks 0, 2, 3: 9000 bytes; rank 1: 12000 bytes. Give all "
            "ranks the same, generated from the same spec files",
        ),
        (
            changed(0, channels=(replace(PLAN, offsets={**PLAN.offsets, "record": 64}),)),
            "ranks disagree on the layout of channel mini: rank 0: [",
        ),
        *(
            (
                changed(3, digests={"mini": {**DIGESTS, what: f"9, digest {'0' * 64}"}}),
                f"ranks disagree on the {what} of spec mini: ranks 0, 1, 2: 9, digest ffffffffffff; rank 3: 9, "
                f"digest 000000000000. {GENERATED}",
            )
            for what in DIGESTS
        ),
        (
            changed(0, digests={"mini": {**DIGESTS, "builds": f"9, digest {'f' * 63}0"}}),
            f"ranks disagree on the builds of spec mini: rank 0: 9, digest {'f' * 63}0; ranks 1, 2, 3: 9, digest "
            f"{'f' * 64}. {GENERATED}",
        ),
        (changed(3, digests={}), "ranks disagree on the specs: ranks 0, 1, 2: mini; rank 3: none"),
        (
            changed(1, kind="sm_90, 114 SMs, NVIDIA H100 PCIe"),
            "ranks disagree on the device: ranks 0, 2, 3: sm_90, 132 SMs, NVIDIA H200; rank 1: sm_90, 114 SMs, "
            "NVIDIA H100 PCIe. Take GPUs of one kind",
        ),
        (
            changed(1, policy="measured, strict"),
            "ranks disagree on the policy: ranks 0, 2, 3: measured; rank 1: measured, strict. Set the same on all",
        ),
        (
            changed(2, versions="kernwright 9"),
            "ranks disagree on the versions: ranks 0, 1, 3: kernwright 1; rank 2: kernwright 9. Install one version",
        ),
        (changed(2, channels=()), "ranks disagree on the channels: ranks 0, 1, 3: mini; rank 2: none"),
        (changed(2, backend="ipc"), "ranks disagree on the backend: ranks 0, 1, 3: any; rank 2: ipc"),
        (changed(2, timeout_ns=10**9), "ranks disagree on the timeout: ranks 0, 1, 3: 30 s; rank 2: 1 s"),
        (changed(0, device="cpu"), "ranks disagree on the kind of device: rank 0: cpu; ranks 1, 2, 3: cuda"),
    ],
)
def test_a_disagreement_says_who_has_what(found: list[Statement], sentence: str) -> None:
    with pytest.raises(Disagreement) as caught:
        agree(found)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            changed(3, host="other boot"),
            "the ranks are on 2 hosts (ranks 0, 1, 2 on host; rank 3 on other), and",
        ),
        (
            [replace(s, device="cpu", gpu=None) for s in statements()],
            "the ranks work on cpu tensors, and channels are memory of GPUs",
        ),
        (changed(2, gpu="gpu0"), "ranks 0 and 2 share a GPU; take a local communicator for that"),
        (changed(1, peers=("gpu0", "gpu2")), "the GPU of rank 1 can't reach the memory of rank 3's"),
    ],
)
def test_what_keeps_ranks_from_sharing_memory(found: list[Statement], sentence: str) -> None:
    assert (obstacle(found) or "").startswith(sentence)


def test_the_librarys_channels() -> None:
    from kernwright.generated import dispatch

    table = dispatch.DISPATCH.table
    plans = {plan.name: plan for plan in channel_plans(table, 4)}
    assert {"all_reduce_7168", "all_reduce_3584_7168"} <= set(plans)
    assert plans["all_reduce_7168"].offsets["capacity"] == 29360128
    assert plans["all_reduce_7168"].capabilities == {"all_reduce_layout_3"}
    assert [plan.name for plan in channel_plans(table, 4, ["all_reduce_7168"])] == ["all_reduce_7168"]
    assert channel_plans(table, 3) == []


RANK = """
import json, sys
import torch, torch.distributed as dist
from kernwright.generated import dispatch as d
from kernwright.runtime import Disagreement

rank, count, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
out = {}
comm = d.communicator()
out["channels"], out["backend"] = comm.channels, comm.backend
def mine(dtype, *shape):
    return (torch.arange(1, 1 + torch.Size(shape).numel()).view(shape) * (rank + 1)).to(dtype)
total = sum(range(1, count + 1))
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
    x = mine(dtype, 3, 5)
    y = d.all_reduce(x, comm=comm)
    wanted = mine(torch.int64, 3, 5) // (rank + 1) * total
    out[str(dtype)] = [torch.equal(x, mine(dtype, 3, 5)), y.tolist() == wanted.tolist()]
half = torch.tensor([1.0, 2.0**-11, 2.0**-11, *[-0.0] * 5][rank : rank + 1]).half()
out["exact"] = d.all_reduce(half, comm=comm, exact=True).item()
out["sum2"] = d.all_reduce_sum2(mine(torch.float32, 4), mine(torch.float32, 4), comm=comm).tolist()
a, b = d.acquire_outputs([(2, 4), (3,)], torch.float32, comm=comm)
a.fill_(rank + 1); b.fill_(10 * (rank + 1))
ra, rb = d.all_reduce_symmetric((a, b), comm=comm)
out["symmetric"] = [ra.tolist(), rb.tolist()]
def consecutive(first, second):
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    return same and second.data_ptr() - first.data_ptr() == first.nbytes
out["consecutive"] = [consecutive(ra, rb)]
a, b = d.acquire_outputs([(2, 4), (3,)], torch.float16, comm=comm)
a.fill_(1); b.fill_(2)
ra, rb = d.all_reduce_symmetric((a, b), comm=comm, exact=True)
out["consecutive"] += [consecutive(ra, rb), rb.tolist() == [2.0 * count] * 3]
from kernwright.families.all_reduce.distance import library_distance
from kernwright.families.all_reduce.reference import local_sum, over_group
out["distance"] = {}
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    both = [torch.randn(2, 50000, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(count)]
    for kind, parts in (("staged", [a for a, _ in both]), ("sum2", [local_sum(a, b) for a, b in both])):
        a, b = both[rank]
        found = d.all_reduce(a, comm=comm) if kind == "staged" else d.all_reduce_sum2(a, b, comm=comm)
        truth, size = sum(p.double() for p in parts), sum(p.double().abs() for p in parts)
        worst = float(((found.double() - truth).abs() / size).max())
        out["distance"][f"{kind} {dtype}"] = [worst, library_distance(str(dtype)[6:], count)]
explanation = d.all_reduce.explain(mine(torch.float16, 4), comm=comm)
out["explain"] = [explanation.chosen, explanation.contract, str(explanation)]
out["explain_exact"] = d.all_reduce.explain(mine(torch.float16, 4), comm=comm, exact=True).contract
try:
    d.communicator(timeout_s=30.0 + rank)
except Disagreement as error:
    out["disagreement"] = str(error)
groups = [dist.new_group([r for r in range(count) if r % 2 == parity]) for parity in (0, 1)]
if count == 4:
    sub = d.communicator(groups[rank % 2])
    out["subgroup"] = [sub.rank, sub.world_size, d.all_reduce(mine(torch.float32, 2), comm=sub).tolist()]
comm.check(); comm.reset(); comm.close()
print(json.dumps(out))
dist.destroy_process_group()
"""


def ranks(count: int, tmp_path: Path) -> list[dict[str, Any]]:
    source = Path(kernwright.__file__).parents[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(count), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(count)
    ]
    try:
        return [json.loads(process.communicate(timeout=200)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.long), 3, 4, pytest.param(8, marks=pytest.mark.long)]
)
def test_torch_distributed_serves_where_no_channel_can_be(count: int, tmp_path: Path) -> None:
    found = ranks(count, tmp_path)
    total = count * (count + 1) // 2
    for rank, out in enumerate(found):
        assert (out["channels"], out["backend"]) == ([], None)
        for dtype in ("float16", "bfloat16", "float32", "int64"):
            assert out[f"torch.{dtype}"] == [True, True]
        # Two halves of the last place: added one at a time they vanish in FP16, in FP32 they don't.
        assert out["exact"] == (1.0 if count == 2 else 1.0009765625)
        assert out["sum2"] == [2.0 * total * index for index in (1, 2, 3, 4)]
        assert out["symmetric"] == [[[float(total)] * 4] * 2, [10.0 * total] * 3]
        assert out["consecutive"] == [True] * 3
        for kind, (worst, allowed) in out["distance"].items():
            # What `explain` states holds, and is no more than what roundings in another order reach.
            assert allowed / 4 < worst <= allowed, kind
        chosen, contract, text = out["explain"]
        assert (chosen, contract, out["explain_exact"]) == ("reference", "tolerance", "exact")
        stated = (
            f"isn't specified: at most {library_distance('float16', count):.1e} of the sum of absolute values"
        )
        assert stated in text
        reason = "the ranks work on cpu tensors" if count == 4 else "world_size is 3; this workload has 2"
        assert (reason in text) or "the device is cpu" in text
        assert out["disagreement"].startswith("ranks disagree on the timeout: rank 0: 30 s; rank 1: 31 s")
        if count == 4:
            own = [r + 1 for r in range(4) if r % 2 == rank % 2]
            assert out["subgroup"] == [rank // 2, 2, [float(sum(own)), 2.0 * sum(own)]]
