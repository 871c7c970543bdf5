"""Calls that overlap on one channel: one of them has it, the others end in NaN and a record, none in a wrong sum."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import (
    DeviceBuffer,
    EmulatedLaunch,
    Interleaving,
    compile_text,
    find_races,
    run,
    schedules,
)
from kernwright.families.all_reduce.oracle import all_reduce
from kernwright.table import OVERLAP

CANDIDATES = ("tagged", "narrow", "one", "two", "two_narrow")
SIZES = (401, 230)
"""Of the two calls: where they differ, calls that pass each other are told apart."""


def overlapping(group, name, kinds=("staged", "staged"), sizes=SIZES, edits=()):
    """A call before, then two at once, of a stream each; and one behind each of them."""
    made = group("bfloat16", 2, edits=edits)
    outputs = []
    for stream, (kind, numel) in enumerate(zip(kinds, sizes, strict=True)):
        for _ in range(2):
            outputs += made.call(name, kind, numel, stream=stream)
    return made, outputs


def wrong(made, outcome, outputs) -> tuple[list[DeviceBuffer], list[DeviceBuffer]]:
    """Outputs with elements neither right nor NaN; and outputs that aren't right, of ranks without a record."""
    foul, silent = [], []
    for output in outputs:
        found, answer = outcome.arrays[output], made.expected[output]
        nan = np.iinfo(found.dtype).max
        if ((found != answer) & (found != nan)).any():
            foul.append(output)
        if (found != answer).any() and not made.record(outcome.arrays, output.rank)[0]:
            silent.append(output)
    return foul, silent


@pytest.mark.parametrize("kinds", [("staged", "staged"), ("staged", "sum2"), ("symmetric", "sum2")])
@pytest.mark.parametrize("name", CANDIDATES)
def test_two_streams_on_one_channel(group, name, kinds):
    made, outputs = overlapping(group, name, kinds)
    met = 0
    for schedule in schedules(10):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        assert wrong(made, outcome, outputs) == ([], []), schedule
        met += any(made.record(outcome.arrays, rank)[3] == OVERLAP for rank in (0, 1))
    assert met


@pytest.mark.long
@pytest.mark.parametrize("name", CANDIDATES)
def test_two_streams_on_one_channel_in_many_schedules(group, name):
    made, outputs = overlapping(group, name)
    for schedule in schedules(150):
        assert wrong(made, run(made.launches, schedule), outputs) == ([], []), schedule


def torn(made, outcome, calls, given) -> int:
    """Outputs that aren't the sum of one call of each rank, NaN aside."""
    count = 0
    for number, outputs in enumerate(calls):
        for rank, output in enumerate(outputs):
            found = outcome.arrays[output]
            nan = found == np.iinfo(found.dtype).max
            pairs = (((number, other), (other, number))[rank] for other in range(len(calls)))
            sums = (all_reduce([given[a][0], given[b][1]], made.dtype) for a, b in pairs)
            count += not any(((found == answer) | nan).all() for answer in sums)
    return count


