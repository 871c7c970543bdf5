"""A rank that stays away: nobody hangs, the record says who, NaN stands where a value is missing."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import Interleaving, find_races, run, schedules

NAMES = ("gates", "hidden", "fused", "fused_serial")
DOWN, FUSED = 4, 7
SIZES = {"x": 128, "block_input": 32, "injection_out": 4}


def is_nan(bits) -> bool:
    return bool(np.isnan(bits.view(np.float16)).all())


def some_nan(bits) -> bool:
    return bool(np.isnan(bits.view(np.float16)).any())


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_skips_a_call(group, name):
    """Others see it at the first exchange; what doesn't depend on peers is still right."""
    made = group("fp16-hc4-h32-n1-r64-tp4", "tiny", generation=65_535)
    before = made.call(name, seed=1)
    skipped = made.call(name, seed=2, skip=[2])
    after = made.call(name, seed=3, skip=[2])
    for schedule in schedules(4):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        for buffers in before:
            assert all((outcome.arrays[buffers[out]] == made.expected[buffers[out]]).all() for out in SIZES)
        for rank, buffers in zip((0, 1, 3), skipped, strict=True):
            assert (outcome.arrays[buffers["x"]] == made.expected[buffers["x"]]).all()
            assert some_nan(outcome.arrays[buffers["lora"]])
            assert is_nan(outcome.arrays[buffers["block_input"]])
            failures, who, peer, exchange, generation, seen, cta = made.record(outcome.arrays, rank)
            assert failures >= 1
            assert (who, exchange, generation, cta) == (rank, DOWN, 65_536, 0)
            assert seen == 65_533  # what the slot held at first; the rank has not written it since
            assert peer == 2
        for buffers in after:
            assert all(is_nan(outcome.arrays[buffers[out]]) for out in ("block_input", "injection_out"))
        assert made.record(outcome.arrays, 2)[0] == 0
        down, *_ = made.counters(outcome.arrays, 0)
        assert down == {65_538}


def test_a_rank_that_leaves_between_the_exchanges(group):
    """Its down packet is there, its outputs aren't: the fused launch waits, and gives up."""
    made = group("fp16-hc4-h32-n1-r64-tp2", "tiny")
    (first, _) = made.call("fused", seed=1)
    last = max(i for i, launch in enumerate(made.launches) if "up_mix" in launch.symbol and launch.rank == 1)
    del made.launches[last]
    outcome = run(made.launches)
    assert outcome.fault is None
    found = outcome.arrays[first["block_input"]][0]
    right = made.expected[first["block_input"]][0]
    assert (found[:16] == right[:16]).all()  # its own share
    assert is_nan(found[16:])
    failures, *facts = made.record(outcome.arrays, 0)
    assert failures >= 1
    assert facts[:5] == [0, 1, FUSED, 2, 0]


def test_a_failed_rank_does_not_wait_again(group):
    """The calls of a graph that follow a failure end at once: only the first one waits."""

    def failures(*edits) -> int:
        made = group("fp16-hc4-h32-n1-r64-tp2", "tiny", edits=edits)
        for call in range(6):
            made.call("fused", seed=1 + call, skip=[1])
        outcome = run(made.launches)
        assert outcome.fault is None
        assert made.record(outcome.arrays, 0)[4] == 2  # the first one is kept
        return made.record(outcome.arrays, 0)[0]

    assert failures(("bool alive = !failed(call);", "bool alive = true;")) > 2 * failures()


@pytest.mark.parametrize("name", ["gates", "fused"])
def test_a_failure_races_with_nothing(group, name, small_exchanges):
    made = group("fp16-hc4-h32-n1-r64-tp2", "tiny", edits=small_exchanges.edits)
    made.call(name, seed=1)
    made.call(name, seed=2, skip=[1])
    assert find_races(small_exchanges.launches(made.launches), Interleaving(3, "random")) == ()
