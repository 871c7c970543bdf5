"""Ranks on real GPUs by the commands: local ranks that share one, and a job with a GPU a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from harness.paths import MINIATURE
from harness.workspaces import generated_workspace
from kernwright.evidence.commands import run_verify
from kernwright.ledger import check, read_records
from kernwright.specs import find_workspace

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
DTYPES = ("fp16", "bf16", "fp32")


@pytest.fixture
def mini(tmp_path):
    """A workspace of the small all-reduce, generated."""
    return generated_workspace(tmp_path / "ranks", MINIATURE)


def job(root, *words, ranks=2):
    """A command of this package on so many GPUs, in a workspace; skipped where there are fewer."""
    import torch

    count = torch.cuda.device_count()
    if count < ranks:
        pytest.skip(f"this machine has {count} GPU; run it where there are {ranks} or more")
    return subprocess.run(
        [sys.executable, *LAUNCHER, str(ranks), "-m", "kernwright", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=root,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "4",
            "TYPER_STANDARD_TRACEBACK": "1",
        },
    )


SHORT = tuple(zip(DTYPES, (2, 4, 8), strict=True))
"""Each dtype and each number of ranks once; the other pairs take minutes together."""
PAIRS = [
    pytest.param(dtype, ranks, marks=() if (dtype, ranks) in SHORT else pytest.mark.long)
    for dtype in DTYPES
    for ranks in (2, 4, 8)
]


@pytest.mark.parametrize(("dtype", "ranks"), PAIRS)
def test_local_ranks_of_the_miniature(mini, monkeypatch, dtype, ranks):
    """All cases, every candidate: three CTAs a rank fit on any GPU, so nothing may be skipped."""
    monkeypatch.chdir(mini)
    results = run_verify(find_workspace(mini), "cuda", [f"{dtype}-w56-tp{ranks}"], [], [], [], quiet=True)
    assert [(result.candidate, result.failure, result.skipped) for result in results] == [
        (name, "", "") for name in ("tagged", "narrow", "one", "two", "two_narrow")
    ]
    assert all(result.passed and result.gate.cases > 30 for result in results)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_local_ranks_of_the_library(tmp_path, monkeypatch, figures, ranks):
    """Payloads of up to 28 MiB; a candidate whose CTAs don't fit says so: many narrow ranks fit, few wide ones do."""
    monkeypatch.chdir(tmp_path)
    results = run_verify(
        find_workspace(), "cuda", [f"bf16-w7168-b4to29360128-tp{ranks}"], [], [], [], quiet=True
    )
    assert [result.failure for result in results] == [""] * len(results)
    ran = {result.candidate: result for result in results if not result.skipped}
    fit = {2: {"tagged_words", "tagged_narrow", "one_stage"}, 8: {"tagged_narrow"}}
    assert set(ran) >= fit.get(ranks, {"tagged_narrow", "one_stage", "two_stage"})
    for result in results:
        if result.skipped:
            assert "wait for each other" in result.skipped or "no payload_bytes of" in result.skipped
    figures[f"all-reduce as {ranks} local ranks"] = {
        name: {"cases": result.gate.cases, "values": result.gate.values, "seconds": result.seconds}
        for name, result in ran.items()
    }


def test_a_wrong_order_is_found_on_local_ranks(mini, monkeypatch):
    from kernwright.generator import plan_generation, write_generation
    from kernwright.generator.environment import TEMPLATES

    text = (TEMPLATES / "all_reduce" / "words.cuh.j2").read_text(encoding="utf-8")
    wrong = text.replace("elements_of(words[0])", "elements_of(words[WORLD_SIZE - 1])").replace(
        "elements_of(words[rank])", "elements_of(words[WORLD_SIZE - 1 - rank])"
    )
    assert wrong != text
    own = mini / "templates" / "all_reduce"
    own.mkdir(parents=True)
    (own / "words.cuh.j2").write_text(wrong, encoding="utf-8")
    write_generation(plan_generation(find_workspace(mini)))
    monkeypatch.chdir(mini)
    (result,) = run_verify(find_workspace(mini), "cuda", ["fp32-w56-tp4"], ["tagged"], [], [], quiet=True)[
        -1:
    ]
    assert not result.passed
    assert "values differ; outputs[" in result.problem


def test_a_job_verifies_every_ranks_output(mini):
    ran = job(mini, "verify", "--on", "cuda", "bf16-w56-tp2", "fp32-w56-tp2", "--json")
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[:6000]
    rows = json.loads(ran.stdout)
    assert [(row["candidate"], row["mismatches"]) for row in rows] == 2 * [
        (name, 0) for name in ("tagged", "narrow", "one", "two", "two_narrow")
    ]


def test_a_job_benches_parts_and_writes_records_that_dispatch_reads(mini):
    words = ("bench", "bf16-w56-tp2", "--groups", "7", "--replays", "5")
    ran = job(mini, *words)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[:6000]
    files = read_records(mini / "ledger" / "records")
    assert check(files) == []
    assert {(file.record.candidate, file.record.span) for file in files} == {
        ("tagged", (4, 511)),
        ("narrow", (4, 511)),
        ("one", (512, 1023)),
        ("two", (1024, 2048)),
        ("two_narrow", (1024, 2048)),
    }
    timed = next(file.record for file in files if file.record.candidate == "narrow")
    assert timed.exactness.exact
    assert timed.timing.calls == 20
    assert "NCCL" in timed.timing.baselines, ran.stdout
    again = job(mini, "generate", ranks=1)
    assert again.returncode == 0, again.stderr
    assert "part=(4, 511)" in (mini / "generated" / "dispatch.py").read_text()


def test_a_job_tunes_and_writes_thresholds(mini):
    import torch

    ran = job(mini, "tune", "bf16-w56-tp2", "--groups", "3", "--replays", "5", "--out", "curves")
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[:6000]
    text = (mini / "specs" / "mini.toml").read_text()
    assert f'device = "{torch.cuda.get_device_name(0)}"' in text
    assert "measured = true" in text
    (curve,) = (mini / "curves").iterdir()
    document = json.loads(curve.read_text())
    assert document["curve"]["sizes"] == [1024, 1536, 2048]
    assert all(time > 0.5 for time in document["curve"]["times"]["one_stage"])


def test_one_process_skips_what_needs_several(mini):
    ran = job(mini, "bench", "bf16-w56-tp2", ranks=1)
    assert ran.returncode != 0
    assert "has 2 ranks, and this job one process" in ran.stderr
