"""Thresholds from curves: the least time over all sizes, borders in the middle, never beyond what a route carries."""

from __future__ import annotations

import pytest
from kernwright.evidence.crossing import Curve, crossings
from kernwright.families.all_reduce.evidence import grid

SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
WIDE = {"tagged_words": 8192, "one_stage": 10**6, "two_stage": 10**6}


def curve(tagged, one, two, most=WIDE):
    return Curve(SIZES, {"tagged_words": tagged, "one_stage": one, "two_stage": two}, most)


def test_routes_follow_each_other_where_they_cross():
    found = crossings(
        curve((2, 2, 3, 6, None, None), (4, 4, 4, 4, 5, 9), (6, 6, 6, 6, 6, 6)),
        low=4,
    )
    # From 4,096 to 8,192 tagged words lose; the middle is 5,792. From 16,384 to 32,768: 23,170.
    assert found.begins == {"one_stage": 5792, "two_stage": 23170}
    assert found.loss == 0


def test_a_border_never_lies_beyond_what_the_route_before_carries():
    found = crossings(
        curve(
            (2, 2, 2, 2, None, None), (4, 4, 4, 4, 5, 9), (6, 6, 6, 6, 6, 6), {**WIDE, "tagged_words": 9000}
        ),
        4,
    )
    assert found.begins == {"one_stage": 9001, "two_stage": 23170}


def test_a_route_that_never_wins_is_left_out():
    found = crossings(curve((2, 2, 2, 2, None, None), (9,) * 6, (3,) * 6), 4)
    assert found.begins == {"one_stage": None, "two_stage": 8193}
    assert crossings(curve((None,) * 6, (1,) * 6, (3,) * 6), 4).begins == {"one_stage": 4, "two_stage": None}
    assert crossings(curve((1,) * 6, (1,) * 6, (1,) * 6), 4).begins == {"one_stage": None, "two_stage": None}


def test_noise_costs_a_little_and_moves_no_border():
    """One size where another route is a hair faster doesn't split the interval."""
    found = crossings(curve((2, 3, 2, 6, None, None), (4, 2.9, 4, 4, 5, 5), (9,) * 6), 4)
    assert found.begins == {"one_stage": 5792, "two_stage": None}
    assert found.loss == pytest.approx((3 / 2.9 - 1) / 6)


def test_sizes_that_no_order_serves():
    with pytest.raises(ValueError, match="no order of the routes serves all sizes"):
        crossings(Curve((1, 2, 3), {"a": (1, None, 1), "b": (None, 1, None)}, {"a": 9, "b": 9}), 1)


def test_the_grid_is_powers_of_two_and_what_lies_between_and_the_most():
    assert grid(4, 10_000) == (1024, 1536, 2048, 3072, 4096, 6144, 8192, 10_000)
    assert grid(4, 4096) == (1024, 1536, 2048, 3072, 4096)
    assert grid(2048, 4096) == (2048, 3072, 4096)
    assert grid(4, 512) == (512,)
