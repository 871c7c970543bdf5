"""Shuffles, votes, barriers and special registers against what CUDA defines, for every schedule policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Interleaving, find_races, fuzz, run
from kernwright.emulator.report import Deadlock

POLICIES = ("round_robin", "random", "adversarial")


def launched(kernel, symbol, array, count, *scalars, dtype="int32", threads=32, schedule=Interleaving()):  # noqa: B008
    output = DeviceBuffer.output("output", (count,), dtype)
    args = (*((DeviceBuffer.input("input", array),) if array is not None else ()), output, *scalars)
    outcome = run([EmulatedLaunch(kernel, symbol, (1, 1, 1), (threads, 1, 1), args)], schedule)
    assert outcome.fault is None
    return outcome.arrays[output]


def shuffled(values, argument, width):
    """CUDA's own definition, lane by lane."""
    rows = [[], [], [], []]
    for lane in range(32):
        low = lane // width * width
        high = low + width - 1
        up = lane - argument if lane - argument >= low else lane
        down = lane + argument if lane + argument <= high else lane
        across = lane ^ argument if lane ^ argument <= high else lane
        for row, source in zip(rows, (low + argument % width, up, down, across), strict=True):
            row.append(values[source])
    return np.concatenate(rows)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=32, max_size=32),
    argument=st.integers(0, 31),
    width=st.sampled_from([1, 2, 4, 8, 16, 32]),
    seed=st.integers(0, 1000),
    policy=st.sampled_from(POLICIES),
)
def test_shuffles(kernel, values, argument, width, seed, policy):
    array = np.array(values, np.int32)
    sizes = np.int32(argument), np.int32(width)
    found = launched(
        kernel("collectives.cu"), "shuffles", array, 128, *sizes, schedule=Interleaving(seed, policy)
    )
    assert (found == shuffled(array, argument, width)).all()


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.integers(-8, 8), min_size=32, max_size=32),
    seed=st.integers(0, 1000),
    policy=st.sampled_from(POLICIES),
)
def test_votes(kernel, values, seed, policy):
    array = np.array(values, np.int32)
    found = launched(
        kernel("collectives.cu"), "votes", array, 256, dtype="uint32", schedule=Interleaving(seed, policy)
    )
    ballot, anys, match, both, add, low, high, xor = found.reshape(8, 32)
    unsigned = array.view(np.uint32)
    for lane in range(32):
        mine = np.arange(32) % 2 == lane % 2
        bits = np.uint64(1) << np.arange(32, dtype=np.uint64)
        group = array[mine]
        assert ballot[lane] == bits[mine & (array > 0)].sum()
        assert anys[lane] == int((group > 5).any()) + 2 * int((group > -5).all())
        assert match[lane] == bits[array == array[lane]].sum()
        assert both[lane] == bits[mine].sum() + 1
        assert add[lane] == unsigned.sum(dtype=np.uint32)
        assert low[lane].astype(np.int32) == array.min()
        assert high[lane] == unsigned[mine].max()
        assert xor[lane] == np.bitwise_xor.reduce(unsigned[mine])


@pytest.mark.parametrize("policy", POLICIES)
def test_counting_barriers(kernel, policy):
    array = np.arange(-30, 66, dtype=np.int32)
    found = launched(
        kernel("collectives.cu"), "counts", array, 192, threads=96, schedule=Interleaving(1, policy)
    )
    assert (found[:96] == 65).all()
    assert (found[96:] == 2).all()


def named_barriers(kernel, rounds=5):
    output = DeviceBuffer.output("output", (32 * rounds,), "int32")
    expected = np.concatenate([100 * turn + np.arange(31, -1, -1) for turn in range(rounds)]).astype(np.int32)
    return [EmulatedLaunch(kernel, "named", (1, 1, 1), (64, 1, 1), (output, np.int32(rounds)))], {
        output: expected
    }


def test_named_barriers(kernel):
    launches, expected = named_barriers(kernel("collectives.cu"))
    assert fuzz(launches, expected, 40).problems == ()
    assert find_races(launches) == ()


def test_a_named_barrier_that_is_missing_is_found(kernel):
    full = "kernwright::emulator::barrier_arrive(1, 64);  // full\n"
    empty = "kernwright::emulator::barrier_arrive(2, 64);\n"
    (problem,) = fuzz(*named_barriers(kernel("collectives.cu", (full, "\n"))), 5).problems
    assert isinstance(problem, Deadlock)
    assert any("waiting at barrier 1 (collectives.cu:" in wait for wait in problem.waits)
    unguarded = kernel(
        "collectives.cu", (empty, "\n"), ("kernwright::emulator::barrier_sync(2, 64);    // empty", "")
    )
    launches, expected = named_barriers(unguarded)
    assert fuzz(launches, expected, 40).problems or find_races(launches)


def test_threads_that_have_ended_are_not_waited_for(kernel):
    output = DeviceBuffer.output("output", (64,), "int32")
    launch = EmulatedLaunch(kernel("collectives.cu"), "leavers", (1, 1, 1), (128, 1, 1), (output,))
    assert fuzz([launch], {output: np.arange(63, -1, -1, dtype=np.int32)}, 10).problems == ()


@pytest.mark.parametrize(
    ("grid", "block"), [((5, 1, 1), (33, 1, 1)), ((2, 3, 4), (4, 3, 2)), ((1, 1, 2), (1, 1, 64))]
)
def test_coordinates(kernel, grid, block):
    threads, blocks = int(np.prod(block)), int(np.prod(grid))
    output = DeviceBuffer.output("output", (blocks * threads,), "uint32")
    expected = (1000 * np.arange(blocks)[:, None] + np.arange(threads)).astype(np.uint32).reshape(-1)
    launch = EmulatedLaunch(kernel("collectives.cu"), "coordinates", grid, block, (output,))
    assert fuzz([launch], {output: expected}, 4).problems == ()


def test_dynamic_shared_memory(kernel):
    array = np.arange(1024, dtype=np.float32)
    output = DeviceBuffer.output("output", (1024,), "float32")
    args = (DeviceBuffer.input("input", array), output)
    launch = EmulatedLaunch(
        kernel("collectives.cu"), "reversed", (1, 1, 1), (1024, 1, 1), args, shared_bytes=4096
    )
    assert fuzz([launch], {output: array[::-1].copy()}, 4).problems == ()
