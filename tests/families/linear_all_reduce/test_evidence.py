"""The common path on row-parallel linears: cases, the emulator's gate, ranks that can't run, records of a cell."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.evidence.executable import ExecutableEvidence
from kernwright.evidence.family_evidence import (
    ChannelEvidence,
    IntervalEvidence,
    evidence_of,
)
from kernwright.evidence.health import Snapshot, UnderPowerCap, problem
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.session import Session
from kernwright.evidence.tolerance import NearTruth, ToleranceEvidence
from kernwright.evidence.verify import Wanted, verify_one
from kernwright.evidence.verify_emulated import verify_emulated
from kernwright.families.linear_all_reduce.evidence import EVIDENCE
from kernwright.families.linear_all_reduce.inputs import VALUE_KINDS
from kernwright.generated.dispatch import TABLE
from kernwright.generator import plan_generation, write_generation
from kernwright.runtime.device import fake
from kernwright.specs import find_workspace

HERE = Path(__file__).parent
CPU = torch.device("cpu")
H200 = fake("sm_90", 132, "NVIDIA H200")
FP8 = """family = "linear_all_reduce"
name = "fp8"
[workload]
dtype = ["float16", "bfloat16"]
world_size = 2
width = 32
k = 48
m = { min = 1, max = 64 }
channel_rows = 64
quantisation = "fp8_per_token"
nonfinite = "NONFINITE"
[[candidate]]
name = "serial"
arch = ["sm_90"]
route = "serial"
gemm = "scaled_mm"
[[candidate]]
name = "copies"
arch = ["sm_90"]
route = "sliced_copy_engine"
gemm = "scaled_mm"
slices = 3
ctas = 2
threads = 32
"""
REDUCING = {"whole", "few", "one", "two", "between"}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """What passed is remembered nowhere else; cubins aren't needed."""
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A workspace of small linears, generated: unquantised on two and four ranks, and FP8 on two."""
    root = tmp_path_factory.mktemp("linears") / "workspace"
    shutil.copytree(HERE / "miniature", root / "specs")
    for nonfinite in ("nan", "clean"):
        text = FP8.replace("NONFINITE", nonfinite).replace('"fp8"', f'"fp8_{nonfinite}"')
        (root / "specs" / f"fp8_{nonfinite}.toml").write_text(text)
    (root / "kernwright.toml").write_text("")
    write_generation(plan_generation(find_workspace(root)))
    return root


@pytest.fixture(scope="module")
def session(root):
    return Session.open(find_workspace(root))


def named(session, spec, start):
    return next(w for w in session.workloads([]) if w.spec == spec and w.label.startswith(start))


def verified(session, work, tmp_path, *candidates, cases=()):
    wanted = Wanted(candidates, (), cases)
    return verify_emulated(session.dispatch, EVIDENCE, work, wanted, tmp_path / "failures")


# ---- cases ----


def test_it_is_evidence_of_every_kind(session):
    assert evidence_of(session.family(session.workloads([])[0])) is EVIDENCE
    for protocol in (ChannelEvidence, IntervalEvidence, ToleranceEvidence, ExecutableEvidence):
        assert isinstance(EVIDENCE, protocol)


@pytest.mark.parametrize("work", [w for w in TABLE.workloads if w.family == "linear_all_reduce"], ids=str)
def test_cases_lie_in_their_cell_and_reach_its_ends(work):
    cases = list(EVIDENCE.cases(work))
    low, high = work.fields["m"]
    rows = {case.at for case in cases}
    assert {low, high, *EVIDENCE.timed_at(work)} <= rows
    assert all(low <= m <= high for m in rows)
    assert any(m % 2 for m in rows)
    assert {kind for candidate in work.candidates for kind in candidate.steps} == {"linear"}
    assert {case.kind for case in cases} == {"linear"}
    assert {case.inputs for case in cases} == {*VALUE_KINDS, "wrap"}
    assert {case.inputs for case in cases if case.exact_sums} == {"small", "zeros", "wrap"}
    assert [case.inputs for case in cases if case.on_emulator] == ["small", "wrap"]
    assert len({case.name for case in cases}) == len(cases)


def test_only_whole_numbers_that_nobody_quantises_are_exact(session):
    assert not any(case.exact_sums for case in EVIDENCE.cases(named(session, "fp8_nan", "bf16")))


def test_records_are_of_the_rows_that_prefill_has():
    at = {w.label: EVIDENCE.timed_at(w) for w in TABLE.workloads if w.spec == "linear_all_reduce_7168"}
    assert list(at.values()) == [[256, 512], [1024], [2048], [4096], [8192, 16384]]


@pytest.mark.parametrize(
    ("spec", "start"),
    [("mini", "fp16"), ("mini", "bf16-w24-k48-m16to64-tp4"), ("fp8_nan", "bf16"), ("fp8_clean", "fp16")],
)
def test_oracle_fp64_and_torch_agree(session, spec, start):
    """Exactly on whole numbers; Inf and NaN stay in their rows, or go where the quantisation sends them."""
    work = named(session, spec, start)
    near = NearTruth(EVIDENCE, work, work.control)
    for case in EVIDENCE.cases(work):
        given = EVIDENCE.tensors(work, case, CPU)
        ranks, m = given["x"].shape[:2]
        assert (ranks, m) == (work.fields["world_size"], case.at)
        stored = near.expected(replace(case, exact_sums=True), given)["result"]
        truth = EVIDENCE.truth(work, case, given)["result"]
        eager = EVIDENCE.eager(work, case, given)["result"]
        if case.exact_sums:
            assert torch.equal(stored.double(), truth)
            assert torch.equal(eager, stored)
        spoilt = sorted(truth.isfinite().logical_not().any(1).nonzero().flatten().tolist())
        lost = case.inputs == "nonfinite" and work.fields["nonfinite"] == "nan"
        assert spoilt == (sorted({0, m - 1}) if lost else [])
        for found in (stored, eager) if spec == "mini" else (stored,):
            assert near.compare(
                replace(case, exact_sums=False), "eager", {"result": found}, {"result": truth}
            ).exact


def test_whole_numbers_are_compared_bit_for_bit(session):
    """One value that is off by one unit lies far within 4e-3 of all of them together."""
    work = named(session, "mini", "bf16-w24-k48-m16to64-tp2")
    near = NearTruth(EVIDENCE, work, work.control)
    case = next(case for case in EVIDENCE.cases(work) if case.inputs == "small" and case.at == 64)
    right = near.expected(case, EVIDENCE.tensors(work, case, CPU))
    assert near.compare(case, "eager", right, right).exact
    wrong = {"result": right["result"].clone()}
    wrong["result"][40, 3] += 2**-4
    found = near.compare(case, "eager", wrong, right)
    assert (found.mismatches, found.first.index) == (1, (40, 3))
    assert near.compare(replace(case, exact_sums=False), "eager", wrong, right).exact


# ---- verify on the emulator ----


def test_the_emulator_runs_every_kernel_of_ours(session, tmp_path):
    work = named(session, "mini", "bf16-w24-k48-m16to64-tp2")
    results = {result.candidate: result for result in verified(session, work, tmp_path)}
    for name in REDUCING:
        assert (results[name].failure, results[name].gate.cases, results[name].against) == (
            "",
            2,
            "array oracle",
        )
        assert results[name].gate.values == 2 * 2 * 6 * 24
    for name in ("serial", "nccl"):
        assert results[name].skipped == (
            f"candidate {name} of {work.label} has no kernel of ours, and the emulator runs no library; verify it "
            "with --on cuda"
        )
    assert all(result.cached for result in verified(session, work, tmp_path) if not result.skipped)


@pytest.mark.parametrize("spec", ["fp8_nan", "fp8_clean"])
def test_a_quantisation_runs_with_and_without_a_reduction(session, tmp_path, spec):
    work = named(session, spec, "fp16")
    every = tuple(case.name for case in EVIDENCE.cases(work))
    results = {result.candidate: result for result in verified(session, work, tmp_path, cases=every)}
    assert [result.failure for result in results.values()] == ["", ""]
    rows = sum(2 * min(6, case.at) for case in EVIDENCE.cases(work))
    assert results["serial"].gate.values == rows * (48 + 1)
    assert results["copies"].gate.values == rows * (48 + 1 + 32)


def planted(session, work, candidate, edit, folder):
    """The workload with a candidate whose text is changed, as its table would have it."""
    build = candidate.builds["sm_90"]
    root = session.dispatch.table.root
    text = (root / build.source).read_text()
    assert edit[0] in text
    changed = root / build.source.replace(".cu", f"_{folder}.cu")
    changed.write_text(text.replace(*edit))
    digest = hashlib.sha256(changed.read_bytes()).hexdigest()
    wrong = replace(build, source=str(changed.relative_to(root)), sha256=digest)
    other = replace(candidate, builds={"sm_90": wrong})
    return replace(
        work, candidates=tuple(other if entry is candidate else entry for entry in work.candidates)
    )


@pytest.mark.parametrize(
    ("spec", "name", "edit"),
    [
        ("mini", "two", ("rank == rank_base ? own", "rank == 0 ? own")),
        ("mini", "one", ("result + begin_at", "result")),
        ("mini", "few", ("PARTIALS_AT + at,", "PARTIALS_AT,")),
        ("fp8_nan", "serial", ("448", "447")),
    ],
)
def test_a_planted_wrong_candidate_is_rejected(session, tmp_path, spec, name, edit):
    work = named(session, spec, "bf16-w24-k48-m16to64-tp2" if spec == "mini" else "bf16")
    candidate = next(entry for entry in work.candidates if entry.name == name)
    (result,) = verified(session, planted(session, work, candidate, edit, f"{name}_wrong"), tmp_path, name)
    assert not result.passed
    assert result.gate.mismatches
    document = json.loads((result.artefact / "failure.json").read_text())
    assert f"--candidate {name} --arch sm_90 --case linear:" in document["command"]
    assert np.load(result.artefact / "inputs.npz").files


def test_a_candidate_that_runs_into_a_fault_is_reported(session, tmp_path):
    """It waits for nobody who comes: every rank's result is spoilt."""
    work = named(session, "mini", "bf16-w24-k48-m16to64-tp2")
    candidate = next(entry for entry in work.candidates if entry.name == "two")
    edit = ("__nv_atomic_store_n(flag, value", "if (false) __nv_atomic_store_n(flag, value")
    (result,) = verified(session, planted(session, work, candidate, edit, "deaf"), tmp_path, "two")
    assert not result.passed
    assert result.failure.startswith(f"{work.label}, candidate two, sm_90: ")


