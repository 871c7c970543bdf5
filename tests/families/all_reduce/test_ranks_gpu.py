"""The all-reduce on real GPUs: ranks that share one, and one rank a GPU, by the script that measures them too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernwright
import pytest

pytestmark = pytest.mark.gpu
CHECKOUT = Path(kernwright.__file__).resolve().parent
SCRIPT = CHECKOUT / "benchmarks" / "wide.py"
ON_SEVERAL = {
    "shapes and kinds",
    "every route",
    "special values",
    "10,000 replays",
    "skewed without waiting",
    "two streams",
    "overlapping graphs",
    "a rank stays away",
    "subgroups",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "4"},
    )


def wrong(found: dict[str, Any]) -> dict[str, Any]:
    return {name: entry["wrong_ranks"] for name, entry in found.items() if entry["wrong_ranks"]}


@pytest.mark.parametrize("world_size", [4, 8])
def test_local_ranks_in_one_cooperative_grid(world_size: int, tmp_path: Path) -> None:
    ran = run(str(SCRIPT), "--local", str(world_size), "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "wide_local.json").read_text())[f"{world_size} ranks"]
    assert set(found) == {"shapes and kinds", "every route", "special values", "1,000 replays"}
    assert wrong(found) == {}
    assert found["1,000 replays"]["replays"] == 1000
    assert found["shapes and kinds"]["calls"] > 100
    # All CTAs of all ranks must be resident: four ranks fit by every route, eight by tagged words at least.
    assert set(found["every route"]["not resident"]) <= (
        {"one_stage", "two_stage"} if world_size == 8 else set()
    )


def test_one_rank_a_gpu(tmp_path: Path) -> None:
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"this machine has {count} GPU; run it where there are two or more")
    ranks = 2 ** (count.bit_length() - 1)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    few = ("--no-rows", "--groups", "3", "--replays", "5")
    ran = run(*launcher, str(SCRIPT), "--only", "all_reduce", "--out", str(tmp_path), *few)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    found = json.loads((tmp_path / "wide.json").read_text())["all_reduce"]
    assert found["backend"] == "symmetric_memory"
    assert set(found["checks"]) == ON_SEVERAL
    assert wrong(found["checks"]) == {}
    assert found["checks"]["10,000 replays"]["replays"] == 10_000
    assert found["checks"]["overlapping graphs"]["outcome"] in ("Overlap", "PeerTimeout")
    assert {row["bytes"] for row in found["sweep"]} >= {14 * 1024, 28 * 1024 * 1024}
