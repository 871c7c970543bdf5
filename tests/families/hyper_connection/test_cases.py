"""Cases of boundaries of several tokens, and of ranks that share a boundary."""

from __future__ import annotations

import pytest
import torch
from kernwright.evidence.cells import Cell, cells
from kernwright.evidence.family_evidence import Case, interval_of
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.verify import verify_one
from kernwright.evidence.verify_emulated import essential
from kernwright.families.hyper_connection.evidence import EVIDENCE, shape_of
from kernwright.families.hyper_connection.inputs import INPUT_KINDS
from kernwright.generated.dispatch import DISPATCH

CPU = torch.device("cpu")
WORKS = {work.name: work for work in DISPATCH.table.workloads}
ONE = WORKS["qwen38_flash_tp1/fp16-hc4-h2560-n1-r320-tp1"]
SEVERAL = next(work for work in WORKS.values() if work.spec == "qwen38_flash_n16")
SHARDED = next(work for work in WORKS.values() if work.spec == "qwen38_flash_tp4")


def test_one_token_has_the_cases_it_had():
    assert interval_of(ONE) is None
    names = [case.name for case in EVIDENCE.cases(ONE)]
    assert len(names) == 5 * len(INPUT_KINDS)
    assert names[2] == "boundary:normal:1"
    assert [case.name for case in essential(EVIDENCE.cases(ONE))] == [
        *(f"boundary:{inputs}:1" for inputs in INPUT_KINDS),
        "first:normal:3",
        "combine:normal:4",
        "final:normal:5",
    ]


def test_several_tokens_are_verified_at_both_ends_and_in_the_middle():
    low, high = interval_of(SEVERAL)
    listed = list(EVIDENCE.cases(SEVERAL))
    assert {case.at for case in listed} == {low, (low + high) // 2, high} == {2, 9, 16}
    emulated = essential(listed)
    assert [case.name for case in emulated if case.at == high] == [
        f"{kind}:normal:{seed}:16"
        for kind, seed in (("boundary", 1), ("first", 3), ("combine", 4), ("final", 5))
    ]
    assert [case.name for case in emulated if case.at == low] == [
        f"boundary:{inputs}:1:2" for inputs in INPUT_KINDS
    ]
    given = EVIDENCE.tensors(SEVERAL, Case("boundary", "normal", 1, 9), CPU)
    assert given["residual"].shape == (9, 4 * 2560)
    assert shape_of(SEVERAL).tokens == 2


def test_ranks_that_share_a_boundary_are_one_cell(monkeypatch):
    place = RankContext(CPU, object())
    assert list(cells(SHARDED, place, "NVIDIA H200")) == [Cell(place)]
    made = []
    monkeypatch.setattr(EVIDENCE.__class__, "chain", lambda *asked: made.append(asked[1:]))
    Cell(place).chain(EVIDENCE, SHARDED, 500)
    assert made == [(SHARDED, CPU, 500)]


def test_a_boundarys_ranks_need_a_gpu_each(monkeypatch):
    """Their kernels take one tensor of each kind, so the plan of local ranks isn't the op's."""
    monkeypatch.setattr(RankContext, "is_local", True)
    candidate = next(entry for entry in SHARDED.candidates if entry.capabilities)
    told = verify_one(
        DISPATCH, EVIDENCE, SHARDED, candidate, "sm_90", RankContext(CPU), list(EVIDENCE.cases(SHARDED)), None
    )
    assert not told.failure
    assert told.skipped == (
        f"{candidate.name} of {SHARDED.label} takes one tensor of each kind, so its ranks can't share a process "
        "here: verify it under torchrun, with a GPU a rank"
    )


@pytest.mark.parametrize(
    "work", [w for w in WORKS.values() if w.family != "linear_all_reduce"], ids=lambda work: work.name
)
def test_every_workload_of_the_library_that_is_verified_has_cases(work):
    """`linear_all_reduce` is measured by its own benchmark, which also writes its records."""
    from kernwright.families.all_reduce import evidence as all_reduce

    evidence = all_reduce.EVIDENCE if work.family == "all_reduce" else EVIDENCE
    listed = list(evidence.cases(work))
    assert len({case.name for case in listed}) == len(listed)
    assert 3 <= len(essential(listed)) <= 12
