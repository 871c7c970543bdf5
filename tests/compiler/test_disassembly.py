"""Counting instructions, once a cubin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kernwright.compiler import disassembly
from kernwright.compiler.disassembly import ExpectationsSkipped, remembered_counts

COUNTS = {"kernel": Counter({"LDG.E.128.CONSTANT": 4, "FFMA": 9})}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The cubins that nvdisasm was started for."""
    cubins: list[bytes] = []

    def count(cubin: bytes, arch: str) -> dict[str, Counter[str]] | ExpectationsSkipped:
        cubins.append(cubin)
        return ExpectationsSkipped("no nvdisasm") if cubin == b"unreadable" else COUNTS

    monkeypatch.setattr(disassembly, "instruction_counts", count)
    return cubins


def test_a_cubin_is_disassembled_once(tmp_path: Path, asked: list[bytes]) -> None:
    first, second = (remembered_counts(b"cubin", "sm_90", tmp_path) for _ in range(2))
    assert first == second == COUNTS
    assert isinstance(second, dict)
    assert isinstance(second["kernel"], Counter)
    assert asked == [b"cubin"]
    remembered_counts(b"another", "sm_90", tmp_path)
    assert asked == [b"cubin", b"another"]


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"kernel": 3}', '{"kernel": {"FFMA": "many"}}'])
def test_a_damaged_file_costs_time_alone(tmp_path: Path, asked: list[bytes], damage: str) -> None:
    remembered_counts(b"cubin", "sm_90", tmp_path)
    (file,) = (tmp_path / "disassembly").iterdir()
    file.write_text(damage)
    assert remembered_counts(b"cubin", "sm_90", tmp_path) == COUNTS
    assert asked == [b"cubin"] * 2


def test_what_was_skipped_is_asked_again(tmp_path: Path, asked: list[bytes]) -> None:
    for _ in range(2):
        assert remembered_counts(b"unreadable", "sm_70", tmp_path) == ExpectationsSkipped("no nvdisasm")
    assert asked == [b"unreadable"] * 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, asked: list[bytes]) -> None:
    (tmp_path / "file").write_text("")
    assert remembered_counts(b"cubin", "sm_90", tmp_path / "file") == COUNTS
