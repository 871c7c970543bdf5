"""Paired timing on scripted samples: the order of samples, repeated groups, warm-up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernwright.evidence.health import Snapshot
from kernwright.evidence.timing import MAX_WARM_UP, Pace, alone, paired, warm

QUIET = Snapshot(foreign=(), sm_mhz=1980, throttles=0, ecc_errors=0)
BUSY = replace(QUIET, foreign=(4242,))


class Watch:
    """Gives snapshots in turn, then quiet ones; two a group."""

    def __init__(self, *snapshots):
        self.snapshots = list(snapshots)
        self.asked = 0

    def snapshot(self):
        self.asked += 1
        return self.snapshots.pop(0) if self.snapshots else QUIET


class Stopwatch:
    """A sample a call: times of an entry in turn, the last one for ever."""

    def __init__(self, **times):
        self.times = {name: list(values) for name, values in times.items()}
        self.calls = []

    def __call__(self, name, replays):
        self.calls.append((name, replays))
        values = self.times[name]
        return values.pop(0) if len(values) > 1 else values[0]

    @property
    def order(self):
        return "".join(name for name, _ in self.calls)


def test_the_order_turns_from_group_to_group_behind_one_uncounted_sample():
    sample = Stopwatch(A=[2.0], B=[1.0])
    groups = paired("A", "B", Watch(), Pace(groups=3, replays=7, most=6), sample)
    assert (
        sample.order == "AA" + "BB" + "A" + "ABBA" + "B" + "BAAB" + "A" + "ABBA"
    )  # two of each settle the warm-up
    assert {replays for _, replays in sample.calls} == {7}
    assert [(group.control, group.candidate, group.problem) for group in groups] == [
        ((2.0, 2.0), (1.0, 1.0), None)
    ] * 3


def test_samples_are_kept_in_the_order_taken():
    sample = Stopwatch(A=[1.0, 1.0, 99.0, 10.0, 13.0, 21.0, 22.0], B=[1.0, 1.0, 11.0, 12.0, 99.0, 20.0, 23.0])
    first, second = paired("A", "B", Watch(), Pace(groups=2, replays=1, most=2), sample)
    assert (first.control, first.candidate) == ((10.0, 13.0), (11.0, 12.0))
    assert (second.control, second.candidate) == ((21.0, 22.0), (20.0, 23.0))


def test_the_gpu_is_looked_at_before_and_after_every_group():
    watch = Watch()
    paired("A", "B", watch, Pace(groups=4, replays=1, most=8), Stopwatch(A=[1.0], B=[1.0]))
    assert watch.asked == 8


def test_bad_groups_are_kept_with_their_problem_and_repeated():
    watch = Watch(QUIET, QUIET, BUSY, QUIET, QUIET, BUSY)
    groups = paired("A", "B", watch, Pace(groups=3, replays=1, most=9), Stopwatch(A=[2.0], B=[1.0]))
    busy = "foreign process on the GPU: 4242"
    assert [group.problem for group in groups] == [None, busy, busy, None, None]
    assert groups[1].candidate == (1.0, 1.0)


def test_a_gpu_that_is_never_ours_is_given_up():
    watch = Watch(*[BUSY] * 100)
    groups = paired("A", "B", watch, Pace(groups=3, replays=1, most=5), Stopwatch(A=[2.0], B=[1.0]))
    assert len(groups) == 5
    assert all(group.problem for group in groups)


def test_a_contestant_alone_is_sampled_in_healthy_moments_only():
    sample = Stopwatch(A=[1.0, 1.0, 5.0, 9.0, 6.0, 7.0])
    watch = Watch(QUIET, QUIET, BUSY, QUIET)
    assert alone("A", watch, Pace(groups=3, replays=2, most=9), sample) == (5.0, 6.0, 7.0)


def test_a_contestant_alone_is_given_up_too():
    sample = Stopwatch(A=[1.0])
    assert alone("A", Watch(*[BUSY] * 100), Pace(groups=3, replays=2, most=4), sample) == ()
    assert len(sample.calls) == 2 + 4


@pytest.mark.parametrize(
    ("times", "calls"),
    [
        ([1.0], 2),
        ([5.0, 3.0, 2.0, 1.999, 1.0], 4),  # 0.05% apart ends it
        ([1.0, 1.01], 3),  # 1% is no end; 0% is
        ([2.0, 1.0, 2.0] + [1.0, 2.0] * MAX_WARM_UP, 1 + MAX_WARM_UP),
    ],
)
def test_warm_up_ends_when_the_time_settles_or_after_so_many_replays(times, calls):
    sample = Stopwatch(A=times)
    warm("A", 3, sample)
    assert len(sample.calls) == calls
