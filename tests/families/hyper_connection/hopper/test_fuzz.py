"""Schedule fuzz of overlapping boundaries: who runs when, when copies arrive, when a clock leaps."""

from __future__ import annotations

import pytest
from kernwright.emulator import Interleaving, find_races, fuzz

SEEDS = {
    "one": (6, 600),
    "one_teams": (4, 300),
    "one_look": (6, 300),
    "one_look_all": (4, 200),
    "two": (12, 600),
}
"""Schedules by default, and of the long test: 2,000 in all."""


def calls(chain, name):
    """Four boundaries across the wrap of the generation."""
    made = chain(name, spec="tiny", generation=2**32 - 3).start()
    for seed, kind in enumerate(("first", "boundary", "boundary", "final")):
        made.add(kind, seed)
    return made


@pytest.mark.parametrize("name", SEEDS)
def test_schedules(chain, name):
    made = calls(chain, name)
    fuzzed = fuzz(made.launches, made.expected, SEEDS[name][0])
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SEEDS)
def test_two_thousand_seeds(chain, name):
    made = calls(chain, name)
    fuzzed = fuzz(made.launches, made.expected, SEEDS[name][1], first=1000)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize(
    ("name", "spec", "calls"),
    [
        ("one", "pair", 2),
        ("two", "tiny", 1),
        pytest.param("one", "tiny", 2, marks=pytest.mark.long),
        pytest.param("one_teams", "tiny", 1, marks=pytest.mark.long),
        pytest.param("one_look", "tiny", 1, marks=pytest.mark.long),
        pytest.param("two", "pair", 2, marks=pytest.mark.long),
    ],
)
def test_no_races(chain, name, spec, calls):
    made = chain(name, spec=spec).start()
    for seed in range(calls):
        made.add("boundary", seed)
    assert find_races(made.launches, Interleaving(1, "random")) == ()
