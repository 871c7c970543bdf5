"""Interleaving: a toy all-reduce and its classic bugs, torn words, overlapping grids, deterministic replay."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Interleaving, find_races, fuzz, run, schedules
from kernwright.emulator.report import Deadlock, Race

HALF, WRAP = 2**31, 2**32


@pytest.mark.parametrize(("ranks", "seeds"), [(2, 100), (4, 60), (8, 20)])
def test_the_toy_all_reduce_is_right(toy, ranks, seeds):
    assert fuzz(*toy(ranks=ranks), seeds).problems == ()
    assert find_races(toy(ranks=min(ranks, 4))[0]) == ()


@pytest.mark.parametrize("epoch", [HALF - 1, WRAP - 2])
def test_epochs_wrap(toy, epoch):
    assert fuzz(*toy(epoch=epoch), 30).problems == ()


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_two_thousand_seeds(toy, ranks):
    assert fuzz(*toy(ranks=ranks), 2000).problems == ()


FILL = """  for (int i = first; i < count; i += stride) peers.data[rank][i] = input[i];
  __syncthreads();  // the data of the whole CTA is there
"""
PUBLISH = "  meet(peers, rank, 0, epoch);\n"
FUZZED = {
    "release before data": (FILL + PUBLISH, PUBLISH + FILL),
    "no end barrier": ("  meet(peers, rank, 1, epoch);\n", ""),
    "signed comparison": (
        "static_cast<int>(seen - epoch) >= 0",
        "static_cast<int>(seen) >= static_cast<int>(epoch)",
    ),
    "no barrier before the release": ("  __syncthreads();  // the data of the whole CTA is there\n", ""),
    "no barrier behind the wait": ("  __syncthreads();  // the peers' data is there\n", ""),
    "no barrier behind the reads": ("  __syncthreads();  // the whole CTA has read\n", ""),
}


@pytest.mark.parametrize("bug", FUZZED)
def test_a_classic_bug_is_found_by_fuzzing(toy, bug):
    fuzzed = fuzz(*toy(FUZZED[bug], epoch=HALF - 1), 100)
    assert fuzzed.problems
    assert f"{fuzzed.schedule} fails; it replays exactly" in str(fuzzed)
    again = run(toy(FUZZED[bug], epoch=HALF - 1)[0], fuzzed.schedule)
    assert again.fault == (fuzzed.problems[0] if isinstance(fuzzed.problems[0], Deadlock) else None)


@pytest.mark.parametrize("order", ["__NV_ATOMIC_ACQUIRE", "__NV_ATOMIC_RELEASE"])
def test_a_relaxed_flag_is_found_by_the_sanitizer(toy, order):
    """No interleaving of whole instructions shows it; ThreadSanitizer names both lines."""
    launches, expected = toy((order, "__NV_ATOMIC_RELAXED"))
    assert fuzz(launches, expected, 50).problems == ()
    races = [fault for fault in find_races(launches) if isinstance(fault, Race)]
    assert any("write of 4 bytes" in str(race) and "toy_all_reduce.cu:37" in str(race) for race in races)
    assert any("toy_all_reduce.cu:42" in str(race) for race in races)


def test_the_same_schedule_gives_the_same_run(toy):
    launches, _ = toy(("  meet(peers, rank, 1, epoch);\n", ""), ranks=4)
    for schedule in schedules(12):
        one, other = run(launches, schedule), run(launches, schedule)
        assert one.switches == other.switches
        assert one.fault == other.fault
        assert all((one.arrays[buffer].tobytes() == other.arrays[buffer].tobytes()) for buffer in one.arrays)


def test_schedules_differ(toy):
    launches, _ = toy(("  meet(peers, rank, 1, epoch);\n", ""), ranks=4)
    stored = {b"".join(a.tobytes() for a in run(launches, s).arrays.values()) for s in schedules(12)}
    assert len(stored) > 3


def tagged(kernel):
    output = DeviceBuffer.output("output", (16,), "uint32")
    channel = DeviceBuffer.inout("channel", np.zeros(32, np.uint32))
    expected = np.stack([100 + np.arange(8), 200 + np.arange(8)], axis=1).astype(np.uint32).reshape(-1)
    launch = EmulatedLaunch(kernel, "send_and_receive", (2, 1, 1), (1, 1, 1), (channel, output, np.int32(8)))
    return [launch], {output: expected}


def test_torn_words(kernel):
    """Who checks both epochs is safe; who checks one reads half a word."""
    assert fuzz(*tagged(kernel("tagged.cu")), 200).problems == ()
    assert fuzz(*tagged(kernel("tagged.cu", (" || word.w != 1u", ""))), 100).problems
    assert fuzz(*tagged(kernel("tagged.cu", ("word.y != 1u || ", ""))), 100).problems


def dependent(kernel, programmatic=True, ctas=4):
    count = 32 * ctas
    array = np.arange(count, dtype=np.int32)
    middle, output = (DeviceBuffer.output(name, (count,), "int32") for name in ("middle", "output"))
    grid, block = (ctas, 1, 1), (32, 1, 1)
    first = EmulatedLaunch(kernel, "first_grid", grid, block, (DeviceBuffer.input("input", array), middle))
    second = EmulatedLaunch(kernel, "second_grid", grid, block, (middle, output), programmatic=programmatic)
    return [first, second], {output: 2 * array[::-1] + 1}


def test_overlapping_grids(kernel):
    launches, expected = dependent(kernel("dependent.cu"))
    assert fuzz(launches, expected, 60).problems == ()
    assert find_races(launches) == ()


def test_a_missing_wait_is_found_where_grids_overlap(kernel):
    careless = kernel("dependent.cu", ("emulated::griddepcontrol_wait();", ""))
    launches, expected = dependent(careless)
    assert fuzz(launches, expected, 20).problems
    assert "dependent.cu:9" in str(find_races(launches)[0])
    ordered, expected = dependent(careless, programmatic=False)  # plain stream order needs no wait
    assert fuzz(ordered, expected, 20).problems == ()
    assert find_races(ordered) == ()


def test_bounded_polling_ends_in_virtual_time(kernel):
    """30 seconds pass at once where nobody else can do anything."""
    record = DeviceBuffer.output("record", (1,), "uint32")
    flag = DeviceBuffer.input("flag", np.zeros(1, np.uint32))
    launch = EmulatedLaunch(kernel("dependent.cu"), "bounded", (1, 1, 1), (1, 1, 1), (flag, record))
    for schedule in schedules(6):
        outcome = run([launch], schedule)
        assert outcome.fault is None
        assert outcome.arrays[record][0] == 0xDEAD


@pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])
def test_reading_a_word_twice_is_not_polling(kernel, policy):
    """Nobody writes any more, and the others wait for the reader: it goes on all the same."""
    words = DeviceBuffer.input("words", np.array([1, 20, 300], np.uint64))
    out = DeviceBuffer.output("out", (64,), "uint64")
    launch = EmulatedLaunch(kernel("reads_twice.cu"), "reads_twice", (2, 1, 1), (32, 1, 1), (words, out))
    outcome = run([launch], Interleaving(3, policy))
    assert outcome.fault is None
    assert outcome.arrays[out].reshape(2, 32)[:, 0].tolist() == [642, 642]


def test_a_schedule_is_checked():
    with pytest.raises(
        ValueError, match="Policy 'fair' is unknown; use one of round_robin, random, adversarial"
    ):
        Interleaving(1, "fair")
    with pytest.raises(ValueError, match=r"Seed -1 is out of range; it must be from 0 to 2\*\*64 - 1"):
        Interleaving(-1)