# ---- ranks ----


def test_local_ranks_say_what_they_cannot_run(session):
    """The library's all-reduce needs a process group; nothing is run, and nothing is silent."""
    work = named(session, "mini", "bf16-w24-k48-m16to64-tp2")
    comm = EmulatedCommunicator(session.dispatch.table, 2, specs=["mini"])
    place = RankContext(CPU, comm)
    cases = list(EVIDENCE.cases(work))
    for name, route in (("serial", "serial"), ("nccl", "sliced_nccl")):
        candidate = next(entry for entry in work.candidates if entry.name == name)
        result = verify_one(session.dispatch, EVIDENCE, work, candidate, "sm_90", place, cases, None)
        assert result.skipped == (
            f"{name} of {work.label} can't run as local ranks: route {route} reduces in a process group, and ranks "
            "that share a process have none; start it with `torchrun --nproc-per-node 2 -m kernwright ...`"
        )
        assert not result.passed


def test_a_channel_after_its_last_epoch(session):
    work = named(session, "mini", "bf16-w24-k48-m16to64-tp2")
    wrap = next(case for case in EVIDENCE.cases(work) if case.inputs == "wrap")
    assert EVIDENCE.call_before(wrap) == 2**32 - 1
    words = np.zeros((2, work.channel["size"] // 4), np.int32)
    EVIDENCE.after_call(work, 2**32 - 1, words)
    assert words[0, work.channel["ticket"] // 4 :][:2].tolist() == [0, -1]
    assert not words[:, work.channel["departures"] // 4 : work.channel["flags"] // 4].any()
    assert not words[:, work.channel["scratch"] // 4 :].any()


class Capped:
    driver = "570.1"
    mhz = 1980

    def snapshot(self):
        self.mhz -= 300
        return Snapshot(foreign=(), sm_mhz=self.mhz, throttles=0x04, ecc_errors=0)


def test_large_gemms_may_run_into_the_power_cap():
    watch = UnderPowerCap(Capped())
    assert problem(watch.snapshot(), watch.snapshot()) is None
    assert problem(Capped().snapshot(), Capped().snapshot()) == "throttled by the power cap"
    hot = replace(watch.snapshot(), throttles=0x40)
    assert problem(hot, hot) == "throttled by hardware thermal limits"


@pytest.fixture(scope="module")
def measured(root, tmp_path_factory, cubin_cache):
    """What each of two ranks over Gloo has recorded."""
    folder = tmp_path_factory.mktemp("gloo")
    results = [folder / f"rank{rank}.json" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / "bench_worker.py", str(rank), folder / "store", root, result],
            env=os.environ | {"KERNWRIGHT_CACHE_DIR": str(cubin_cache)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, result in enumerate(results)
    ]
    said = [process.communicate(timeout=250)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    return [json.loads(result.read_text()) for result in results]


def test_ranks_of_a_job_make_the_records_of_a_cell(measured):
    """End to end, four calls, against the plain path; of the rows where a candidate gained least."""
    for rank in measured:
        assert [(r["candidate"], r["control"], r["verdict"]) for r in rank["records"]] == [
            ("serial", "serial", "no_difference"),
            ("nccl", "serial", "admitted"),
        ]
        serial, nccl = rank["records"]
        assert serial["timing"] is None
        assert (nccl["workload"], nccl["part"], nccl["cubin_sha256"]) == (
            "bf16-w24-k48-m16to64-tp2",
            None,
            None,
        )
        timing = nccl["timing"]
        assert (timing["scope"], timing["calls"], timing["flops"]) == ("end_to_end", 4, 2 * 4 * 64 * 24 * 48)
        assert nccl["gain"] == pytest.approx(0.1)
        assert {group["problem"] for group in timing["groups"]} == {None}
        assert rank["titles"][0].startswith(
            "bf16-w24-k48-m16to64-tp2, m at 16, on sm_90, 132 SMs, NVIDIA H200"
        )
        assert "the record of nccl is of m at 64, where it gained least" in rank["notes"]
        (bars,) = rank["bars"]
        assert (bars["nccl"], bars["serial"], bars["serial, NCCL"]) == (
            1.5,
            2.0,
            2.5,
        )  # of one number of rows
        assert min(rank["compared"].values()) > 1000


def test_what_a_job_without_a_channel_cannot_load_is_noted(measured):
    for rank in measured:
        assert rank["obstacle"] == "the ranks work on cpu tensors, and channels are memory of GPUs"
        for name in REDUCING:
            assert f"{name} can't be loaded here: {rank['obstacle']}" in rank["notes"]
