"""Records of a part of an interval: a name and a cell of their own. Records of version 2 had none, and stay valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernwright
import pytest
from kernwright.ledger import (
    Record,
    RecordedPart,
    check,
    newest,
    read_record,
    read_records,
    record_name,
    rows,
)
from kernwright.ledger.record import seal_of
from pydantic import ValidationError

SMALL = RecordedPart(field="payload_bytes", low=4, high=65536, at=512)
LARGE = RecordedPart(field="payload_bytes", low=65537, high=131071, at=92672)


def test_the_records_that_version_2_wrote_are_whole_and_unedited() -> None:
    folder = Path(kernwright.__file__).parent / "ledger" / "records"
    files = [file for file in read_records(folder) if file.version == 2]
    if not files:
        pytest.skip("the records aren't part of an installed package")
    assert check(files) == []
    for file in files:
        assert (file.record.schema_version, file.record.part) == (2, None)
        assert record_name(file.record) == file.name
    assert newest(files, {}) != []


def test_an_edited_record_of_version_2_is_found(record: Any, tmp_path: Path) -> None:
    document = record().model_dump(mode="json", exclude={"part"}) | {"schema_version": 2}
    whole = Record.model_validate(document)
    document["sha256"] = seal_of(whole)
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert check([read_record(path)]) == []
    path.write_text(json.dumps(document | {"cubin_sha256": "0" * 64}), encoding="utf-8")
    assert [problem.key for problem in check([read_record(path)])] == ["sha256"]
    path.write_text(json.dumps(document | {"schema_version": 3}), encoding="utf-8")
    assert [problem.key for problem in check([read_record(path)])] == ["sha256"]


def test_version_2_had_no_parts(record: Any) -> None:
    document = record(part=SMALL).model_dump(mode="json") | {"schema_version": 2}
    with pytest.raises(ValidationError, match="found a part in a record of version 2, which had none"):
        Record.model_validate(document)


@pytest.mark.parametrize("at", [3, 65537])
def test_what_stands_for_a_part_lies_in_it(at: int) -> None:
    with pytest.raises(ValidationError, match=f"found {at} as what stands for 4 to 65536; it lies inside"):
        RecordedPart(field="payload_bytes", low=4, high=65536, at=at)


def test_a_part_is_in_the_name_and_in_the_row(file: Any) -> None:
    assert file(part=SMALL).name == (
        "qwen38_flash_tp1/fp16-hc4-h2560-n1-r320-tp1/wide_rows.4to65536.sm_90-nvidia-h200.abababababab."
        "20260301T120000Z.json"
    )
    (row, other) = rows([file(part=SMALL), file()])
    assert (row["part"], other["part"]) == ("payload_bytes 4 to 65536", None)


def test_parts_are_cells_of_their_own(file: Any) -> None:
    current = {("qwen38_flash_tp1", "fp16-hc4-h2560-n1-r320-tp1", "wide_rows", "sm_90"): "ab" * 32}
    files = [
        file(part=SMALL),
        file(part=LARGE),
        file(part=LARGE, measured_at="2026-03-02T12:00:00Z"),
        file(part=None),
    ]
    chosen = newest(files, current)
    assert {(f.record.span, f.record.measured_at[:10]) for f in chosen} == {
        (None, "2026-03-01"),
        ((4, 65536), "2026-03-01"),
        ((65537, 131071), "2026-03-02"),
    }
