"""Which record counts today: the newest that decided, of today's sources; the rest is visible as stale."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernwright.ledger import Exactness, RecordedDevice, RecordFile, newest, stale, staleness
from kernwright.ledger.stale import serving
from kernwright.runtime.device import serves

SPEC, LABEL = "qwen38_flash_tp1", "fp16-hc4-h2560-n1-r320-tp1"
NOW, THEN = "ab" * 32, "11" * 32


def sources(
    candidate: str = NOW, control: str = "cd" * 32, arch: str = "sm_90"
) -> dict[tuple[str, str, str, str], str]:
    return {(SPEC, LABEL, "wide_rows", arch): candidate, (SPEC, LABEL, "replicated", arch): control}


H200 = RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200")


def at(second: int, file: Any, **changes: Any) -> RecordFile:
    made: RecordFile = file(measured_at=f"2026-03-01T12:00:{second:02}Z", **changes)
    return made


def test_the_newest_record_of_todays_source_counts(file: Any, timing: Any) -> None:
    first, second = at(1, file), at(2, file, timing=timing(1.2))
    later_but_old = at(3, file, code_sha256=THEN)
    assert newest([later_but_old, second, first], sources()) == [second]
    assert stale([later_but_old, second, first], sources()) == []


def test_without_one_the_newest_of_all_is_stale_and_visible(file: Any) -> None:
    first, second = at(1, file, code_sha256="22" * 32), at(2, file, code_sha256=THEN)
    assert newest([second, first], sources()) == [second]
    assert stale([second, first], sources()) == [second]
    assert staleness(second.record, sources()).source


def test_a_contended_run_and_a_mere_verification_unsay_nothing(file: Any, timing: Any) -> None:
    contended = timing(groups=2)
    decided = at(1, file)
    assert newest([decided, at(2, file, timing=None), at(3, file, timing=contended)], sources()) == [decided]
    verified = at(4, file, timing=None)
    assert newest([verified, at(5, file, timing=contended)], sources()) == [verified]


def test_a_later_mismatch_does(file: Any) -> None:
    wrong = Exactness(cases=1, values=10, mismatches=1, against="control replicated", first="x[3]")
    failed = at(2, file, timing=None, exactness=wrong)
    assert newest([at(1, file), failed, at(3, file, timing=None)], sources()) == [failed]


WRONG = Exactness(cases=1, values=10, mismatches=1, against="control replicated", first="x[3]")
H100 = RecordedDevice(arch="sm_90", sm_count=114, name="NVIDIA H100 PCIe")


def test_a_later_pass_doesnt_undo_a_mismatch(file: Any) -> None:
    failed, passed = at(1, file, timing=None, exactness=WRONG), at(2, file)
    assert passed.record.verdict == "admitted"
    assert newest([failed, passed], sources()) == [failed]
    assert stale([failed, passed], sources()) == []
    again = at(3, file, timing=None, exactness=WRONG)
    assert newest([again, passed, failed], sources()) == [again]


def test_a_mismatch_counts_on_every_kind_of_device(file: Any) -> None:
    failed, passed = at(1, file, timing=None, exactness=WRONG), at(2, file, device=H100)
    older = at(3, file, device=H100, code_sha256=THEN)
    assert newest([passed, failed], sources()) == [failed]
    assert newest([older, passed, failed], sources()) == [failed]
    there = at(4, file, timing=None, exactness=WRONG, device=H100)
    assert newest([passed, failed, there], sources()) == sorted([failed, there], key=lambda f: f.name)
    other = at(2, file, candidate="other", device=H100)
    assert other in newest([failed, other], sources())


def test_a_mismatch_is_over_when_the_source_changes(file: Any) -> None:
    failed, passed = at(2, file, timing=None, exactness=WRONG), at(1, file, code_sha256=THEN)
    assert newest([failed, passed], sources(THEN)) == [passed]
    assert newest([failed], sources(THEN)) == [failed]
    assert stale([failed], sources(THEN)) == [failed]


def test_a_mismatch_of_a_build_that_its_device_takes_no_more_still_counts(file: Any) -> None:
    ampere = RecordedDevice(arch="sm_86", sm_count=84, name="NVIDIA A40")
    failed = at(1, file, timing=None, exactness=WRONG, device=ampere)
    passed = at(2, file, device=ampere, code_sha256=THEN)
    both = sources(NOW, arch="sm_80") | sources(THEN, arch="sm_86")
    assert newest([failed, at(3, file, device=ampere), passed], both) == [failed, passed]
    assert stale([failed, passed], both) == []


@given(
    runs=st.lists(
        st.tuples(st.booleans(), st.sampled_from([NOW, THEN]), st.booleans(), st.integers(0, 59)), max_size=8
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_history_dispatches_a_source_that_ever_failed(
    file: Any, runs: list[tuple[bool, str, bool, int]]
) -> None:
    files = [
        at(
            second,
            file,
            code_sha256=source,
            device=H100 if elsewhere else H200,
            **({} if exact else {"exactness": WRONG, "timing": None}),
        )
        for exact, source, elsewhere, second in runs
    ]
    of_today = [f for f in newest(files, sources()) if f.record.code_sha256 == NOW]
    failed = {
        f.record.device.name for f in files if f.record.code_sha256 == NOW and f.record.exactness.inexact
    }
    if failed:
        assert {f.record.device.name for f in of_today} == failed
        assert not any(f.record.exactness.exact for f in of_today)
    else:
        passed = {f.record.device.name for f in files if f.record.code_sha256 == NOW}
        assert {f.record.device.name for f in of_today} == passed


def test_a_changed_text_makes_nothing_stale_and_a_record_without_its_code_is(file: Any) -> None:
    assert not staleness(file(source_sha256="99" * 32, control_source_sha256="99" * 32).record, sources())
    assert staleness(file(code_sha256=THEN).record, sources()).source
    old = file().record.model_copy(update={"schema_version": 4, "code_sha256": None})
    assert staleness(old, sources()).source


def test_devices_and_candidates_have_records_of_their_own(file: Any) -> None:
    files = [
        at(1, file),
        at(1, file, candidate="other"),
        at(1, file, device=RecordedDevice(arch="sm_90", sm_count=114, name="NVIDIA H100 PCIe")),
        at(1, file, device=RecordedDevice(arch="sm_90", sm_count=78, name="NVIDIA H200")),
        at(1, file, workload="bf16-hc4-h2560-n1-r320-tp1"),
    ]
    assert newest(files, sources()) == sorted(files, key=lambda f: f.name)


def test_a_changed_control_makes_times_stale_but_not_exactness(file: Any) -> None:
    changed = sources(control="99" * 32)
    timed, verified = at(1, file), at(2, file, timing=None)
    assert stale([timed], changed) == [timed]
    assert (staleness(timed.record, changed).source, staleness(timed.record, changed).control) == (
        False,
        True,
    )
    assert stale([verified], changed) == []
    control = at(1, file, candidate="replicated", code_sha256="99" * 32)
    assert stale([control], changed) == []


def test_a_control_of_someone_elses_counts_as_unchanged(file: Any) -> None:
    assert stale([at(1, file, control="team_kernel", control_code_sha256=None)], sources()) == []


def test_what_is_generated_no_more_cant_be_measured_again(file: Any) -> None:
    gone = at(1, file, candidate="gone")
    assert newest([gone], sources()) == [gone]
    assert stale([gone], sources()) == []
    elsewhere = at(1, file, device=RecordedDevice(arch="sm_70", sm_count=80, name="Tesla V100"))
    assert stale([elsewhere], sources()) == []


def test_a_device_is_held_against_the_build_that_serves_it(file: Any) -> None:
    ampere = at(1, file, device=RecordedDevice(arch="sm_86", sm_count=84, name="NVIDIA A40"))
    both = sources(THEN, arch="sm_80") | sources(NOW, arch="sm_86")
    assert stale([ampere], both) == []
    assert stale([ampere], sources(NOW, arch="sm_80")) == []
    assert stale([ampere], sources(THEN, arch="sm_80")) == [ampere]
    hopper = at(1, file)
    assert stale([hopper], sources(THEN, arch="sm_90") | sources(NOW, arch="sm_90a")) == []


ARCHS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120")


@pytest.mark.parametrize(
    "device", ["sm_61", *(a for a in ARCHS if a[-1] != "a"), "sm_87", "sm_100", "sm_103", "sm_121"]
)
def test_the_ledger_and_the_runtime_agree_on_the_build(device: str) -> None:
    for chosen in range(2 ** len(ARCHS)):
        listed = [arch for bit, arch in enumerate(ARCHS) if chosen >> bit & 1]
        assert serving(listed, device) == serves(listed, device)


def test_ties_are_broken_by_name_whatever_the_order(file: Any) -> None:
    one = at(1, file)
    files = [RecordFile("b.json", one.record), RecordFile("a.json", one.record)]
    assert newest(files, sources()) == newest(files[::-1], sources()) == [files[0]]


def test_a_newer_record_against_another_control_doesnt_count(file: Any) -> None:
    """It is by the control's source of today that records rank, before they do by their time."""
    today, later = at(1, file), at(2, file, control_code_sha256="99" * 32)
    assert newest([today, later], sources()) == [today]
    assert newest([today, later], sources(control="99" * 32)) == [later]


def test_each_compilers_machine_code_has_a_record(file: Any) -> None:
    by_13 = file().record.toolkit.model_copy(update={"nvrtc": "13.0"})
    first, second = at(1, file), at(2, file, toolkit=by_13)
    assert newest([second, first], sources()) == [first, second]
    library = at(3, file, toolkit=by_13, cubin_sha256=None)
    assert library.record.compiler is None
    stale_one = at(4, file, code_sha256=THEN)
    assert newest([stale_one, second], sources()) == [second]
    assert stale([stale_one, second], sources()) == []
    older = at(5, file, toolkit=by_13, code_sha256=THEN)
    assert newest([stale_one, older], sources()) == [older]
