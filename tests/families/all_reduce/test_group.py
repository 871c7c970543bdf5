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
from kernwright.runtime import Disagreement
from kernwright.runtime.communicator.agreement import Statement, agree, obstacle
from kernwright.runtime.communicator.channel import ChannelPlan, channel_plans

PLAN = ChannelPlan("mini", {"record": 0, "capacity": 2048, "size": 9000}, frozenset({"a"}), "f" * 64)


def statements(count: int = 4) -> list[Statement]:
    gpus = [f"gpu{rank}" for rank in range(count)]
    return [
        Statement(
            "host boot",
            f"cuda:{rank}",
            gpus[rank],
            tuple(g for g in gpus if g != gpus[rank]),
            count,
            "sm_90, 132 SMs, NVIDIA H200, policy measured",
            "any",
            30 * 10**9,
            (PLAN,),
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
        (
            changed(3, channels=(replace(PLAN, sources="0" * 64),)),
            "ranks disagree on the spec of channel mini: ranks 0, 1, 2: sources ffffffffffff; rank 3: sources 000",
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
half = torch.tensor([1.0, 2.0**-11, 2.0**-11, -0.0][rank % 4 : rank % 4 + 1] or [0.0]).half()
out["exact"] = d.all_reduce(half, comm=comm, exact=True).item()
out["sum2"] = d.all_reduce_sum2(mine(torch.float32, 4), mine(torch.float32, 4), comm=comm).tolist()
a, b = d.acquire_outputs([(2, 4), (3,)], torch.float32, comm=comm)
a.fill_(rank + 1); b.fill_(10 * (rank + 1))
ra, rb = d.all_reduce_symmetric((a, b), comm=comm)
out["symmetric"] = [ra.tolist(), rb.tolist()]
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


@pytest.mark.parametrize("count", [3, 4])
def test_torch_distributed_serves_where_no_channel_can_be(count: int, tmp_path: Path) -> None:
    found = ranks(count, tmp_path)
    total = count * (count + 1) // 2
    for rank, out in enumerate(found):
        assert (out["channels"], out["backend"]) == ([], None)
        for dtype in ("float16", "bfloat16", "float32", "int64"):
            assert out[f"torch.{dtype}"] == [True, True]
        # Two halves of the last place: added one at a time they vanish in FP16, in FP32 they don't.
        assert out["exact"] == 1.0009765625
        assert out["sum2"] == [2.0 * total * index for index in (1, 2, 3, 4)]
        assert out["symmetric"] == [[[float(total)] * 4] * 2, [10.0 * total] * 3]
        chosen, contract, text = out["explain"]
        assert (chosen, contract, out["explain_exact"]) == ("reference", "tolerance", "exact")
        assert "torch.distributed.all_reduce, whose order of adding isn't specified" in text
        reason = "the ranks work on cpu tensors" if count == 4 else "world_size is 3; this workload has 2"
        assert (reason in text) or "the device is cpu" in text
        assert out["disagreement"].startswith("ranks disagree on the timeout: rank 0: 30 s; rank 1: 31 s")
        if count == 4:
            own = [r + 1 for r in range(4) if r % 2 == rank % 2]
            assert out["subgroup"] == [rank // 2, 2, [float(sum(own)), 2.0 * sum(own)]]
