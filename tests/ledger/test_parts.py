"""Records of a part of an interval: a name and a cell of their own. Records of version 2 had none, and stay valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import Record, RecordedPart, check, newest, rows
from kernwright.ledger.reader import read_record
from kernwright.specs import SpecError
from pydantic import ValidationError

from .conftest import timing

SMALL = RecordedPart(field="payload_bytes", low=4, high=65536, at=512)
LARGE = RecordedPart(field="payload_bytes", low=65537, high=131071, at=92672)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_edited_record_of_an_older_version_is_found(older: Any, tmp_path: Path, version: int) -> None:
    document = older(version, timing=timing(baselines={"NCCL": (2.5, 2.6)}))
    assert document["timing"]["peers"] == {"NCCL": [2.5, 2.6]}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    file = read_record(path)
    assert check([file]) == []
    assert file.record.timing is not None
    assert file.record.timing.baselines == {"NCCL": (2.5, 2.6)}
    path.write_text(json.dumps(document | {"cubin_sha256": "0" * 64}), encoding="utf-8")
    assert [problem.key for problem in check([read_record(path)])] == ["sha256"]
    path.write_text(json.dumps(document | {"schema_version": 6 - version}), encoding="utf-8")
    if version != 3:
        assert [problem.key for problem in check([read_record(path)])] == ["sha256"]
    path.write_text(json.dumps(document | {"code_sha256": "0" * 64}), encoding="utf-8")
    with pytest.raises(SpecError, match="which knew its code by the text"):
        read_record(path)


def test_version_2_had_no_parts(older: Any) -> None:
    document = older(3, part=SMALL) | {"schema_version": 2}
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
