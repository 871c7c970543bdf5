"""The ledger is append-only: nothing is written over, and a crash leaves no half record."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import LedgerRefused, RecordedDevice, read_records, write_record
from kernwright.ledger.names import record_name


def test_a_record_gets_a_name_of_what_was_measured(tmp_path: Path, record: Any) -> None:
    path = write_record(tmp_path / "ledger", record())
    assert path.relative_to(tmp_path / "ledger").as_posix() == (
        "qwen38_flash_tp1/fp16-hc4-h2560-n1-r320-tp1/"
        "wide_rows.sm_90-nvidia-h200.abababababab.20260301T120000Z.json"
    )
    (file,) = read_records(tmp_path / "ledger")
    assert file.record == record()
    assert file.name == record_name(file.record)
    assert path.read_text(encoding="utf-8").endswith("}\n")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Tesla V100-SXM2-16GB", "tesla-v100-sxm2-16gb"),
        ("../../etc", "etc"),
        ("顯卡", "gpu"),
        ("A/B\0", "a-b"),
    ],
)
def test_a_devices_name_cannot_leave_the_folder(record: Any, name: str, slug: str) -> None:
    made = record(device=RecordedDevice(arch="sm_70", sm_count=80, name=name))
    assert (
        record_name(made).rpartition("/")[2] == f"wide_rows.sm_70-{slug}.abababababab.20260301T120000Z.json"
    )


def test_the_longest_name_is_a_file_name(tmp_path: Path, record: Any) -> None:
    made = record(device=RecordedDevice(arch="sm_100", sm_count=148, name="N" * 128), candidate="c" * 64)
    assert write_record(tmp_path, made).is_file()


def test_writing_over_a_record_is_refused(tmp_path: Path, record: Any, timing: Any) -> None:
    path = write_record(tmp_path, record())
    before = path.read_bytes()
    for again in (record(), record(timing=timing(0.5))):
        with pytest.raises(LedgerRefused, match="is there already; the ledger is append-only: measure again"):
            write_record(tmp_path, again)
    assert path.read_bytes() == before
    assert write_record(tmp_path, record(measured_at="2026-03-01T12:00:01Z")) != path
    assert [entry.suffix for entry in path.parent.iterdir()] == [".json", ".json"]


def test_of_many_writers_at_once_one_wins(tmp_path: Path, record: Any, timing: Any) -> None:
    baselines = [record(timing=timing(0.5 + number / 100)) for number in range(16)]

    def attempt(baseline: Any) -> bool:
        try:
            write_record(tmp_path, baseline)
        except LedgerRefused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, baselines))
    assert won.count(True) == 1
    (file,) = read_records(tmp_path)
    assert file.record == baselines[won.index(True)]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_crash_leaves_no_half_record(tmp_path: Path, record: Any, monkeypatch: Any, step: str) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, crash)
    with pytest.raises(KeyboardInterrupt):
        write_record(tmp_path, record())
    monkeypatch.undo()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert write_record(tmp_path, record()).is_file()


def test_the_text_is_on_disk_before_it_has_a_name(tmp_path: Path, record: Any, monkeypatch: Any) -> None:
    done: list[str] = []
    for step in ("fsync", "link"):
        real = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *a, real=real, step=step: (done.append(step), real(*a))[1])
    write_record(tmp_path, record())
    assert done == ["fsync", "link", "fsync", "fsync"]  # the last one is of the index


def test_a_verdict_that_the_samples_dont_give_is_refused(tmp_path: Path, record: Any) -> None:
    typed = record().model_copy(update={"gain": 0.5})
    with pytest.raises(LedgerRefused, match=r"gain: the record states 0\.5, but its samples give 0\.1"):
        write_record(tmp_path, typed)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cant_be_written_is_a_sentence(tmp_path: Path, record: Any) -> None:
    (tmp_path / "ledger").write_text("a file", encoding="utf-8")
    with pytest.raises(LedgerRefused, match=r"can't write .*\.json: Not a directory\."):
        write_record(tmp_path / "ledger", record())
