"""The gate under a tolerance: FP64 instead of bits, what a record and `explain` say of it, who is never picked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.blocks import in_blocks
from kernwright.evidence import verify_emulated as verify_emulated_module
from kernwright.evidence.family_evidence import Case, NoEvidence
from kernwright.evidence.fuzz import fuzz_workload
from kernwright.evidence.gate import POISON
from kernwright.evidence.oracle.closeness import Bounds, distance, outside
from kernwright.evidence.provenance import exactness_of
from kernwright.evidence.tolerance import NearTruth
from kernwright.evidence.verify import Wanted
from kernwright.evidence.verify_emulated import verify_emulated
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.ledger import Closeness, Distance, Exactness, Group, Rule, Timing, judge
from kernwright.runtime.device import fake
from kernwright.specs import ToleranceSpec
from kernwright.table import DeviceKind, RecordLine

FP16 = "fp16-hc4-h256-n1to40-r64-tp1"
CASE = Case("boundary", "normal", 1, 2)
INF, NAN = float("inf"), float("nan")
H200 = DeviceKind("sm_90", 132, "NVIDIA H200")


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("bounds", "wrong"),
    [
        (Bounds(atol=0.25), [False, False, False, True]),
        (Bounds(rtol=0.125), [False, False, False, True]),
        (Bounds(atol=0.25, rtol=0.125), [False] * 4),
        (Bounds(relative_l2=0.13), [False] * 4),
        (Bounds(relative_l2=0.11), [True] * 4),
        (Bounds(atol=0.25, relative_l2=0.13), [False, False, False, True]),
    ],
)
def test_bounds(bounds: Bounds, wrong: list[bool]) -> None:
    """All that are stated hold; an L2 norm is of the whole tensor."""
    found, truth = torch.tensor([1.0, 0.0, 2.0, 2.5], dtype=torch.float16), doubles(1.0, 0.0, 2.0, 2.125)
    assert distance(found, truth) == pytest.approx(0.375 / (1 + 4 + 2.125**2) ** 0.5)
    assert outside(found, truth, bounds).tolist() == wrong


def test_what_isnt_a_number_is_compared_by_place() -> None:
    found = torch.tensor([INF, NAN, 1.0, INF, NAN, -INF], dtype=torch.float16)
    truth = doubles(INF, NAN, 1.0, -INF, 1.0, 2.0)
    assert outside(found, truth, Bounds(relative_l2=1.0)).tolist() == [False, False, False, True, True, True]
    assert outside(found, truth, Bounds(rtol=1.0)).tolist() == [False, False, False, True, True, True]
    assert distance(found, truth) == 0.0


def test_without_bounds() -> None:
    with pytest.raises(ValueError, match="states no bound; run `kernwright generate`"):
        Bounds.of({})


class Fixed:
    """A evidence whose truth is given."""

    def __init__(self, truth: dict[str, torch.Tensor], eager: dict[str, torch.Tensor]) -> None:
        self.truth, self.eager = lambda *_: truth, lambda *_: eager


def near(small: Any, found: list[float], truth: list[float]) -> tuple[NearTruth, Any]:
    evidence = Fixed({"x": doubles(*truth)}, {"x": torch.tensor([1.0, 2.0, 4.0]).half()})
    judge_of = NearTruth(evidence, small.workload(FP16), small.candidate(FP16, "wide"))  # type: ignore[arg-type]
    expected = judge_of.expected(CASE, {})
    return judge_of, judge_of.compare(
        CASE, "eager", {"x": torch.tensor(found).half(), "y": torch.zeros(1)}, expected
    )


def test_a_near_candidate_passes_and_both_distances_are_kept(small: Any) -> None:
    judge_of, gate = near(small, [1.0, 2.0, 4.0], [1.0, 2.0, 4.004])
    assert (gate.cases, gate.values, gate.mismatches, gate.exact) == (1, 3, 0, True)
    closeness = judge_of.closeness
    assert closeness.bounds == "relative_l2 = 0.008"
    assert list(closeness.distances) == ["x"]
    own = closeness.distances["x"]
    assert own.candidate == own.eager == pytest.approx(0.004 / (1 + 4 + 4.004**2) ** 0.5)


def test_a_far_candidate_fails_with_the_first_value(small: Any) -> None:
    _, gate = near(small, [1.0, 2.125, 4.0], [1.0, 2.0, 4.0])
    assert (gate.values, gate.mismatches) == (3, 3)
    assert str(gate.first).startswith("x[0] is 1.0 (0x3c00), expected 1.0")


def test_what_wasnt_written_is_wrong_even_where_nan_is_right(small: Any) -> None:
    judge_of, _ = near(small, [1.0, 2.0, NAN], [1.0, 2.0, NAN])
    found = torch.tensor([1.0, 2.0, 0.0]).half()
    found.view(torch.int16)[2] = POISON
    gate = judge_of.compare(CASE, "eager", {"x": found}, judge_of.expected(CASE, {}))
    assert gate.mismatches == 1


def test_a_replay_with_other_bits_is_wrong_however_near(small: Any) -> None:
    judge_of, _ = near(small, [1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
    other = {"x": torch.tensor([1.0, 2.0, 4.004]).half()}
    gate = judge_of.compare(CASE, "graph", other, judge_of.expected(CASE, {}))
    assert (gate.mismatches, gate.first is not None) == (1, True)


def test_a_family_without_fp64(small: Any) -> None:
    with pytest.raises(NoEvidence, match="has no FP64 reference: define truth and eager in its EVIDENCE"):
        NearTruth(object(), small.workload(FP16), small.candidate(FP16, "wide"))  # type: ignore[arg-type]


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was verified earlier is forgotten; what was compiled isn't."""
    monkeypatch.setattr(verify_emulated_module, "default_folder", lambda: tmp_path / "cache")


