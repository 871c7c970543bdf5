"""Calls that overlap on one state, as those of a capture that is instantiated twice: right or NaN, and a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernwright.emulator import run, schedules

CANDIDATES = ("one", "one_teams", "one_look", "one_look_all")
UNSALTED = ("((last + 1) ^ salt)", "(last + 1)")
"""As if all calls had the same outputs: then those of one generation take each other's words."""


def is_nan(bits):
    return (bits & 0x7FFF) > 0x7C00


def overlapping(chain, name, calls, edits=()):
    """Two chains of so many boundaries with inputs and weights of their own, on two streams and one state."""
    first, second = (chain(name, spec="tiny", edits=edits).start(seed=seed) for seed in (1, 2))
    second.state = first.state
    for call in range(calls):
        first.add("boundary", 10 + call)
        second.add("boundary", 20 + call)
    launches = [*first.launches, *(replace(launch, stream=1) for launch in second.launches)]
    return launches, {**first.expected, **second.expected}, first.state["record"]


def outcomes(chain, name, seeds, first=0, calls=1, edits=()):
    """How many of so many schedules ended with a wrong value, with NaN, and with NaN but without a record."""
    launches, expected, record = overlapping(chain, name, calls, edits)
    wrong = lost = silent = 0
    for schedule in schedules(seeds, first):
        outcome = run(launches, schedule)
        assert outcome.fault is None, f"{schedule}: {outcome.fault}"
        found = [(outcome.arrays[buffer], right) for buffer, right in expected.items()]
        missing = any(is_nan(bits).any() for bits, _ in found)
        wrong += any(((bits != right) & ~is_nan(bits)).any() for bits, right in found)
        lost += missing
        silent += missing and not outcome.arrays[record][0]
    return wrong, lost, silent


@pytest.mark.parametrize("name", ["one", "one_look_all"])
def test_no_wrong_value(chain, name):
    wrong, lost, silent = outcomes(chain, name, 3)
    assert (wrong, silent) == (0, 0)
    assert lost, "no call lost its words to the other: nothing was shown"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CANDIDATES)
def test_no_wrong_value_in_calls_that_follow_each_other(chain, name):
    wrong, lost, silent = outcomes(chain, name, 60, first=1000, calls=3)
    print(f"{wrong} of 60 schedules with a wrong value, {lost} with NaN, {silent} of them without a record")
    assert (wrong, silent) == (0, 0)
    assert lost


def test_without_salt_a_call_takes_the_words_of_another(chain):
    """A negative control."""
    assert outcomes(chain, "one", 2, edits=(UNSALTED,))[0]
