"""Records read back as they were written, in one order; whatever is wrong with a file is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import Record, check, make_record, read_records, write_record
from kernwright.ledger.reader import read_record
from kernwright.specs import SpecError
from pydantic import ValidationError


def problems(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_record(path)
    return [str(problem).replace(str(path), path.name) for problem in caught.value.problems]


def test_a_record_round_trips(write: Any, record: Any) -> None:
    file = read_record(write())
    assert file.record == record()
    assert (file.name, file.record.schema_version) == ("a.json", 6)
    assert Record.model_validate(json.loads(json.dumps(file.record.model_dump(mode="json")))) == file.record


def test_the_verdict_is_computed_and_nobody_passes_one_in(record: Any, timing: Any) -> None:
    assert (record().verdict, record(timing=timing(1.1)).verdict) == ("admitted", "rejected")
    assert record().gain == pytest.approx(0.1, abs=1e-3)
    for typed in ("verdict", "gain", "interval", "reason", "sha256"):
        with pytest.raises(TypeError, match=typed):
            make_record(**{typed: "admitted"})


def test_the_control_is_known_by_its_name(record: Any) -> None:
    control = record(candidate="replicated")
    assert (control.is_control, control.verdict, control.gain) == (True, "no_difference", 0.0)
    assert not record().is_control


@pytest.mark.parametrize("written", ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00+00:00"])
def test_times_have_one_form(record: Any, written: str) -> None:
    assert record(measured_at=written).measured_at == "2026-03-01T12:00:00Z"


@pytest.mark.parametrize(
    "written",
    ["2026-03-01T12:00:00", "2026-03-01T12:00:00+01:00", "2026-03-01T12:00:00.5Z", "2026-02-30", "now"],
)
def test_times_that_dont_sort_are_refused(record: Any, written: str) -> None:
    with pytest.raises(ValidationError, match="a time is UTC to the second, as 2026-03-01T12:00:00Z"):
        record(measured_at=written)


def test_records_come_in_the_order_of_their_paths(tmp_path: Path, write: Any) -> None:
    for name in ("b/2.json", "a/9.json", "b/1.json", "a.json"):
        write(name, candidate=name.replace("/", "_").removesuffix(".json"))
    (tmp_path / "notes.txt").write_text("not a record", encoding="utf-8")
    (tmp_path / ".record-x.tmp").write_text("{", encoding="utf-8")
    files = read_records(tmp_path)
    assert [file.record.candidate for file in files] == ["a_9", "a", "b_1", "b_2"]
    assert [file.name for file in files] == ["a/9.json", "a.json", "b/1.json", "b/2.json"]
    assert read_records(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"schema_version": 7},
            "a.json: schema_version: the record has schema version 7; this toolkit reads 2, 3, 4, 5 and 6. "
            "Measure again, or use the toolkit that wrote it.",
        ),
        (
            {"schema_version": True},
            "a.json: schema_version: the record has schema version true; this toolkit reads 2, 3, 4, 5 and 6. "
            "Measure again, or use the toolkit that wrote it.",
        ),
        (
            {"verdict": "admited"},
            'a.json: verdict: found "admited"; allowed are "admitted", "rejected", "invalid" or '
            '"no_difference"; did you mean "admitted"?',
        ),
        (
            {"source_sha256": "AB"},
            'a.json: source_sha256: found "AB"; allowed are SHA-256 digests in lowercase hexadecimal.',
        ),
        ({"gain": True}, "a.json: gain: found true; allowed is a number."),
        ({"gain": float("nan")}, "a.json: gain: found nan; allowed is a finite number."),
        ({"gain": 1.5}, "a.json: gain: found 1.5; it must be at most 1."),
        (
            {"exactness": {"cases": 16, "values": 2, "mismatches": 3, "against": "control"}},
            "a.json: exactness: found 3 mismatches in 2 values; at most all values differ.",
        ),
        (
            {"exactness": {"cases": 16, "values": 0, "mismatches": 0, "against": "control"}},
            "a.json: exactness: found 16 cases without a value; a case compares at least one stored value.",
        ),
        (
            {"device": {"arch": "sm_90", "sm_count": 132, "nam": "H200"}},
            'a.json: device.nam: "nam" is unknown here; allowed are arch, name and sm_count; did you mean "name"?',
        ),
        (
            {"device": {"arch": "sm_90a", "sm_count": 132, "name": "H200"}},
            'a.json: device.arch: found "sm_90a"; a device is written like sm_70 or sm_90, without a letter: '
            "sm_90a names a variant of code, not other hardware.",
        ),
        (
            {"rule": {"threshold": 0.01, "confidence": 0.95, "min_groups": 3, "min_blocks": 0}},
            "a.json: rule: found min_groups 3 with confidence 0.95; so few groups reach 0.75 at most. "
            "Ask for more groups or less confidence.",
        ),
    ],
)
def test_wrong_records_are_sentences(write: Any, changes: dict[str, Any], message: str) -> None:
    assert message in problems(write(**changes))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "a.json:1: this isn't JSON: Expecting property name enclosed in double quotes."),
        (b"", "a.json:1: this isn't JSON: Expecting value."),
        (b"[]", "a.json: this isn't a record: a record is a JSON object."),
        (b"\xff\xfe", "a.json: this isn't a record: records are short JSON texts in UTF-8."),
        (b"[" * 100_000, "a.json: this isn't a record: records are short JSON texts in UTF-8."),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(raw)
    assert problems(tmp_path / "a.json") == [message]


def test_all_broken_files_are_reported(tmp_path: Path, write: Any) -> None:
    write("good.json")
    write("one.json", verdict="won", candidate="Wide")
    write("two.json", schema_version=None)
    with pytest.raises(SpecError) as caught:
        read_records(tmp_path)
    found = [(Path(problem.file).name, problem.key) for problem in caught.value.problems]
    assert found == [("one.json", "candidate"), ("one.json", "verdict"), ("two.json", "schema_version")]


def test_losers_are_records_too(tmp_path: Path, record: Any, timing: Any) -> None:
    path = write_record(tmp_path, record(timing=timing(1.03)))
    assert read_record(path).record.verdict == "rejected"


def test_of_many_equal_records_each_but_the_first_is_a_duplicate(tmp_path: Path, record: Any) -> None:
    text = json.dumps(record().model_dump(mode="json"), indent=1)
    for number in range(100):
        (tmp_path / f"{number}.json").write_text(text, encoding="utf-8")
    assert len(check(read_records(tmp_path))) == 99
