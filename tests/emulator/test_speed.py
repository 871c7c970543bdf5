"""How long it takes; the limits are far above what an idle machine needs."""

from __future__ import annotations

import time

import pytest
from kernwright.emulator import Interleaving, compare, run


def seconds(launches, schedule=Interleaving()):  # noqa: B008
    started = time.perf_counter()
    outcome = run(launches, schedule)
    assert outcome.fault is None
    return time.perf_counter() - started, outcome


@pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])
def test_one_boundary_of_the_real_shape(library, policy):
    program, _ = library.program("fp16-hc4-h2560-n1-r320-tp1", "replicated", "boundary")
    taken, _ = seconds(program.launches, Interleaving(2, policy))
    assert taken < 5


@pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])
def test_four_ranks_of_160_ctas_that_wait_for_each_other(toy, policy):
    launches, expected = toy(ranks=4, ctas=160, threads=256, calls=1)
    taken, outcome = seconds(launches, Interleaving(2, policy))
    assert taken < 60
    assert all(compare(buffer, outcome.arrays[buffer], array) is None for buffer, array in expected.items())
