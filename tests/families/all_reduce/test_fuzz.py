"""Schedule fuzz of every route: calls that follow each other without a sync, ranks that are skewed by chance."""

from __future__ import annotations

import pytest
from kernwright.emulator import fuzz

ROUTES = {"tagged_words": ("tagged", "narrow"), "one_stage": ("one",), "two_stage": ("two", "two_narrow")}
NAMES = [name for names in ROUTES.values() for name in names]
SEEDS = 2000
"""For each route, over its candidates."""
SHARES = {2: 1600, 4: 360, 8: 40}
"""By ranks. A thread that polls several words is woken by every write, so that tagged words of eight ranks take the
emulator seconds a schedule; with two ranks a hundredth of one."""


def calls(group, name, ranks, epoch=2**32 - 2):
    """Five calls across the wrap of the epoch: both parities, an input slot twice, sizes that differ."""
    made = group("bfloat16", ranks, epoch=epoch)
    made.call(name, "symmetric", 131)
    made.call(name, "staged", 64)
    made.call(name, "symmetric", 67)
    made.call(name, "staged", 131)
    made.call(name, "sum2", 131)
    return made


@pytest.mark.parametrize(("ranks", "seeds"), [(2, 60), (4, 25), (8, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_schedules(group, name, ranks, seeds):
    made = calls(group, name, ranks)
    fuzzed = fuzz(made.launches, made.expected, seeds)
    assert not fuzzed.problems, str(fuzzed)


def test_schedules_of_alternating_routes(group):
    made = group("float16", 4)
    for name in ("one", "two", "tagged", "two", "one", "narrow", "two_narrow", "one"):
        made.call(name, "symmetric", 90)
        made.call(name, "staged", 91)
    fuzzed = fuzz(made.launches, made.expected, 20)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("route", ROUTES)
def test_two_thousand_seeds_of_a_route(group, route, ranks):
    """2,000 in all, most with two ranks."""
    assert sum(SHARES.values()) == SEEDS
    share = SHARES[ranks] // len(ROUTES[route])
    for name in ROUTES[route]:
        made = calls(group, name, ranks)
        fuzzed = fuzz(made.launches, made.expected, share, first=1000)
        assert not fuzzed.problems, str(fuzzed)
