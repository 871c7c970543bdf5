"""Records read back as they were written, in one order; whatever is wrong with a file is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import Record, read_record, read_records
from kernwright.specs import SpecError

RECORD: dict[str, Any] = {
    "schema_version": 1,
    "family": "hyper_connection",
    "spec": "qwen38_flash_tp1",
    "workload": "fp16-hc4-h2560-n1-r320-tp1",
    "candidate": "wide_rows",
    "device": {"arch": "sm_90", "sm_count": 132, "name": "NVIDIA H200"},
    "source_sha256": "ab" * 32,
    "exactness": {"cases": 16, "mismatches": 0},
    "verdict": "admitted",
    "gain": 0.12,
    "reason": "12% less time than the control in every group.",
}


def write(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(RECORD | changes), encoding="utf-8")
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_record(path)
    return [str(problem).replace(str(path), path.name) for problem in caught.value.problems]


def test_a_record_round_trips(tmp_path: Path) -> None:
    record = read_record(write(tmp_path / "a.json"))
    assert (record.device.sm_count, record.gain, record.exactness.exact) == (132, 0.12, True)
    assert Record.model_validate(record.model_dump()) == record
    assert record.model_dump() == RECORD


def test_records_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/2.json", "a/9.json", "b/1.json", "a.json"):
        write(tmp_path / name, candidate=name.replace("/", "_").removesuffix(".json"))
    (tmp_path / "notes.txt").write_text("not a record", encoding="utf-8")
    assert [file.record.candidate for file in read_records(tmp_path)] == ["a_9", "a", "b_1", "b_2"]
    assert read_records(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"schema_version": 2},
            "a.json: schema_version: the record has schema version 2; this toolkit reads 1. "
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
        (
            {"exactness": {"cases": 16, "mismatches": 3}},
            "a.json: the verdict is admitted, but exactness has 3 mismatches in 16 cases; "
            "an admitted candidate was compared and never differed.",
        ),
        (
            {"exactness": {"cases": 0, "mismatches": 0}},
            "a.json: the verdict is admitted, but exactness has 0 mismatches in 0 cases; "
            "an admitted candidate was compared and never differed.",
        ),
        ({"gain": None}, "a.json: the verdict is admitted, but the gain is None; it must be above 0."),
        (
            {"device": {"arch": "sm_90", "sm_count": 132, "nam": "H200"}},
            'a.json: device.nam: "nam" is unknown here; allowed are arch, name and sm_count; '
            'did you mean "name"?',
        ),
    ],
)
def test_wrong_records_are_sentences(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in problems(write(tmp_path / "a.json", **changes))


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


def test_all_broken_files_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "good.json")
    write(tmp_path / "one.json", verdict="won", candidate="Wide")
    write(tmp_path / "two.json", schema_version=None)
    with pytest.raises(SpecError) as caught:
        read_records(tmp_path)
    found = [(Path(problem.file).name, problem.key) for problem in caught.value.problems]
    assert found == [("one.json", "candidate"), ("one.json", "verdict"), ("two.json", "schema_version")]


def test_losers_are_records_too(tmp_path: Path) -> None:
    changes = {"verdict": "rejected", "gain": -0.03, "exactness": {"cases": 16, "mismatches": 2}}
    record = read_record(write(tmp_path / "a.json", **changes))
    assert (record.verdict, record.exactness.exact) == ("rejected", False)