@pytest.mark.usefixtures("_cache")
def test_verify_on_the_emulator(small: Any, tmp_path: Path) -> None:
    """What passed says how near; a spec that asks for more than there is fails with an artefact."""
    work = small.workload("bf16-hc4-h256-n1to40-r64-tp1")
    wanted = Wanted(["wide"], (), ["boundary:normal:1:1", "final:normal:5:1"])
    (passed,) = verify_emulated(small.dispatch, EVIDENCE, work, wanted, tmp_path)
    assert (passed.passed, passed.against, passed.gate.cases) == (True, "FP64", 2)
    (again,) = verify_emulated(small.dispatch, EVIDENCE, work, wanted, tmp_path)
    assert (again.cached, again.closeness) == (True, passed.closeness)
    document = passed.to_json()
    assert document["contract"] == "tolerance"
    assert document["tolerance"] == {"relative_l2": 0.008}
    assert set(document["distances"]) == {"x", "y", "lora", "injection_out", "block_input"}
    assert set(document["distances"]["block_input"]) == {"candidate", "eager"}
    wide = next(c for c in work.candidates if c.name == "wide")
    strict = replace(
        work, candidates=(work.control, replace(wide, tolerance={"atol": 0.0, "relative_l2": 0.0}))
    )
    wanted = Wanted(["wide"], (), ["boundary:normal:2:40"])
    (failed,) = verify_emulated(small.dispatch, EVIDENCE, strict, wanted, tmp_path)
    assert not failed.passed
    assert "values lie outside atol = 0, relative_l2 = 0; " in failed.failure
    assert (failed.artefact / "inputs.npz").is_file()


def test_fuzz_compares_schedules_with_each_other(small: Any) -> None:
    work = small.workload("fp16-hc3-h64-n1to20-r32-tp1")
    found = fuzz_workload(small.dispatch, EVIDENCE, work, ["tensor_core"], 2, 0, sanitize=False)
    assert found
    assert all(result.problems == () and result.seeds == 2 for result in found)


