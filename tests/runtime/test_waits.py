"""CTAs that gave up waiting: the record becomes a sentence, once a call, a check, or nobody after reset, finds it."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.runtime import Device, Plan, dispatch, plan, waits
from kernwright.runtime import state as kept
from kernwright.runtime.errors import CtasApart
from kernwright.runtime.waits import WaitRecord
from kernwright.table import CtaRecord

GPU = Device("sm_90", 132, "NVIDIA H200", 0)
RECORD = CtaRecord(("failures", "cta", "row", "branch", "expected", "seen"), "row {row} of branch {branch}")
FAILED = [3, 17, 315, 2, 9, 8]
SENTENCE = (
    "candidate control gave up: its CTA 17 waited in vain for row 315 of branch 2 of call 9, and last saw that of "
    "call 8; 2 more waits failed."
)


def state_with(words: list[int]) -> torch.Tensor:
    state = torch.zeros(96, dtype=torch.uint8)
    state[32 : 32 + 4 * len(words)] = torch.tensor(words, dtype=torch.int32).view(torch.uint8)
    return state


def test_a_failure_is_a_sentence_with_a_remedy() -> None:
    with pytest.raises(CtasApart) as caught:
        WaitRecord(state_with(FAILED), 32, "control", RECORD).check()
    assert str(caught.value).startswith(SENTENCE)
    assert str(caught.value).endswith("then call reset() of the plan")


def test_a_record_without_fields_of_its_own_says_that_a_cta_was_waited_for() -> None:
    with pytest.raises(
        CtasApart, match="its CTA 17 waited in vain for another CTA of call 9, and last saw that of call 8"
    ):
        WaitRecord(state_with([1, 17, 9, 8]), 32, "control", CtaRecord()).check()


def test_the_plan_of_a_dispatch_module_has_the_record_of_its_family(
    make: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "load", lambda *_: make.FakeModule([]))
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: 7)
    monkeypatch.setattr(plan, "device_query", lambda: None)
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    named = bound.plan_named("small", "control", "sm_90", "combine", GPU)
    assert named._state_kind.record == RECORD


def test_generations_are_unsigned() -> None:
    with pytest.raises(CtasApart, match="of call 4294967295, and last saw that of call 2147483648"):
        WaitRecord(state_with([1, 0, 0, 0, -1, -(2**31), 0, 0]), 32, "control", RECORD).check()


@pytest.mark.parametrize("words", [[0] * 8, [1, 17, 315, 2, 0, 0, 0, 0]])
def test_no_failure_and_one_that_is_still_being_written(words: list[int]) -> None:
    WaitRecord(state_with(words), 32, "control", RECORD).check()


def test_a_call_looks_at_most_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    state = state_with([0] * 8)
    record = WaitRecord(state, 32, "control", RECORD)
    state.copy_(state_with(FAILED))
    record.poll()
    now[0] += waits.LOOK_SECONDS / 2
    record.poll()
    now[0] += waits.LOOK_SECONDS
    with pytest.raises(CtasApart):
        record.poll()


def test_a_plan_looks_checks_and_resets(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call raises for a call before it on the same stream; while a capture lasts nothing is looked at."""
    launches: list[Any] = []
    made: list[torch.Tensor] = []

    def on_cpu(nbytes: int, _device: str) -> torch.Tensor:
        made.append(torch.zeros(nbytes, dtype=torch.uint8))
        return made[-1]

    for name, value in (("stream_query", lambda: lambda _: 7), ("device_query", lambda: None)):
        monkeypatch.setattr(plan, name, value)
    monkeypatch.setattr(kept, "zeroed", on_cpu)
    monkeypatch.setattr(plan, "capture_number", lambda _: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(waits, "LOOK_SECONDS", -1.0)
    found = make.candidate("control")
    kernel = replace(
        found.kernels["combine"], args=("residual", "block", "injection", "x", "words", "record")
    )
    found = replace(
        found,
        kernels={**found.kernels, "combine": kernel},
        state={"words": ((4,), "int64"), "record": ((8,), "int32")},
    )
    work = make.workload(found)
    request = (
        make.dispatch_of(work)
        ._operator("hyper_connection")
        .request_for({**work.fields, "tokens": 1}, "combine")
    )
    combine = Plan(
        found, "sm_90", "combine", request.signature, GPU, make.FakeModule(launches), record=RECORD
    )
    inputs = make.tensors(kind="combine")[:3]
    combine.check()
    combine.reset()
    for _ in range(2):
        combine(inputs)
    state = made[0]
    state[256 : 256 + 4 * len(FAILED)] = torch.tensor(FAILED, dtype=torch.int32).view(torch.uint8)
    state[0] = 1
    monkeypatch.setattr(plan, "capturing", lambda: True)
    combine(inputs)
    monkeypatch.setattr(plan, "capturing", lambda: False)
    with pytest.raises(CtasApart, match="CTA 17"):
        combine(inputs)
    with pytest.raises(CtasApart, match="CTA 17"):
        combine.check()
    assert len(launches) == 3
    combine.reset()
    assert not state.any()
    combine(inputs)
    combine.check()
    assert len(launches) == 4
