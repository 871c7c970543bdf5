"""Which record counts today: the newest that decided, of today's sources; the rest is visible as stale."""

from __future__ import annotations

from typing import Any

import pytest
from kernwright.ledger import Device, Exactness, RecordFile, newest, stale, staleness
from kernwright.ledger.stale import serving
from kernwright.runtime.device import serves

SPEC, LABEL = "qwen38_flash_tp1", "fp16-hc4-h2560-n1-r320-tp1"
NOW, THEN = "ab" * 32, "11" * 32


def sources(
    candidate: str = NOW, control: str = "cd" * 32, arch: str = "sm_90"
) -> dict[tuple[str, str, str, str], str]:
    return {(SPEC, LABEL, "wide_rows", arch): candidate, (SPEC, LABEL, "replicated", arch): control}


def at(second: int, file: Any, **changes: Any) -> RecordFile:
    made: RecordFile = file(measured_at=f"2026-03-01T12:00:{second:02}Z", **changes)
    return made


def test_the_newest_record_of_todays_source_counts(file: Any, timing: Any) -> None:
    first, second = at(1, file), at(2, file, timing=timing(1.2))
    later_but_old = at(3, file, source_sha256=THEN)
    assert newest([later_but_old, second, first], sources()) == [second]
    assert stale([later_but_old, second, first], sources()) == []


def test_without_one_the_newest_of_all_is_stale_and_visible(file: Any) -> None:
    first, second = at(1, file, source_sha256="22" * 32), at(2, file, source_sha256=THEN)
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


def test_devices_and_candidates_have_records_of_their_own(file: Any) -> None:
    files = [
        at(1, file),
        at(1, file, candidate="other"),
        at(1, file, device=Device(arch="sm_90", sm_count=114, name="NVIDIA H100 PCIe")),
        at(1, file, device=Device(arch="sm_90", sm_count=78, name="NVIDIA H200")),
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
    control = at(1, file, candidate="replicated", source_sha256="99" * 32)
    assert stale([control], changed) == []


def test_a_control_of_someone_elses_counts_as_unchanged(file: Any) -> None:
    assert stale([at(1, file, control="team_kernel", control_source_sha256=None)], sources()) == []


def test_what_is_generated_no_more_cant_be_measured_again(file: Any) -> None:
    gone = at(1, file, candidate="gone")
    assert newest([gone], sources()) == [gone]
    assert stale([gone], sources()) == []
    elsewhere = at(1, file, device=Device(arch="sm_70", sm_count=80, name="Tesla V100"))
    assert stale([elsewhere], sources()) == []


def test_a_device_is_held_against_the_build_that_serves_it(file: Any) -> None:
    ampere = at(1, file, device=Device(arch="sm_86", sm_count=84, name="NVIDIA A40"))
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
