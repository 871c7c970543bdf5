"""CTAs that don't come: nobody hangs, the record says who waited for what, and no wrong value leaves a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import run, schedules


def is_nan(bits):
    return (bits & 0x7FFF) > 0x7C00


@pytest.mark.parametrize("name", ["one", "one_teams", "one_look", "one_look_all"])
def test_a_grid_that_is_not_complete(chain, name):
    """The last CTA is missing: the rows that it should sum never come."""
    made = chain(name, spec="tiny").start()
    before = made.add("boundary", 1)
    short = made.add("boundary", 2, fewer_ctas=1)
    layout, columns = made.entry.candidate.layouts(made.workload.workload)
    for schedule in schedules(3):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        assert all((outcome.arrays[buffer] == made.expected[buffer]).all() for buffer in before.values())
        mixed = min(layout.ctas - 1, columns.ctas) * columns.columns_per_cta
        assert is_nan(outcome.arrays[short["block_input"]].reshape(-1)[:mixed]).all()
        failures, cta, row, branch, expected, seen = outcome.arrays[made.state["record"]][:6].tolist()
        assert failures >= 1
        assert cta < layout.ctas - 1
        assert row >= layout.rows_per_cta  # what the missing CTA of the last branch should have summed
        assert (branch, expected, seen) == (3, 2, 1)


@pytest.mark.parametrize("name", ["one", "one_teams", "one_look", "one_look_all"])
def test_nobody_waits_after_a_failure(chain, name):
    """The calls of a graph that follow a failure give NaN at once, although all their CTAs come."""
    made = chain(name, spec="tiny").start()
    made.state["record"].array[0] = 1
    short = made.add("boundary", 1, fewer_ctas=1)
    outcome = run(made.launches)
    assert outcome.fault is None
    assert is_nan(outcome.arrays[short["block_input"]].reshape(-1)[:32]).all()
    assert outcome.arrays[made.state["record"]][1:].tolist() == [0] * 7  # the first failure stays what it was


@pytest.mark.parametrize("name", ["one", "one_look_all"])
def test_nothing_is_taken_after_a_failure(chain, name):
    """All CTAs come, and in time; but after a failure their counts may differ, and old words look like new ones."""
    made = chain(name, spec="tiny").start()
    made.state["record"].array[0] = 1
    outputs = made.add("boundary", 1)
    outcome = run(made.launches)
    assert outcome.fault is None
    assert is_nan(outcome.arrays[outputs["block_input"]]).all()
    assert (outcome.arrays[outputs["x"]] == made.expected[outputs["x"]]).all()


def test_a_cleared_record_makes_the_state_usable_again(chain):
    """Every CTA that ran has advanced its generation, so that the next call is right."""
    made = chain("one", spec="tiny").start()
    made.state["record"].array[0] = 1
    made.add("boundary", 1)
    arrays = run(made.launches).arrays
    again = chain("one", spec="tiny").start()
    for name in ("exchange", "generations"):
        again.state[name].array[:] = arrays[made.state[name]]
    outputs = again.add("boundary", 1)
    outcome = run(again.launches)
    assert outcome.fault is None
    assert all((outcome.arrays[buffer] == again.expected[buffer]).all() for buffer in outputs.values())
    assert set(outcome.arrays[again.state["generations"]].tolist()) == {2}


def test_without_a_bound_it_would_hang(chain):
    """A negative control: the missing CTA is waited for without end."""
    made = chain(
        "one", spec="tiny", edits=(("ticks_of(nanoseconds()) - began > call.timeout && ", "false && "),)
    )
    made.start().add("boundary", 1, fewer_ctas=1)
    fault = run(made.launches, patience=5).fault
    assert fault is not None
    assert np.any(["exchange" in wait for wait in fault.waits])
