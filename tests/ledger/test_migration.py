"""Records of version 1 are read as today's: a failure is believed, exactness and a verdict without samples aren't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import UNDATED, check, newest, read_record, read_records, rows
from kernwright.specs import SpecError

V1: dict[str, Any] = {
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


def old(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(V1 | changes), encoding="utf-8")
    return path


def test_what_kept_no_samples_and_no_seal_is_invalid_and_shows_no_exactness(tmp_path: Path) -> None:
    file = read_record(old(tmp_path / "a.json"))
    record = file.record
    assert (file.version, record.schema_version, record.measured_at) == (1, 4, UNDATED)
    assert (record.verdict, record.gain, record.interval, record.timing) == ("invalid", None, None, None)
    assert record.reason == (
        "The record was written as version 1, which kept no samples and has no seal: that it was exact in 16 "
        "cases and is admitted with a gain of +12.0% can't be recomputed; measure again."
    )
    assert (record.exactness.exact, record.exactness.inexact) == (False, False)
    assert (record.exactness.cases, record.exactness.values) == (0, 0)
    assert (record.candidate, record.device.name, record.source_sha256) == (
        "wide_rows",
        "NVIDIA H200",
        "ab" * 32,
    )


def test_what_was_inexact_stays_rejected(tmp_path: Path) -> None:
    changes = {"exactness": {"cases": 16, "mismatches": 3}, "verdict": "no_difference", "gain": None}
    record = read_record(old(tmp_path / "a.json", **changes)).record
    assert (record.verdict, record.exactness.inexact, record.exactness.cases) == ("rejected", True, 16)
    assert record.reason == "3 stored values differ in bits from the control in 16 cases."


@pytest.mark.parametrize("verdict", ["admitted", "no_difference", "rejected", "invalid"])
@pytest.mark.parametrize("cases", [0, 1, 16])
def test_none_that_claims_to_be_exact_counts_but_all_are_listed(
    tmp_path: Path, verdict: str, cases: int
) -> None:
    exactness = {"cases": cases, "mismatches": 0}
    file = read_record(old(tmp_path / "a.json", exactness=exactness, verdict=verdict))
    today = {(V1["spec"], V1["workload"], V1["candidate"], "sm_90"): V1["source_sha256"]}
    assert newest([file], today) == []
    (row,) = rows([file])
    assert (row["file"], row["verdict"], row["reason"]) == ("a.json", "invalid", file.record.reason)


def test_what_was_only_timed_shows_nothing_either_way(tmp_path: Path) -> None:
    changes = {"exactness": {"cases": 0, "mismatches": 0}, "verdict": "rejected", "gain": -0.1}
    record = read_record(old(tmp_path / "a.json", **changes)).record
    assert (record.verdict, record.exactness.exact) == ("invalid", False)
    assert record.reason == "Exactness wasn't checked: no case was compared."


def test_the_file_stays_as_it_is_and_passes_check(tmp_path: Path, write: Any) -> None:
    path = old(tmp_path / "old.json")
    before = path.read_bytes()
    write("new.json")
    files = read_records(tmp_path)
    assert [file.version for file in files] == [4, 1]
    assert check(files) == []
    assert path.read_bytes() == before
    old(tmp_path / "copy.json")
    assert [problem.message for problem in check(read_records(tmp_path))] == [
        "this is the measurement of copy.json again; delete one of the two."
    ]


def test_samples_cant_be_smuggled_into_an_old_record(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match='"timing" is unknown here'):
        read_record(old(tmp_path / "a.json", timing=None))


def test_a_broken_old_record_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({k: v for k, v in V1.items() if k != "source_sha256"}), encoding="utf-8")
    with pytest.raises(SpecError, match='"source_sha256" is missing; add it'):
        read_record(path)