def closeness() -> Closeness:
    distances = {"block_input": Distance(candidate=2.1e-4, eager=2.3e-4), "lora": Distance(candidate=1e-5)}
    return Closeness(tolerance=ToleranceSpec(relative_l2=8e-3), distances=distances)


def test_a_record_says_how_near() -> None:
    """The verdict is the rule's; the reason names the bounds and both distances."""
    distances = "block_input 2.10e-04 (torch eager 2.30e-04), lora 1.00e-05"
    near_fp64 = f"within relative_l2 = 0.008 of FP64 in 9 cases: {distances}"
    exactness = Exactness(cases=9, values=100, mismatches=0, against="FP64", closeness=closeness())
    verified = judge(exactness, None, Rule(), is_control=False)
    assert verified.reason == f"Only verified, not timed: {near_fp64}."
    groups = in_blocks(Group(control=(2.0, 2.0), candidate=(1.0, 1.0)))
    timed = judge(
        exactness, Timing(scope="chain", calls=96, replays=5, groups=groups), Rule(), is_control=False
    )
    assert (timed.verdict, timed.gain) == ("admitted", 0.5)
    assert timed.reason.endswith(f": wholly above +1.00%. It is {near_fp64}.")
    far = exactness.model_copy(update={"mismatches": 7, "first": "x[0]"})
    rejected = judge(far, None, Rule(), is_control=False)
    assert rejected.verdict == "rejected"
    assert (
        rejected.reason
        == "7 of 100 stored values lie outside relative_l2 = 0.008 of FP64 in 9 cases; first: x[0]."
    )


def test_the_gates_result_becomes_the_records(small: Any) -> None:
    judge_of, gate = near(small, [1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
    exactness = exactness_of(gate, "FP64", None, judge_of.closeness)
    assert exactness.exact
    assert exactness.closeness == judge_of.closeness
    assert not exactness_of(gate, "FP64", "its graph is empty", judge_of.closeness).exact


def decided(small: Any, *, exact: bool, verdict: str = "admitted") -> Any:
    """What serves 20 tokens where a record speaks of `wide`."""
    work, wide = small.workload(FP16), small.candidate(FP16, "wide")
    record = RecordLine(
        "wide",
        H200,
        wide.builds["sm_90"].code,
        exact=True,
        verdict=verdict,  # type: ignore[arg-type]
        gain=0.5,
        source="a.json",
        distances={"block_input": (2.1e-4, 2.3e-4), "lora": (1e-5, None)},
    )
    table = small.dispatch.table
    measured = replace(work, records=(record,))
    others = tuple(measured if w is work else w for w in table.workloads)
    dispatch = type(small.dispatch).__new__(type(small.dispatch))
    dispatch.__dict__.update(small.dispatch.__dict__)
    dispatch.table = replace(table, workloads=others)
    fields = {**work.fields, "tokens": 20}
    return dispatch.explain_request(
        "hyper_connection", fields, fake("sm_90", 132, "NVIDIA H200"), exact=exact
    )


def test_explain_says_how_near_and_exact_calls_never_take_it(small: Any) -> None:
    distances = "block_input 2.10e-04 (torch eager 2.30e-04), lora 1.00e-05"
    nearness = f"under a tolerance, relative_l2 0.008 from FP64: {distances}"
    taken = decided(small, exact=False)
    assert (taken.chosen, taken.contract) == ("wide", "tolerance")
    assert nearness in str(taken)
    refused = decided(small, exact=True)
    assert (refused.chosen, refused.contract) == ("replicated", "exact")
    assert "its contract is tolerance; exact=True was asked for" in str(refused)
    lost = decided(small, exact=False, verdict="rejected")
    assert (lost.chosen, lost.contract) == ("replicated", "exact")
    assert f"says rejected (gain +50.0% over the control); {nearness}" in str(lost)
