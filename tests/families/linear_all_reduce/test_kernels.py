"""The kernels that reduce slices: the one right answer on every rank, and nothing in them is superfluous."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import Interleaving, check, find_races, fuzz, run, schedules

NAMES = ("whole", "few", "one", "two", "between")
TEXTS = ("few", "one", "two")
"""All that differ in more than a grid."""
COPIES = ("one", "two", "between")
SLICES = ([9, 40, 131], [131, 8, 3], [301])
"""Elements of the slices of calls that follow each other: odd sizes, parts that some ranks haven't, and a first slice
that lies where the last one of the call before lay."""


def calls(group, name, edits=(), dtype="bfloat16", ranks=2, count=3):
    made = group(dtype, ranks, edits=edits)
    for slices in SLICES[:count]:
        made.call(name, slices)
    return made


@pytest.mark.parametrize(
    ("dtype", "ranks", "seeds"), [("float16", 2, 12), ("bfloat16", 2, 6), ("bfloat16", 4, 3)]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_has_the_ranks_sum(group, name, dtype, ranks, seeds):
    made = calls(group, name, dtype=dtype, ranks=ranks)
    checked = check(made.launches, made.expected)
    assert not checked.problems, "\n".join(map(str, checked.problems))
    fuzzed = fuzz(made.launches, made.expected, seeds, first=1)
    assert not fuzzed.problems, str(fuzzed)
    assert all(made.record(run(made.launches).arrays, rank)[0] == 0 for rank in range(ranks))


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_many_schedules(group, name, ranks):
    made = calls(group, name, ranks=ranks)
    fuzzed = fuzz(made.launches, made.expected, 1000 // ranks, first=1000)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize("name", TEXTS)
def test_no_race(group, name):
    assert find_races(calls(group, name, count=2).launches) == ()


def test_routes_share_one_channel(group):
    """A meeting of one warp may follow a grid's, and the other way round."""
    made = group("float16", 2)
    for name in ("one", "few", "two", "whole", "one"):
        made.call(name, [64, 33])
    fuzzed = fuzz(made.launches, made.expected, 8)
    assert not fuzzed.problems, str(fuzzed)


def test_special_values(group):
    made = group("float16", 4)
    one = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 60000.0, -60000.0, 2.0**-24], np.float16)
    for name in NAMES:
        made.call(name, [64], [np.roll(np.tile(one, 8), rank).view(np.uint16) for rank in range(4)])
        made.call(name, [37], [np.full(37, -0.0, np.float16).view(np.uint16)] * 4)
    checked = check(made.launches, made.expected)
    assert not checked.problems, "\n".join(map(str, checked.problems))


# ---- mutants ----


def found(made, seeds=40) -> bool:
    """By fuzzing, else by ThreadSanitizer."""
    if fuzz(made.launches, made.expected, seeds).problems:
        return True
    return bool(find_races(made.launches, Interleaving(1, "random")))


def without(made, kernel: str, nth: int):
    """The launches without every rank's `nth` launch of a kernel."""
    symbols = {candidate.symbols.get(kernel) for candidate in made.entry.candidates}
    for rank in range(made.ranks):
        of_rank = [launch for launch in made.launches if launch.rank == rank and launch.symbol in symbols]
        made.launches[:] = [launch for launch in made.launches if launch is not of_rank[nth]]
    return made


@pytest.mark.parametrize(("name", "meetings"), [("one", 3), ("two", 6), ("between", 6)])
def test_every_meeting_is_needed(group, name, meetings):
    """Of the first call, which has three slices."""
    for nth in range(meetings):
        assert found(without(calls(group, name, count=2), "meet", nth)), nth


@pytest.mark.parametrize("name", COPIES)
def test_the_end_of_a_call_is_needed(group, name):
    """Without it the next GEMM overwrites what a peer still fetches."""
    assert found(without(calls(group, name, count=2), "close", 0))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("order", ["ACQUIRE", "RELEASE"])
def test_acquire_and_release_are_needed(group, name, order):
    call = {"ACQUIRE": "load_n(const_cast<unsigned long long*>(flag)", "RELEASE": "store_n(flag, value"}[
        order
    ]
    old = f"__nv_atomic_{call}, __NV_ATOMIC_{order}, __NV_THREAD_SCOPE_SYSTEM)"
    edit = (old, old.replace(order, "RELAXED"))
    assert find_races(calls(group, name, (edit,), count=1).launches)


CHANGES = [
    ("one", ("fetched + stride * rank", "fetched + stride * (1 - rank)")),
    ("one", ("rank == rank_base ? own", "rank == 0 ? own")),
    ("one", ("result + begin_at", "result")),
    ("two", ("    store(tensor(own, numel), word, sum);\n", "")),
    ("two", ("PARTIALS_AT + at);", "PARTIALS_AT);")),
    ("few", ("PARTIALS_AT + at,", "PARTIALS_AT,")),
    ("few", ("result + begin_at", "result")),
    ("whole", ("words_at(call.own, SCRATCH_AT)[i] = sum;", "")),
]


@pytest.mark.parametrize(("name", "edit"), CHANGES)
def test_a_changed_computation_is_found(group, name, edit):
    made = calls(group, name, (edit,))
    assert edit[0] in made.candidate(name).sources[-1].text
    assert fuzz(made.launches, made.expected, 4).problems


# ---- a rank that stays away ----


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_skips_a_call_leaves_nan_and_a_record(group, name):
    made = group("bfloat16", 2)
    before = made.call(name, [64, 33])
    skipped = made.call(name, [64, 33], skip=(1,))
    for schedule in schedules(4):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        assert all((outcome.arrays[result] == made.expected[result]).all() for result in before)
        assert (outcome.arrays[skipped[0]] == 0xFFFF).all()
        failures, rank, peer = made.record(outcome.arrays, 0)[:3]
        assert failures >= 1
        assert (rank, peer) == (0, 1)
        assert made.record(outcome.arrays, 1)[0] == 0


@pytest.mark.parametrize("edit", [("if (!met) {", "if (false) {")])
def test_a_result_that_is_not_spoilt_would_be_seen(group, edit):
    made = group("bfloat16", 2, edits=(edit,))
    made.call("two", [64])
    (skipped, _) = made.call("two", [64], skip=(1,))
    assert any((run(made.launches, schedule).arrays[skipped] != 0xFFFF).any() for schedule in schedules(8))
