"""A verdict is of machine code: what another NVRTC made of the source is a prior, followed and said to be one."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kernwright.runtime import Device, loader
from kernwright.runtime.device import fake
from kernwright.runtime.selection import Selection, select
from kernwright.table import Build, RecordLine

HERE = fake("sm_90", 132, "NVIDIA H200")
FIELDS = {
    "dtype": "float16",
    "branches": 4,
    "hidden": 64,
    "low_rank": 32,
    "tokens": 1,
    "world_size": 1,
    "eps": 1e-6,
    "norm_weight": "per_branch",
}
ON = "sm_90, 132 SMs, NVIDIA H200"
ONE = "one block; measured before blocks were taken anew"


def decide(
    make: ModuleType, *records: RecordLine, compiler: str | None, policy: Any = "measured"
) -> Selection:
    names = ("control", "fast", "wide")
    work = make.workload(*(make.candidate(name) for name in names), records=records)
    request = make.dispatch_of(work)._operator("hyper_connection").request_for(FIELDS, "boundary")
    return select(make.table(work), request, HERE, policy, compiler_of=lambda _build, _arch: compiler)


def of(record: RecordLine, compiler: str | None, **changes: Any) -> RecordLine:
    return replace(record, compiler=compiler, **changes)


def chosen(selection: Selection) -> tuple[str, str]:
    assert selection.chosen is not None
    name = selection.chosen.candidate.name
    return name, next(d.reason for d in selection.decisions if d.candidate == name)


def reason_of(selection: Selection, name: str) -> str:
    return next(d.reason for d in selection.decisions if d.candidate == name)


def test_the_same_compiler_admits(make: ModuleType) -> None:
    record = of(make.record("fast"), "12.9")
    assert chosen(decide(make, record, compiler="12.9")) == (
        "fast",
        f"chosen: admitted on {ON} with a gain of 10.0% over the control",
    )


def test_another_compilers_record_is_a_prior_and_is_followed(make: ModuleType) -> None:
    record = of(make.record("fast"), "12.9")
    for policy in ("measured", "verified"):
        assert chosen(decide(make, record, compiler="13.0", policy=policy)) == (
            "fast",
            f"chosen: a prior: admitted on {ON} with a gain of 10.0% over the control as NVRTC 12.9 made it; "
            "NVRTC 13.0 makes it here, which has no record",
        )


def test_a_prior_that_rejects_isnt_followed_and_says_why(make: ModuleType) -> None:
    record = of(make.record("fast", "rejected", -0.05), "12.9", basis=ONE)
    found = decide(make, record, compiler="13.0")
    assert chosen(found)[0] == "control"
    assert reason_of(found, "fast") == (
        f"its record on {ON}, a prior because it is of NVRTC 12.9 and here is 13.0, says rejected (gain -5.0% over "
        f"the control); {ONE}; policy measured dispatches admitted candidates only"
    )


def test_a_record_of_this_machine_code_counts_before_a_prior(make: ModuleType) -> None:
    here, there = make.record("fast", "rejected", -0.05), make.record("fast")
    for records in ((of(here, "13.0"), of(there, "12.9")), (of(there, "12.9"), of(here, "13.0"))):
        assert chosen(decide(make, *records, compiler="13.0"))[0] == "control"
        assert chosen(decide(make, *records, compiler="12.9"))[0] == "fast"
    contended = of(make.record("fast", "invalid", None), "13.0")
    assert chosen(decide(make, contended, of(there, "12.9"), compiler="13.0"))[1].startswith(
        "chosen: a prior"
    )


def test_no_kernel_of_ours_has_no_compiler(make: ModuleType) -> None:
    found = decide(make, of(make.record("fast"), None), compiler="13.0")
    assert chosen(found) == ("fast", f"chosen: admitted on {ON} with a gain of 10.0% over the control")


def test_where_no_compiler_is_known_the_record_says_whose_it_is(make: ModuleType) -> None:
    found = decide(make, of(make.record("fast"), "12.9", basis=ONE), compiler=None)
    assert chosen(found)[1] == (
        f"chosen: admitted on {ON} with a gain of 10.0% over the control (NVRTC 12.9; {ONE})"
    )


def test_one_that_isnt_confirmed_stays_behind_the_winner(make: ModuleType) -> None:
    records = make.record("wide", gain=0.1), replace(make.record("fast", gain=0.2), unconfirmed="wide")
    found = decide(make, *records, compiler=None)
    assert chosen(found)[0] == "wide"
    assert reason_of(found, "fast").startswith(
        f"eligible: admitted on {ON} with a gain of 20.0% over the control; wide stays in front, for no run of both "
        "shows this one to be faster; wide is preferred: "
    )


def test_a_bundles_compiler_is_the_one_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build("code", "a.cu", "text")
    entry = SimpleNamespace(source_sha256="text", arch="sm_90")
    bundle = SimpleNamespace(nvrtc=(13, 1), entries=(entry,))
    monkeypatch.setattr(loader, "bundles", lambda: (bundle,))
    monkeypatch.setattr(loader, "installed_compiler", lambda: "12.9")
    assert loader.compiler_of(build, "sm_90") == "13.1"
    assert loader.compiler_of(build, "sm_80") == "12.9"
    assert loader.compiler_of(Build("code"), "sm_90") is None
    assert loader.compilers() == ("13.1", "12.9")


def test_dispatch_asks_for_the_compiler_of_a_device_that_is_here(
    make: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "installed_compiler", lambda: "13.0")
    work = make.workload(
        make.candidate("control"), make.candidate("fast"), records=(of(make.record("fast"), "12.9"),)
    )
    dispatch = make.dispatch_of(work)
    here, imagined = Device("sm_90", 132, "NVIDIA H200", 0), HERE
    texts = {
        device.index: str(dispatch.explain_request("hyper_connection", FIELDS, device))
        for device in (here, imagined)
    }
    assert "fast: chosen: a prior: " in texts[0]
    assert f"fast: chosen: admitted on {ON} with a gain of 10.0% over the control (NVRTC 12.9)" in texts[None]


def test_the_fingerprint_changes_with_the_compiler(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = make.dispatch_of(make.workload(make.candidate("control")))
    found = set()
    for version in ("12.9", "13.0"):
        monkeypatch.setattr(loader, "installed_compiler", lambda version=version: version)
        found.add(dispatch.fingerprint())
    assert len(found) == 2
