"""Row-parallel linears on real GPUs, one rank a GPU: `verify`, `bench`, the figures, and what only ranks can show."""

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
FIGURES = Path(kernwright.__file__).resolve().parent / "benchmarks" / "linear_all_reduce.py"
WORKER = Path(__file__).parent / "ranks_worker.py"
SMALL, LARGE = "bf16-w5120-k4096-m1to1023-tp2", "bf16-w5120-k4096-m2048to4095-tp2"
CANDIDATES = {"serial", "serial_sm", "nccl_4", "sm_4", "sm_8", "sm_16", "copies_4", "copies_between"}
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


def on_two(*command: str, folder: Path) -> str:
    """What two ranks print."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip(f"this machine has {torch.cuda.device_count()} GPU; run it where there are two")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = subprocess.run(
        [*launcher, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "4"},
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    return ran.stdout


def parsed(said: str) -> Any:
    """The JSON document among what was printed."""
    return json.loads(said[said.index("[") :])


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("linear")
    on_two(str(WORKER), str(folder / "checks.json"), folder=folder)
    found: dict[str, Any] = json.loads((folder / "checks.json").read_text())
    return found


def test_every_candidate_is_right(checks: dict[str, Any]) -> None:
    assert set(checks) == CHECKS
    assert {name: entry["wrong_ranks"] for name, entry in checks.items() if entry["wrong_ranks"]} == {}
    assert checks["rows"]["calls"] > 100
    assert checks["1,000 replays"]["replays"] == 1000
    assert checks["1,000 replays"]["graphs"] > 15


def test_a_compiled_block_is_right_whatever_the_verdict(checks: dict[str, Any]) -> None:
    """Without a graph break; the feature off, on, and switched under a graph that is compiled already."""
    assert checks["compiled block"]["calls"] == 27


def test_memory_does_not_grow(checks: dict[str, Any]) -> None:
    """64 layers, 200 rounds of calls."""
    grown = checks["memory"]["bytes"]
    assert {"serial", "nccl_4", "sm_8", "copies_4", "copies_between"} <= set(grown)
    assert set(grown.values()) == {0}


def test_verify_serves_every_candidate(tmp_path: Path) -> None:
    """Those that need a process group, too, which ranks in one process haven't."""
    said = on_two("-m", "kernwright", "verify", "--on", "cuda", SMALL, LARGE, "--json", folder=tmp_path)
    found = {(entry["workload"], entry["candidate"]): entry for entry in parsed(said)}
    assert {candidate for workload, candidate in found if workload == LARGE} >= CANDIDATES
    for entry in found.values():
        assert "skipped" not in entry
        assert (entry["mismatches"], entry["contract"]) == (0, "tolerance")
        assert entry["distances"]["result"]["candidate"] < 4e-3


def test_bench_times_every_candidate_against_the_plain_path(tmp_path: Path) -> None:
    few = ("--groups", "3", "--replays", "2", "--no-record", "--json")
    said = on_two("-m", "kernwright", "bench", LARGE, *few, folder=tmp_path)
    (document,) = parsed(said)
    assert document["scope"] == "end_to_end"
    assert {record["candidate"] for record in document["records"]} >= CANDIDATES
    assert {"serial, NCCL", "serial, two-shot", *CANDIDATES} <= set(document["milliseconds"])


def test_every_arm_was_timed_and_is_near_the_truth(tmp_path: Path) -> None:
    few = ("--rows", "256", "--rows", "4096", "--groups", "3", "--replays", "2")
    on_two(str(FIGURES), "--out", str(tmp_path), *few, folder=tmp_path)
    document = json.loads((tmp_path / "linear_all_reduce.json").read_text())
    for row in document["rows"]:
        arms = {"serial, NCCL", "serial, two-shot", "serial, ours", "dispatched", "GEMM alone", "NCCL alone"}
        assert arms <= set(row["us"])
        if row["m"] >= 2048:
            assert CANDIDATES - {"serial"} <= set(row["us"])
        errors = {name: error for name, error in row["relative_l2"].items() if isinstance(error, float)}
        assert max(errors.values()) < 4e-3
