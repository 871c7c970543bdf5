"""The op end to end on two ranks over Gloo: both paths, every layout, quantisation, installation, torch.compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernwright.families.linear_all_reduce.op import traceable
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule
from kernwright.runtime.traced import graph_name

WORKER = Path(__file__).parent / "worker.py"
SCHEDULE = str(SliceSchedule("sliced_nccl", (1, 1), min_m=16))


def ran(folder, backend):
    """What each of the two ranks found out."""
    results = [folder / f"rank{rank}.json" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(folder / "store"), str(result), backend],
            env=os.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, result in enumerate(results)
    ]
    said = [process.communicate(timeout=250)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    return [json.loads(result.read_text()) for result in results]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of two ranks, with models traced but not compiled."""
    return ran(tmp_path_factory.mktemp("ranks"), "aot_eager")


@pytest.mark.long
def test_compiled_by_inductor(tmp_path):
    assert [rank["alike"] for rank in ran(tmp_path, "inductor")] == [[True] * 4] * 2


@pytest.mark.parametrize("what", ["torch.float16", "torch.bfloat16", "torch.float32"])
def test_every_number_of_rows_and_slices(found, what):
    """0 rows, 1, fewer than slices; a ragged N: the exact sum on the plain path and four sliced ones."""
    assert [rank[what] for rank in found] == [[], []]


@pytest.mark.parametrize("what", ["bias", "layouts", "leading dimensions"])
def test_what_a_call_may_look_like(found, what):
    """A bias is added once; x may be transposed, strided, of any leading dimensions."""
    assert [rank[what] for rank in found] == [[], []]


def test_fp8(found):
    for rank in found:
        for name, (error, lost, wanted) in rank["fp8"].items():
            assert 0 < error < 4e-3
            assert lost == wanted == name.startswith("nan")


def test_a_shape_of_the_library(found):
    """On a CPU nothing of ours serves, and the reasons say so."""
    for rank in found:
        explained, error, fallbacks = rank["library"]
        lines = explained.splitlines()
        assert lines[0] == (
            "bf16-w5120-k4096-m3-tp2, kind linear, on cpu, policy measured: reference (contract tolerance)"
        )
        assert (
            "  - bf16-w5120-k4096-m1to1023-tp2 serial: the device is cpu; this candidate is built for sm_90"
            in lines
        )
        assert (
            "  - bf16-w5120-k4096-m2048to4095-tp2 copies_4: m is 3; this candidate serves 2048 to 4095"
            in lines
        )
        assert lines[-1] == (
            "  = reference: torch's GEMM, then the plain all-reduce of its products: at most 3.9e-03 of the sum of "
            "absolute values away from the exact sum (bfloat16, 2 ranks)"
        )
        assert error < 4e-3
        assert fallbacks["device"] >= 1
        assert rank["absence"] == "the ranks work on cpu tensors, and channels are memory of GPUs"


def test_scratch_is_allocated_once_for_the_largest_call(found):
    for rank in found:
        before, after = rank["scratch"]
        assert before == after == 2 * 64 * 24 * 4  # and a preallocated one


def test_installation(found):
    for rank in found:
        routed, skipped = rank["installed"]
        assert routed == ["o_proj", "down_proj"]
        assert skipped == {
            "biased": "it has a bias, which serving engines add in different ways",
            "kept": "it doesn't reduce its own result",
        }
        without_records = rank["unforced"]
        assert without_records["o_proj"] == "the dispatch table has no workload of its shape"
        assert len(without_records) == 4


def test_results_are_the_same_with_the_feature_off_on_compiled_and_off_again(found):
    """`fullgraph=True`: a graph break would be an error."""
    assert [rank["alike"] for rank in found] == [[True] * 4] * 2


def test_compiled_code_may_call_the_op_of_a_group_that_nobody_has_made(found):
    assert [rank["direct"] for rank in found] == [True, True]


def test_a_process_that_loads_a_graph_makes_its_groups_again(found):
    """A name holds all that defines a group; only the communicator has to be there."""
    for rank in found:
        near, anew, unknown = rank["by name"]
        assert (near, anew) == (True, True)
        assert unknown.startswith("no communicator is called 'comm9'; there are comm0")


def test_what_a_graph_cannot_hold_is_a_sentence():
    with pytest.raises(
        ValueError, match=r"comm is a Nameless without a name, .*; make it by dispatch\.communicator"
    ):
        graph_name(type("Nameless", (), {})())
    with pytest.raises(
        ValueError, match=r"force is .*, and a graph holds no schedule; force a candidate by its name"
    ):
        traceable(SliceSchedule("sliced_nccl", (1, 1)))
    assert graph_name(SimpleNamespace(torch_name="comm0")) == "comm0"
    assert (traceable("sm_8"), traceable(None)) == ("sm_8", None)


def test_state_tells_what_is_installed(found):
    for rank in found:
        on, off = rank["state"]
        assert off == {"installed": []}
        layers = {"layers": ["o_proj", "down_proj"], "world_size": 2, "forced": SCHEDULE, "decisions": {}}
        assert on == {"installed": [layers]}
