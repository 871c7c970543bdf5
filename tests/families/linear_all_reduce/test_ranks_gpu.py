"""Row-parallel linears on real GPUs: one rank a GPU, by the script that measures them too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernwright
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
SCRIPT = Path(kernwright.__file__).resolve().parent / "benchmarks" / "linear_all_reduce.py"
CHECKS = {
    "rows",
    "1,000 replays",
    "two streams",
    "memory",
    "quantisation",
    "compiled block",
    "a rank stays away, sm_8",
    "a rank stays away, copies_4",
    "a rank stays away, copies_between",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script writes for one shape, checked, and timed a little."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip(f"this machine has {torch.cuda.device_count()} GPU; run it where there are two")
    out = tmp_path_factory.mktemp("linear")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    few = ("--rows", "256", "--rows", "4096", "--groups", "3", "--replays", "2")
    ran = subprocess.run(
        [*launcher, str(SCRIPT), "--out", str(out), *few],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "4"},
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    found: dict[str, Any] = json.loads((out / "linear_all_reduce.json").read_text())
    return found


def test_every_candidate_is_right(document: dict[str, Any]) -> None:
    checks = document["checks"]
    assert set(checks) == CHECKS
    assert {name: entry["wrong_ranks"] for name, entry in checks.items() if entry["wrong_ranks"]} == {}
    assert checks["rows"]["calls"] > 100
    assert checks["1,000 replays"]["replays"] == 1000
    assert checks["1,000 replays"]["graphs"] > 15


def test_a_compiled_block_is_right_whatever_the_verdict(document: dict[str, Any]) -> None:
    """Without a graph break; the feature off, on, and switched under a graph that is compiled already."""
    assert document["checks"]["compiled block"]["calls"] == 27


def test_memory_does_not_grow(document: dict[str, Any]) -> None:
    """64 layers, 200 rounds of calls."""
    grown = document["checks"]["memory"]["bytes"]
    assert {"serial", "nccl_4", "sm_8", "copies_4", "copies_between"} <= set(grown)
    assert set(grown.values()) == {0}


def test_every_arm_was_timed_and_is_near_the_truth(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        arms = {"serial, NCCL", "serial, two-shot", "serial, ours", "dispatched", "GEMM alone", "NCCL alone"}
        assert arms <= set(row["us"])
        if row["m"] >= 2048:
            assert {"nccl_4", "sm_4", "sm_8", "sm_16", "copies_4", "copies_between"} <= set(row["us"])
        errors = {name: error for name, error in row["relative_l2"].items() if isinstance(error, float)}
        assert max(errors.values()) < 4e-3
    assert len(document["records"]) > 10
