"""A rank that stays away: nobody hangs, the record says who, and no wrong sum leaves a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import Interleaving, find_races, run, schedules
from kernwright.table import OVERLAP

CANDIDATES = ("tagged", "narrow", "one", "two", "two_narrow")
OPERATIONS = ("symmetric", "staged", "sum2")
NUMEL = 401
START, SECOND, PACKET = 0, 1, 2


def poisoned(made, output, outcome) -> bool:
    """NaN everywhere."""
    return bool((outcome.arrays[output] == np.iinfo(outcome.arrays[output].dtype).max).all())


def answers(made, output, outcome) -> bool:
    return bool((outcome.arrays[output] == made.expected[output]).all())


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rank_that_skips_a_call(group, name, operation):
    made = group("bfloat16", 2)
    before = made.call(name, operation, NUMEL)
    skipped = made.call(name, operation, NUMEL, skip=[1])
    for schedule in schedules(4):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        assert all(answers(made, output, outcome) for output in before)
        assert poisoned(made, skipped[0], outcome)
        failures, rank, peer, waited_for, expected, seen, cta = made.record(outcome.arrays, 0)
        assert failures >= 1
        assert (rank, peer, expected) == (0, 1, 2)
        assert waited_for == (PACKET if made.candidate(name).candidate.route == "tagged_words" else START)
        assert seen == (0 if waited_for == PACKET else 1)  # packets of even epochs were never written
        assert cta < made.candidate(name).candidate.ctas
        assert made.record(outcome.arrays, 1)[0] == 0
        assert [made.epoch_of(outcome.arrays, rank) for rank in (0, 1)] == [
            1,
            1,
        ]  # a call that failed isn't counted


def late(group, name, operation, edits=()):
    """Rank 1 comes hours late to the second of four calls, unless it runs long before its peers come there."""
    made = group("bfloat16", 4, edits=edits)
    made.call(name, operation, NUMEL)
    made.delay(1, 10_000)
    return made, [made.call(name, operation, NUMEL) for _ in range(3)]


def right_or_poison(made, output, outcome) -> bool:
    """Every element is the right one or NaN."""
    found = outcome.arrays[output]
    return bool(((found == made.expected[output]) | (found == np.iinfo(found.dtype).max)).all())


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rank_that_comes_late_gets_no_wrong_sum(group, name, operation):
    """Its peers have failed and gone on; what they published before may still be right, nothing else is used."""
    made, calls = late(group, name, operation)
    failures = 0
    for schedule in schedules(8):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        assert all(right_or_poison(made, output, outcome) for outputs in calls for output in outputs)
        if made.record(outcome.arrays, 0)[0]:
            failures += 1
            assert all(made.record(outcome.arrays, rank)[0] for rank in range(4))
            assert all(poisoned(made, output, outcome) for output in calls[2])
    assert failures


@pytest.mark.parametrize(
    ("name", "operation", "edit"),
    [
        # Failed ranks go on publishing: the late one is misled.
        ("one", "staged", ("bool met = !call.lost;", "bool met = true;")),
        # Failed ranks go on copying: the late one reads the copy of another call.
        ("one", "staged", ("if (!call.lost)\n", "if (true)\n")),
    ],
)
def test_ranks_that_go_on_after_a_failure_are_found(group, name, operation, edit):
    made, calls = late(group, name, operation, (edit,))
    outcomes = [run(made.launches, schedule) for schedule in schedules(8)]
    assert not all(
        right_or_poison(made, output, outcome)
        for outcome in outcomes
        for outputs in calls
        for output in outputs
    )


def failures_of_a_graph(group, name, *edits):
    """Failures that rank 0 counts in eight calls that rank 1 skips, and the threads of its grid."""
    made = group("float16", 2, edits=edits)
    for _ in range(8):
        made.call(name, "staged", 65, skip=[1])
    outcome = run(made.launches)
    assert outcome.fault is None
    assert made.record(outcome.arrays, 0)[4] == 1  # the first one is kept
    schedule = made.candidate(name).candidate
    return made.record(outcome.arrays, 0)[0], schedule.ctas * schedule.threads


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_failed_rank_does_not_wait_again(group, name):
    """The calls of a graph that follow a failure end at once: only the first one waits."""
    failures, threads = failures_of_a_graph(group, name)
    assert 1 <= failures <= threads


def test_waiting_again_would_be_seen(group):
    first, _ = failures_of_a_graph(group, "tagged")
    every, _ = failures_of_a_graph(group, "tagged", ("alive = !call.lost;", "alive = true;"))
    assert every == 8 * first


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_failure_races_with_nothing(group, name):
    made = group("bfloat16", 2)
    made.call(name, "staged", 101)
    made.call(name, "staged", 101, skip=[1])
    made.call(name, "symmetric", 101, skip=[1])
    assert find_races(made.launches, Interleaving(3, "random")) == ()


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("operation", ["staged", "sum2"])
def test_two_streams_on_one_channel_are_noticed(group, name, operation):
    """Rank 1 comes late, so that rank 0 has both calls running at once: under graph replay no host code sees it."""
    made = group("bfloat16", 2)
    for stream in (0, 1):
        made.delay(1, 10, stream)
        made.call(name, operation, NUMEL, stream=stream)
    for schedule in schedules(6):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        failures, rank, peer, waited_for, *_ = made.record(outcome.arrays, 0)
        assert failures >= 1
        assert (rank, peer, waited_for) == (0, 0, OVERLAP)


@pytest.mark.parametrize("name", CANDIDATES)
def test_calls_one_after_the_other_leave_no_ticket(group, name):
    made = group("float16", 2)
    for operation in OPERATIONS:
        made.call(name, operation, NUMEL)
    outcome = run(made.launches, Interleaving(seed=3, policy="random"))
    for rank in (0, 1):
        words, at = made.words(outcome.arrays, rank), made.layout.ticket // 4
        assert words[at : at + 2].tolist() == [0, 3]
        assert made.record(outcome.arrays, rank)[0] == 0