@pytest.mark.parametrize("name", CANDIDATES)
def test_calls_of_one_shape_may_pass_each_other_but_are_never_torn(group, name):
    """What isn't told apart: rank 0 makes A, B, and rank 1 B, A. The sums are of A here and B there, and whole."""
    made = group("bfloat16", 2)
    given = [made.values(230) for _ in range(4)]
    calls = [made.call(name, "staged", 230, values, stream=call // 2) for call, values in enumerate(given)]
    for schedule in schedules(10):
        outcome = run(made.launches, schedule)
        assert torn(made, outcome, calls, given) == 0, schedule


# ---- a call that begins where another ends, on another stream ----


def handed_over(group, name, edits=()):
    """Rank 0 makes three calls on streams of their own: where they don't overlap, only the ticket orders them."""
    made, outputs = group("bfloat16", 2, edits=edits), []
    for call in range(3):
        given = made.values(301 - call)
        made.delay(0, 10 * call, stream=call)
        outputs.append(made.call(name, "staged", 301 - call, given, skip=[1], stream=call)[0])
        outputs.append(made.call(name, "staged", 301 - call, given, skip=[0])[1])
    return made, outputs


@pytest.mark.parametrize("name", CANDIDATES)
def test_the_ticket_orders_calls_of_different_streams(group, name):
    made, outputs = handed_over(group, name)
    for schedule in schedules(6):
        assert wrong(made, run(made.launches, schedule), outputs) == ([], [])
    in_order = run(made.launches)
    assert [made.record(in_order.arrays, rank)[0] for rank in (0, 1)] == [0, 0]
    assert find_races(made.launches) == ()


ORDERS = [
    ("bits, __NV_ATOMIC_ACQUIRE,", "bits, __NV_ATOMIC_RELAXED,"),
    ("counter, value, __NV_ATOMIC_ACQ_REL,", "counter, value, __NV_ATOMIC_RELAXED,"),
    ("false, __NV_ATOMIC_RELEASE,", "false, __NV_ATOMIC_RELAXED,"),
    ("if (!__syncthreads_and(done) || threadIdx.x != 0) return;", "if (!done || threadIdx.x != 0) return;"),
]


@pytest.mark.parametrize("edit", ORDERS)
def test_every_order_of_the_ticket_is_needed(group, edit):
    """Else a call writes what CTAs of the one before still read; no interleaving shows it, only ThreadSanitizer."""
    assert any(find_races(handed_over(group, name, (edit,))[0].launches) for name in ("one", "two"))


IDS = """
extern "C" __global__ void ids(unsigned int* found) {
  if (threadIdx.x == 0) found[blockIdx.x] = holder();
}
"""


def test_no_launch_sets_all_the_bits_of_another(group):
    """Else a call could take the bits of an overlapping one for its own."""
    text = group("bfloat16", 2).candidate("one").sources[-1].text
    kernel = compile_text(text + IDS, "ids.cu")
    launches = [
        EmulatedLaunch(kernel, "ids", (2, 1, 1), (32, 1, 1), (DeviceBuffer.output("found", (2,), "uint32"),))
        for _ in range(200)
    ]
    outcome = run(launches, Interleaving(1))
    found = np.array([outcome.arrays[launch.args[0]] for launch in launches])
    assert (found[:, 0] == found[:, 1]).all()  # one number a launch
    numbers = found[:, 0]
    assert len(set(numbers.tolist())) == 200
    assert (numbers != 0).all()
    assert (numbers < 2**31).all()
    covered = (numbers[:, None] & numbers[None]) == numbers[:, None]
    assert (covered == np.eye(200, dtype=bool)).all()


@pytest.mark.parametrize("name", ["tagged", "one", "two"])
def test_overlaps_that_nobody_looks_for_would_be_seen(group, name):
    """Without the decision by the ticket, values are wrong with no record in some schedules."""
    edit = ("digest, others != 0, own, timeout_ns}", "digest, false, own, timeout_ns}")
    report = ("if (call.lost && threadIdx.x == 0", "if (false && threadIdx.x == 0")
    made, outputs = overlapping(group, name, edits=(edit, report))
    assert any(wrong(made, run(made.launches, schedule), outputs) != ([], []) for schedule in schedules(40))


def test_a_channel_that_failed_stays_so_for_the_same_launch(group):
    """A graph's node has the number that it had in the replay that failed; the ticket also says that it failed."""
    made = group("bfloat16", 2)
    made.channels[0].array[made.layout.ticket + 3] = 0x80
    before = [channel.array.copy() for channel in made.channels]
    outputs = made.call("one", "staged", 64, skip=[1])
    arrays = run(made.launches).arrays
    assert (arrays[outputs[0]] == 0xFFFF).all()
    assert made.record(arrays, 0)[0] == 0  # the record is that of the failure
    peers = arrays.get(made.channels[1], before[1])
    assert (peers == before[1]).all()  # nothing was published
