"""A new winner is confirmed in a run of both; until then the old one stays."""

from __future__ import annotations

from typing import Any

import pytest
from kernwright.ledger import Exactness, HeadToHead, RecordFile, Timing, displaced_by, winners
from kernwright.ledger.winner import Winner

SPEC, LABEL = "qwen38_flash_tp1", "fp16-hc4-h2560-n1-r320-tp1"
CODES = {"replicated": "cd" * 32, "old": "11" * 32, "new": "22" * 32}
SOURCES = {(SPEC, LABEL, name, "sm_90"): code for name, code in CODES.items()}


@pytest.fixture
def run(file: Any, timing: Any) -> Any:
    """A run of a candidate, so long after the others, with a ratio to the control and perhaps one to another."""

    def made(name: str, second: int, ratio: float, both: Timing | None = None, **changes: Any) -> RecordFile:
        against = changes.pop("against", "old")
        met = None
        if both is not None:
            met = HeadToHead(against=against, code_sha256=changes.pop("of", CODES[against]), timing=both)
        found: RecordFile = file(
            candidate=name,
            code_sha256=CODES[name],
            measured_at=f"2026-03-01T12:00:{second:02}Z",
            timing=timing(ratio),
            head_to_head=met,
            **changes,
        )
        return found

    return made


def winner(*files: RecordFile) -> Winner | None:
    found = winners(files, SOURCES)
    assert len(found) <= 1
    return next(iter(found.values()), None)


def shown(found: Winner | None) -> tuple[str, tuple[str, ...]]:
    assert found is not None
    return found.name, found.unconfirmed


def test_a_larger_gain_alone_displaces_nothing(run: Any) -> None:
    assert shown(winner(run("old", 1, 0.9), run("new", 2, 0.8))) == ("old", ("new",))


def test_blocks_of_both_do(run: Any, timing: Any) -> None:
    assert shown(winner(run("old", 1, 0.9), run("new", 2, 0.8, timing(0.9)))) == ("new", ())


def test_a_run_of_both_must_be_won(run: Any, timing: Any) -> None:
    for both in (timing(1.0), timing(1.1), timing(0.9, groups=timing(0.9).groups[::3])):
        assert shown(winner(run("old", 1, 0.9), run("new", 2, 0.8, both))) == ("old", ("new",))


def test_of_two_in_one_second_the_one_that_was_compared_came_last(run: Any, timing: Any) -> None:
    """Its file may sort first."""
    old, new = run("old", 1, 0.9), run("new", 1, 0.8, timing(1.05))
    assert new.name < old.name
    assert shown(winner(new, old)) == ("old", ("new",))


def test_a_run_against_other_code_counts_for_nothing(run: Any, timing: Any) -> None:
    other = run("new", 2, 0.8, timing(0.9), of="99" * 32)
    assert shown(winner(run("old", 1, 0.9), other)) == ("old", ("new",))
    third = run("new", 2, 0.8, timing(0.9), against="replicated")
    assert shown(winner(run("old", 1, 0.9), third)) == ("old", ("new",))


def test_runs_of_both_are_pooled(run: Any, timing: Any) -> None:
    """One that is won after one that was lost wins nothing."""
    old, lost = run("old", 1, 0.9), run("new", 2, 0.8, timing(1.2))
    assert shown(winner(old, lost, run("new", 3, 0.8, timing(0.9)))) == ("old", ("new",))


def test_among_old_records_the_largest_gain_wins(run: Any, old_file: Any, timing: Any) -> None:
    """As before there were blocks; a new run of the other is a challenge."""
    old = [
        old_file(candidate=name, code_sha256=CODES[name], timing=timing(ratio))
        for name, ratio in (("old", 0.8), ("new", 0.85))
    ]
    assert shown(winner(*old)) == ("old", ())
    assert shown(winner(*old, run("new", 2, 0.75))) == ("old", ("new",))


def test_a_winner_that_isnt_admitted_any_more_has_no_place(run: Any) -> None:
    files = [run("old", 1, 0.9), run("new", 2, 0.8), run("old", 3, 1.3)]
    assert shown(winner(*files)) == ("new", ())
    changed = {**SOURCES, (SPEC, LABEL, "old", "sm_90"): "77" * 32}
    (found,) = winners(files[:2], changed).values()
    assert shown(found) == ("new", ())


def test_a_source_that_failed_anywhere_wins_nowhere(run: Any) -> None:
    wrong = Exactness(cases=1, values=10, mismatches=1, against="control replicated", first="x[3]")
    device = run("old", 1, 0.9).record.device.model_copy(update={"name": "NVIDIA H100"})
    failed = run("old", 3, 0.9, device=device, exactness=wrong)
    assert shown(winner(run("old", 1, 0.7), run("new", 2, 0.8), failed)) == ("new", ())


def test_a_benchmark_asks_whom_a_record_would_displace(run: Any) -> None:
    old, new = run("old", 1, 0.9), run("new", 2, 0.8)
    found = displaced_by(new, [old], SOURCES)
    assert found is not None
    assert found.name == "old"
    assert displaced_by(run("new", 2, 0.95), [old], SOURCES) is None
    assert displaced_by(run("new", 2, 1.2), [old], SOURCES) is None
    assert displaced_by(run("old", 2, 0.8), [old], SOURCES) is None
    assert displaced_by(new, [], SOURCES) is None
