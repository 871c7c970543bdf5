"""What `kernwright ledger` prints: every record as it states itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernwright
from kernwright.ledger import Group, markdown, read_records, rows, stale_rows_of


def test_a_timed_record(file: Any, timing: Any) -> None:
    shown = file(timing=timing(floor_ms=1.0))
    (row,) = rows([shown])
    assert row | {"reason": "", "file": ""} == {
        "spec": "qwen38_flash_tp1",
        "workload": "fp16-hc4-h2560-n1-r320-tp1",
        "part": None,
        "candidate": "wide_rows",
        "control": "replicated",
        "arch": "sm_90",
        "sm_count": 132,
        "device": "NVIDIA H200",
        "measured_at": "2026-03-01T12:00:00Z",
        "nvrtc": "12.9",
        "cases": 16,
        "mismatches": 0,
        "scope": "chain",
        "control_ms": 2.001,
        "candidate_ms": 1.8002,
        "of_floor": 1.8,
        "groups": "9 of 9",
        "gain_percent": 10.03,
        "interval_percent": "10.03 to 10.04",
        "verdict": "admitted",
        "all_runs": "admitted, 3 blocks",
        "reason": "",
        "file": "",
    }
    assert (row["reason"], row["file"]) == (shown.record.reason, shown.name)
    assert json.loads(json.dumps(row)) == row


def test_only_valid_groups_are_averaged(file: Any, timing: Any) -> None:
    bad = Group(control=(9.0, 9.0), candidate=(9.0, 9.0), problem="throttled")
    (row,) = rows([file(timing=timing(groups=(bad,) * 3))])
    assert (row["groups"], row["control_ms"], row["candidate_ms"]) == ("0 of 3", None, None)
    (row,) = rows([file(timing=timing(groups=(*timing().groups, *(bad,) * 9)))])
    assert (row["groups"], row["control_ms"]) == ("9 of 18", 2.001)


def test_a_verified_record_has_no_times(file: Any) -> None:
    (row,) = rows([file(timing=None)])
    assert [row[key] for key in ("scope", "control_ms", "of_floor", "groups", "gain_percent")] == [None] * 5
    assert row["verdict"] == "no_difference"


def test_a_verdict_of_one_block_says_so(old_file: Any, file: Any, timing: Any) -> None:
    """In the list and in documents; with a run of three blocks it is over."""
    old = old_file()
    (row,) = rows([old])
    assert row["all_runs"] == "admitted; one block; measured before blocks were taken anew"
    assert "| admitted (all runs: admitted; one block; measured before blocks were taken anew) |" in markdown(
        [old]
    )
    again = file(measured_at="2026-03-02T12:00:00Z", timing=timing(0.92))
    assert [row["all_runs"] for row in rows([old, again])] == ["admitted, 4 blocks of 2 runs"] * 2
    (control,) = rows([old_file(candidate="replicated")])
    assert control["all_runs"] is None


def test_an_inconsistent_record_is_shown_as_it_states_itself(file: Any) -> None:
    from kernwright.ledger import RecordFile

    forged = RecordFile("a.json", file().record.model_copy(update={"verdict": "rejected"}))
    assert rows([forged])[0]["verdict"] == "rejected"


def test_stale_rows_say_what_to_measure_again(file: Any) -> None:
    (row,) = stale_rows_of([file()])
    assert row == {
        "spec": "qwen38_flash_tp1",
        "workload": "fp16-hc4-h2560-n1-r320-tp1",
        "part": None,
        "candidate": "wide_rows",
        "control": "replicated",
        "arch": "sm_90",
        "sm_count": 132,
        "device": "NVIDIA H200",
        "measured_at": "2026-03-01T12:00:00Z",
        "verdict": "admitted",
        "code": "abababababab",
        "file": file().name,
    }


def test_the_documents_table_is_what_the_ledger_says() -> None:
    """Edited by hand it would be a claim without a measurement."""
    checkout = Path(kernwright.__file__).parent
    text = (checkout / "docs" / "hyper_connection.md").read_text(encoding="utf-8")
    written = text.partition("<!-- ledger: hyper_connection -->\n")[2].partition("<!-- end -->")[0]
    files = [
        f for f in read_records(checkout / "ledger" / "records") if f.record.family == "hyper_connection"
    ]
    assert len(files) >= 14
    assert written == markdown(files)
    line = next(line for line in written.splitlines() if "staged_up" in line)
    assert line.count("|") == 10
    assert "admitted" in line
