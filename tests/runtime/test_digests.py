"""What ranks compare of their tables: every field that decides a route is in one digest, and in the right one."""

from __future__ import annotations

from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.runtime import Device
from kernwright.runtime import policy as policies
from kernwright.runtime.communicator import agreement
from kernwright.runtime.communicator.agreement import agree, statement
from kernwright.runtime.communicator.digests import route_digests
from kernwright.runtime.errors import Disagreement
from kernwright.table import Candidate, Part, Workload

CPU = torch.device("cpu")
OTHER: dict[str, Any] = {
    "name": "another",
    "route": "another",
    "contract": "tolerance",
    "kernels": {},
    "steps": {},
    "scratch": {"x": ((9,), "float16")},
    "scratch_by": "tokens",
    "state": {"x": ((9,), "float16")},
    "options": {"stages": 2},
    "arguments": {"x": "uint32"},
    "tolerance": {"atol": 1.0},
    "min_sms": 9,
    "capabilities": ("talks",),
}
WORKLOAD: dict[str, Any] = {
    "label": "another",
    "trees": {},
    "multiple": 2,
    "channel": {"record": 0, "size": 64},
    "fields": {"world_size": 4},
}


@pytest.fixture
def work(make: ModuleType) -> Workload:
    candidates = make.candidate("control"), make.candidate("fast")
    part = Part("replicated", 1, 1, None, False)
    made: Workload = make.workload(*candidates, world_size=4, records=(make.record("fast"),))
    return replace(made, parts=(part,))


def different(make: ModuleType, work: Workload, other: Workload) -> list[str]:
    """The digests in which two workloads of a spec differ."""
    one, two = (route_digests(make.table(entry), 4)["small"] for entry in (work, other))
    return [what for what in one if one[what] != two[what]]


def test_every_field_of_a_candidate_is_in_a_digest(make: ModuleType, work: Workload) -> None:
    assert set(OTHER) | {"builds"} == {field.name for field in fields(Candidate)}
    first, second = work.candidates
    for name, value in OTHER.items():
        other = replace(work, candidates=(first, replace(second, **{name: value})))
        wanted = ["builds", "schedules"] if name == "name" else ["schedules"]
        assert different(make, work, other) == wanted, name
    builds = {arch: replace(build, code="0" * 64) for arch, build in second.builds.items()}
    assert different(make, work, replace(work, candidates=(first, replace(second, builds=builds)))) == [
        "builds"
    ]
    swapped = replace(work, candidates=(second, first))
    assert different(make, work, swapped) == ["builds", "schedules"]  # the first is the control


def test_every_field_of_a_workload_is_in_a_digest(make: ModuleType, work: Workload) -> None:
    known = {"family", "spec", "candidates", "records", "parts", *WORKLOAD}
    assert known == {field.name for field in fields(Workload)}
    for name, value in WORKLOAD.items():
        assert "workloads" in different(make, work, replace(work, **{name: value})), name
    assert different(make, work, replace(work, records=())) == ["records"]
    assert different(make, work, replace(work, records=(make.record("fast", gain=0.2),))) == ["records"]
    part = replace(work.parts[0], high=2)
    assert different(make, work, replace(work, parts=(part,))) == ["thresholds"]


def test_other_world_sizes_do_not_count_and_workloads_without_a_channel_do(
    make: ModuleType, work: Workload
) -> None:
    alone = make.workload(make.candidate("control"), spec="alone")
    assert list(route_digests(make.table(work, alone), 4)) == ["small"]
    assert not work.channel


def stated(make: ModuleType, work: Workload) -> Any:
    return statement(CPU, "any", 10**9, (), route_digests(make.table(work), 4))


def test_a_statement_says_on_which_device_and_under_which_policy(
    make: ModuleType, work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They decide who serves a call, as the table does."""
    mine = stated(make, work)
    agree([mine, stated(make, work)])
    with policies.under("control"):
        other = stated(make, work)
    with pytest.raises(
        Disagreement, match=r"on the policy: rank 0: measured; rank 1: control\. Set the same"
    ):
        agree([mine, other])
    monkeypatch.setattr(policies, "strict", lambda: True)
    with pytest.raises(Disagreement, match="on the policy: rank 0: measured; rank 1: measured, strict"):
        agree([mine, stated(make, work)])
    monkeypatch.undo()
    monkeypatch.setattr(agreement, "current", lambda _: Device("sm_90", 114, "NVIDIA H100 PCIe"))
    with pytest.raises(Disagreement, match="on the device: rank 0: cpu; rank 1: sm_90, 114 SMs, NVIDIA H100"):
        agree([mine, stated(make, work)])
    monkeypatch.undo()
    monkeypatch.setattr(agreement, "VERSION", "9.9")
    with pytest.raises(
        Disagreement, match=r"on the versions: rank 0: kernwright .*; rank 1: kernwright 9\.9, table"
    ):
        agree([mine, stated(make, work)])
