"""Programs of the real size: one boundary of the served shape, and ranks with as many CTAs as a GPU has SMs."""

from __future__ import annotations

import pytest
from kernwright.emulator import Interleaving, compare, run

POLICIES = pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])


def problems(launches, expected, policy):
    """The fault of one run, or the differences from what is expected."""
    outcome = run(launches, Interleaving(2, policy))
    if outcome.fault is not None:
        return [outcome.fault]
    found = (compare(buffer, outcome.arrays[buffer], array) for buffer, array in expected.items())
    return [difference for difference in found if difference is not None]


@POLICIES
def test_one_boundary_of_the_real_shape(library, policy):
    program, expected = library.program("fp16-hc4-h2560-n1-r320-tp1", "replicated", "boundary")
    assert problems(program.launches, expected, policy) == []


@POLICIES
def test_four_ranks_of_160_ctas_that_wait_for_each_other(toy, policy):
    assert problems(*toy(ranks=4, ctas=160, threads=256, calls=1), policy) == []
