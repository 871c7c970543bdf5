"""All runs of one source speak together: none replaces another, and old ones count as a block each."""

from __future__ import annotations

from typing import Any

import pytest
from kernwright.ledger import Exactness, RecordFile, Toolkit, pooled
from kernwright.ledger.pool import Pooled

SPEC, LABEL = "qwen38_flash_tp1", "fp16-hc4-h2560-n1-r320-tp1"
SOURCES = {
    (SPEC, LABEL, "wide_rows", "sm_90"): "ab" * 32,
    (SPEC, LABEL, "replicated", "sm_90"): "cd" * 32,
}
ONE = "one block; measured before blocks were taken anew"


def at(second: int, make: Any, **changes: Any) -> RecordFile:
    made: RecordFile = make(measured_at=f"2026-03-01T12:00:{second:02}Z", **changes)
    return made


def only(*files: RecordFile) -> Pooled:
    (found,) = pooled(files, SOURCES)
    return found


def by_nvrtc(version: str) -> Toolkit:
    versions = dict.fromkeys(("kernwright", "python", "torch", "cupy", "driver"), "1")
    return Toolkit(**versions, nvrtc=version)


def test_one_run_says_what_it_says_itself(file: Any) -> None:
    run = file()
    found = only(run)
    stated = (run.record.verdict, run.record.gain, run.record.interval, run.record.reason)
    assert (found.verdict, found.gain, found.interval, found.reason) == stated
    assert (found.blocks, found.settled, found.basis) == (3, True, "")


def test_a_later_run_that_pleases_more_replaces_nothing(file: Any, timing: Any) -> None:
    """The newest alone would be admitted; together they tell no difference."""
    first, second = at(1, file, timing=timing(1.02)), at(2, file, timing=timing(0.95))
    assert (first.record.verdict, second.record.verdict) == ("rejected", "admitted")
    found = only(first, second)
    assert (found.file, found.runs) == (second, (first, second))
    assert (found.verdict, found.blocks) == ("no_difference", 6)
    assert found.gain == pytest.approx(1 - (1.02 * 0.95) ** 0.5, abs=1e-3)
    assert "over 6 valid of 6 blocks of 2 runs" in found.reason


def test_an_old_record_is_one_block_and_stands_until_three_are_there(
    file: Any, old_file: Any, timing: Any
) -> None:
    old = at(1, old_file)
    assert old.record.rule.of_one_block
    found = only(old)
    assert (found.verdict, found.gain, found.blocks) == ("admitted", old.record.gain, 1)
    assert (found.settled, found.basis) == (False, ONE)
    short = at(
        2, file, timing=timing(1.2, groups=tuple(timing(1.2).groups[::3]))
    )  # one block of three groups
    assert short.record.verdict == "invalid"
    found = only(old, short)
    assert (found.verdict, found.gain, found.blocks) == ("admitted", old.record.gain, 2)
    assert found.basis == "2 blocks of 2 runs whose verdicts differ; measured before blocks were taken anew"
    found = only(old, short, at(3, file, timing=timing(1.2)))
    assert (found.verdict, found.blocks, found.settled) == ("no_difference", 5, True)


def test_two_old_records_say_what_the_newer_said(old_file: Any, timing: Any) -> None:
    slower, faster = at(1, old_file, timing=timing(1.1)), at(2, old_file)
    found = only(slower, faster)
    assert (found.verdict, found.gain, found.settled) == ("admitted", faster.record.gain, False)
    assert found.basis == "2 blocks of 2 runs whose verdicts differ; measured before blocks were taken anew"
    assert only(at(3, old_file, timing=timing(1.1)), faster).verdict == "rejected"
    assert only(at(1, old_file), faster).basis == "2 blocks of 2 runs; measured before blocks were taken anew"


def test_three_old_records_are_three_blocks(old_file: Any, timing: Any) -> None:
    found = only(*(at(second, old_file, timing=timing(0.9 + second / 100)) for second in (1, 2, 3)))
    assert (found.blocks, found.settled) == (3, True)
    assert found.gain == pytest.approx(0.08, abs=1e-3)


def test_blocks_of_runs_without_a_verdict_of_their_own_count(file: Any, timing: Any) -> None:
    """A run of two blocks says nothing alone; two such runs have four."""
    groups = tuple(group for group in timing().groups if group.block < 2)
    runs = [at(second, file, timing=timing(groups=groups)) for second in (1, 2)]
    assert {run.record.verdict for run in runs} == {"invalid"}
    assert (only(*runs).verdict, only(*runs).blocks) == ("admitted", 4)


def test_what_differs_in_code_control_scope_or_cell_isnt_pooled(file: Any, timing: Any) -> None:
    here = at(9, file)
    others = [
        at(1, file, timing=timing(1.1), code_sha256="11" * 32),
        at(2, file, timing=timing(1.1), control_code_sha256="11" * 32),
        at(3, file, timing=timing(1.1, scope="boundary")),
        at(4, file, timing=timing(1.1), control="other"),
    ]
    found = [entry for entry in pooled([here, *others], SOURCES) if entry.file == here]
    assert [(entry.runs, entry.verdict) for entry in found] == [((here,), "admitted")]


def test_another_compiler_has_a_verdict_of_its_own(file: Any, timing: Any) -> None:
    """The same source by another NVRTC is other machine code."""
    old, new = (
        at(1, file, toolkit=by_nvrtc("12.9")),
        at(2, file, toolkit=by_nvrtc("13.0"), timing=timing(1.1)),
    )
    found = pooled([old, new], SOURCES)
    assert {(entry.file.record.compiler, entry.verdict) for entry in found} == {
        ("12.9", "admitted"),
        ("13.0", "rejected"),
    }
    library = [at(1, file, toolkit=by_nvrtc("12.9"), cubin_sha256=None)]
    library += [at(2, file, toolkit=by_nvrtc("13.0"), cubin_sha256=None)]
    assert only(*library).blocks == 6


def test_a_failure_isnt_outvoted(file: Any) -> None:
    wrong = Exactness(cases=1, values=10, mismatches=1, against="control replicated", first="x[3]")
    failed = at(2, file, timing=None, exactness=wrong)
    found = only(at(1, file), failed, at(3, file))
    assert (found.file, found.verdict, found.runs) == (failed, "rejected", ())
