"""Golden digests in the ledger: recomputed, never typed."""

from __future__ import annotations

import json

import pytest
from harness import golden
from harness.golden import read_golden, real_cases, small_cases, write_golden


@pytest.mark.parametrize("case", list(small_cases()), ids=lambda case: case.name)
def test_small_workloads(case):
    assert case.digests() == read_golden()[case.name]


@pytest.mark.long
@pytest.mark.parametrize("case", list(real_cases()), ids=lambda case: case.name)
def test_the_real_shape(case):
    assert case.digests() == read_golden()[case.name]


def test_every_case_is_in_the_ledger_and_nothing_else():
    names = [case.name for case in (*small_cases(), *real_cases())]
    assert len(set(names)) == len(names)
    assert sorted(read_golden()) == sorted(names)


def test_written_bytes_are_stable(tmp_path, monkeypatch):
    case = next(small_cases())
    monkeypatch.setattr(golden, "small_cases", lambda: iter([case]))
    monkeypatch.setattr(golden, "real_cases", lambda: iter([]))
    first = write_golden(tmp_path / "a" / "b").read_bytes()
    assert first == write_golden(tmp_path).read_bytes()
    assert read_golden(tmp_path) == {case.name: case.digests()}


def test_another_format_is_refused(tmp_path):
    (tmp_path / golden.FILE).write_text(json.dumps({"format": 99, "entries": {}}))
    with pytest.raises(ValueError, match="has format 99; this version reads 1"):
        read_golden(tmp_path)
