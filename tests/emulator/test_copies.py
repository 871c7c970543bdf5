"""cp.async, bulk copies and mbarriers: right under every schedule, and their classic mistakes found."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, find_races, fuzz, run
from kernwright.emulator.report import Deadlock, MisalignedAccess

TILES = 5
INPUT = np.random.default_rng(0).integers(-50, 50, 64 * TILES).astype(np.float32)  # sums are exact


def staged(kernel):
    output = DeviceBuffer.output("output", (16,), "float32")
    tiles = INPUT.reshape(TILES, 64)
    expected = np.array(
        [sum(tiles[:, (4 * thread + i + 7) % 64].sum() for i in range(4)) for thread in range(16)], np.float32
    )
    args = (DeviceBuffer.input("input", INPUT), output, np.int32(TILES))
    return [EmulatedLaunch(kernel, "staged_sum", (1, 1, 1), (16, 1, 1), args)], {output: expected}


def bulk(kernel):
    output = DeviceBuffer.output("output", (32,), "float32")
    args = (DeviceBuffer.input("input", INPUT), output, np.int32(TILES))
    expected = INPUT.reshape(TILES * 2, 32).sum(0, dtype=np.float32)
    return [EmulatedLaunch(kernel, "bulk_sum", (1, 1, 1), (64, 1, 1), args)], {output: expected}


@pytest.mark.parametrize("make", [staged, bulk])
def test_copies_arrive(kernel, make):
    launches, expected = make(kernel("copies.cu"))
    assert fuzz(launches, expected, 60).problems == ()
    assert find_races(launches) == ()


WAIT = "emulated::cp_async_wait_group(1);"
FULL = "    while (!emulated::mbarrier_try_wait_parity(&full[s], tile / 2 % 2)) {  // arrived\n    }\n"
EMPTY = "if (tile >= 2) emulated::mbarrier_wait_parity(&empty[s], (tile / 2 - 1) % 2);  // free again"
ARRIVALS = "emulated::mbarrier_initialise(&empty[s], 32);"
EXPECT = "emulated::mbarrier_arrive_expect_tx(&full[s], TILE * sizeof(float));"
MISTAKES = {
    "no wait": (staged, WAIT, ""),
    "one group too many left": (staged, WAIT, WAIT.replace("1", "2")),
    "no barrier behind the wait": (staged, f"{WAIT}\n    __syncthreads();", WAIT),
    "no barrier before the next copy": (staged, "__syncthreads();  // the stage is filled again", ""),
    "no wait for full": (bulk, FULL, ""),
    "wrong parity of full": (bulk, "(&full[s], tile / 2 % 2)", "(&full[s], tile / 2 % 2 ^ 1)"),
    "no wait for empty": (bulk, EMPTY, ""),
    "too few arrivals": (bulk, ARRIVALS, ARRIVALS.replace("32", "33")),
    "too many arrivals": (bulk, ARRIVALS, ARRIVALS.replace("32", "31")),
    "too few bytes": (bulk, EXPECT, EXPECT.replace("(float)", "(float) + 16")),
    "no __syncwarp": (bulk, "__syncwarp();", ""),
    "no wait for the store": (bulk, "emulated::cp_async_bulk_wait_group(0);  // before the CTA ends", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(kernel, mistake):
    make, old, new = MISTAKES[mistake]
    launches, expected = make(kernel("copies.cu", (old, new)))
    fuzzed = fuzz(launches, expected, 40)
    assert fuzzed.problems or find_races(launches)
    if mistake == "too few arrivals":
        assert isinstance(fuzzed.problems[0], Deadlock)


def test_a_bulk_copy_wants_16_byte_addresses(kernel):
    launches, _ = bulk(kernel("copies.cu", ("input + tile * TILE, TILE", "input + tile * TILE + 1, TILE")))
    fault = run(launches).fault
    assert isinstance(fault, MisalignedAccess)
    assert "cp.async.bulk needs addresses that are multiples of 16; input + 4 bytes of rank 0 isn't" in str(
        fault
    )
