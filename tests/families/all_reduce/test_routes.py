"""Every route and operation gives the one right answer, on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from harness.payload_routes import route_for
from kernwright.emulator import check, find_races, fuzz, run

DTYPES = ("float16", "bfloat16", "float32")
CANDIDATES = ("tagged", "narrow", "one", "two", "two_narrow")
OPERATIONS = ("symmetric", "staged", "sum2")
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
CAPACITY = 2048


def right(group, seeds: int) -> None:
    checked = check(group.launches, group.expected)
    assert not checked.problems, "\n".join(map(str, checked.problems))
    fuzzed = fuzz(group.launches, group.expected, seeds, first=1)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_routes_one_after_the_other_on_one_channel(group, dtype, ranks):
    """Grids and routes alternate without a sync; sizes are odd, so that words, parts and grids have tails."""
    made = group(dtype, ranks)
    sizes = iter([1, 33, 257, 63, 65, 130, 7, 512, 255, 17, 301, 100, 31, 9, 129])
    for name in CANDIDATES:
        for operation in OPERATIONS:
            made.call(name, operation, next(sizes))
    right(made, seeds=4 if ranks == 8 else 8)
    arrays = run(made.launches).arrays
    assert all(made.epoch_of(arrays, rank) == 15 for rank in range(ranks))
    assert all(made.record(arrays, rank)[0] == 0 for rank in range(ranks))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CANDIDATES)
def test_sizes(group, dtype, name):
    """One element, a word more and less, and exactly the capacity."""
    full = CAPACITY // BYTES[dtype]
    for numel in (1, 2, 7, 8, 9, 8 * 16 - 1, 8 * 16, 8 * 16 + 1, full - 1, full):
        made = group(dtype, 2)
        for operation in OPERATIONS:
            made.call(name, operation, numel)
        right(made, seeds=1)


@pytest.mark.parametrize(("dtype", "shift"), [("float16", 1), ("bfloat16", 3), ("float32", 1)])
def test_tensors_that_are_aligned_as_their_elements_only(group, dtype, shift):
    """The text's pointers are moved; nothing before the first or behind the last element may be touched."""
    edit = (".of[blockIdx.y], numel)", f".of[blockIdx.y] + {shift}, numel)")
    made = group(dtype, 2, edits=(edit,))
    for name in CANDIDATES:
        for operation in ("staged", "sum2"):
            made.call(name, operation, 121, shift=shift)
    right(made, seeds=2)


@pytest.mark.parametrize("name", CANDIDATES)
def test_the_output_may_be_the_input(group, name):
    made = group("float16", 4)
    made.call(name, "staged", 203, in_place=True)
    made.call(name, "sum2", 203, in_place=True)
    right(made, seeds=6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_routes_agree_on_both_sides_of_every_threshold(group, dtype):
    made = group(dtype, 4)
    for threshold in (512, 1024):
        for numel in (threshold // BYTES[dtype] + offset for offset in (-1, 0, 1)):
            given = made.values(numel)
            for name in CANDIDATES:
                made.call(name, "staged", numel, given)
                made.call(name, "symmetric", numel, given, slot=1)
    right(made, seeds=1)


def test_sizes_that_alternate_around_the_threshold(group):
    """One row and sixteen in turn, on the route that the spec's table gives."""
    made = group("bfloat16", 4)
    routes = {c.candidate.route: c.candidate.name for c in reversed(made.entry.candidates)}
    taken = []
    for rows in (1, 16, 1, 16, 10, 1, 16, 9):
        numel = rows * 56
        taken.append(route_for(made.spec, made.entry.workload, numel * 2))
        made.call(routes[taken[-1]], "symmetric", numel)
    assert set(taken) == {"tagged_words", "one_stage", "two_stage"}
    right(made, seeds=12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CANDIDATES)
def test_special_values(group, bits, dtype, name):
    made = group(dtype, 4)
    for value in (0.0, -0.0, np.inf, np.nan):
        made.call(name, "staged", 37, [bits(np.full(37, value), dtype)] * 4)
    mixed = np.tile(
        np.array([1.0, -0.0, np.inf, -np.inf, np.nan, 60000.0, -60000.0, 2.0**-24], np.float32), 8
    )
    made.call(name, "symmetric", 64, [bits(np.roll(mixed, rank), dtype) for rank in range(4)])
    made.call(name, "staged", 64, [bits(np.full(64, 60000.0), dtype)] * 4)  # overflows in float16
    made.call(name, "sum2", 64, [bits(np.full(64, 40000.0), dtype)] * 4)
    right(made, seeds=1)


@pytest.mark.parametrize("name", CANDIDATES)
def test_ranks_of_one_grid(group, name):
    """The same text with all ranks in one launch, as on a machine with one GPU."""
    made = group("bfloat16", 4)
    for numel in (1, 300, 77):
        for operation in ("staged", "sum2"):
            made.call(name, operation, numel, one_grid=True)
    right(made, seeds=6)


@pytest.mark.parametrize("name", CANDIDATES)
def test_even_and_odd_ranks_of_eight(group, name):
    """Two groups of four with a channel each, at the same time."""
    even = group("float16", 4, devices=(0, 2, 4, 6), seed=1)
    odd = group("float16", 4, devices=(1, 3, 5, 7), seed=2)
    for made in (even, odd):
        for operation in OPERATIONS:
            made.call(name, operation, 150)
    even.launches += odd.launches
    even.expected |= odd.expected
    right(even, seeds=2)


@pytest.mark.parametrize("epoch", [2**24 - 2, 2**24 - 1, 2**31 - 1, 2**32 - 3, 2**32 - 2, 2**32 - 1])
@pytest.mark.parametrize("name", CANDIDATES)
def test_epochs_wrap(group, name, epoch):
    made = group("bfloat16", 2, epoch=epoch)
    for numel in (3, 300, 40, 301):
        for operation in OPERATIONS:
            made.call(name, operation, numel)
    right(made, seeds=2)
    last = epoch
    for _ in range(12):
        # Generation 0 is what nobody has written; odd and even take turns.
        last = (last + (3 if last % 2**24 == 2**24 - 1 else 1)) % 2**32
    assert made.epoch_of(run(made.launches).arrays, 1) == last


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CANDIDATES)
def test_no_race(group, name, ranks):
    made = group("bfloat16", ranks)
    for operation in OPERATIONS:
        made.call(name, operation, 201)
    assert find_races(made.launches) == ()
