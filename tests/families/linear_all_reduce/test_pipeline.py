"""The order of events, whatever the rows, slices and delays: on streams that only record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.families.linear_all_reduce.overlap.pipeline import run
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule, parts_of

from .recorder import RecordedLanes

ROW_BYTES = 10


def delays(rng: random.Random) -> Iterator[float]:
    """GEMMs and reductions of any length; now and then one takes very long."""
    while True:
        yield rng.random() * (100 if rng.random() < 0.1 else 1)


class Recording:
    """A reduction that records, for one of several calls."""

    def __init__(self, lanes: RecordedLanes, call: int) -> None:
        self.lanes, self.call = lanes, call

    def multiply(self, part) -> None:
        self.lanes.add("multiply", self.call, part)

    def begin(self, part) -> None:
        self.lanes.add("begin", self.call, part)

    def add(self, part) -> None:
        self.lanes.add("add", self.call, part)

    def end(self, part) -> None:
        self.lanes.add("end", self.call, part)

    def close(self) -> None:
        self.lanes.add("close", self.call, None)


def played(schedule: SliceSchedule, rows: list[int], seed: int | None, **options):
    """What happens when calls of so many rows follow each other, each with somebody who reads its result."""
    lanes = RecordedLanes(overlapped=schedule.overlapped, **options)
    for call, m in enumerate(rows):
        slices = schedule.slices(m, ROW_BYTES)
        recording = Recording(lanes, call)
        run(slices, lanes, recording.multiply, recording, schedule.additions)
        lanes.add("read", call, None)
    return lanes.play(repeat(1.0) if seed is None else delays(random.Random(seed)))


STEPS = ("multiply", "begin", "add", "end")
"""Of a slice, one after the other."""


def faults(schedule: SliceSchedule, rows: list[int], work) -> list[str]:
    """What must not happen, and did."""
    found = []
    of = {w.what: w for w in work}
    if len(of) != len(work):
        found.append("something happened twice")
    for call, m in enumerate(rows):
        slices = schedule.slices(m, ROW_BYTES)
        found += [
            f"call {call} doesn't {step} every slice once"
            for step in STEPS
            if {p for kind, c, p in of if (kind, c) == (step, call)} != set(slices)
        ]
        if found:
            continue
        close, read = of["close", call, None], of["read", call, None]
        for part in slices:
            steps = [of[step, call, part] for step in STEPS]
            for before, after in pairwise([*steps, close, read]):
                if after.began < before.ended:
                    found.append(f"{after.what} before {before.what}")
            if call and steps[0].began < of["close", call - 1, None].ended:
                found.append(f"call {call} writes partial sums before call {call - 1} has ended")
            later = [other for other in slices if other.index == part.index + 2]
            if later and of["begin", call, later[0]].began < steps[2].ended:
                found.append(f"call {call} fetches where rows from {part.begin} still wait to be added")
    return found


schedules = st.builds(
    SliceSchedule,
    st.sampled_from(["sliced_nccl", "sliced_sm", "sliced_copy_engine", "serial_sm"]),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=12).map(tuple),
    align=st.sampled_from([1, 2, 16, 128]),
    additions=st.sampled_from(["side", "main"]),
)


@settings(max_examples=3000, deadline=None)
@given(schedules, st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.integers(0, 2**32))
def test_the_order_of_events(schedule, rows, seed):
    assert not faults(schedule, rows, played(schedule, rows, seed))


@pytest.mark.parametrize("additions", ["main", "side"])
@pytest.mark.parametrize("deaf", ["main", "side"])
def test_a_stream_that_does_not_wait_is_found(deaf, additions):
    schedule = SliceSchedule("sliced_copy_engine", (1, 1, 1), additions=additions)
    runs = [faults(schedule, [9, 9], played(schedule, [9, 9], seed, deaf=deaf)) for seed in range(20)]
    assert any(runs)


def test_slices_do_overlap():
    """While a slice is reduced, the next is being multiplied: else all of this would be for nothing."""
    schedule = SliceSchedule("sliced_copy_engine", (1, 1, 1, 1))
    work = {w.what: w for w in played(schedule, [8], None)}
    first, *_ = slices = schedule.slices(8, ROW_BYTES)
    assert work["end", 0, first].began < work["multiply", 0, slices[-1]].ended
    between = {w.what: w for w in played(replace(schedule, additions="main"), [8], None)}
    assert between["begin", 0, first].began < between["multiply", 0, slices[1]].ended
    assert between["add", 0, first].began >= between["multiply", 0, slices[1]].ended
    serial = {w.what: w for w in played(SliceSchedule("serial_sm"), [8], None)}
    (whole,) = SliceSchedule("serial_sm").slices(8, ROW_BYTES)
    assert serial["begin", 0, whole].began == serial["multiply", 0, whole].ended


def test_the_side_is_joined_when_a_gemm_fails():
    lanes = RecordedLanes()
    recording = Recording(lanes, 0)

    def multiply(part):
        if part.begin:
            raise RuntimeError("out of memory")
        recording.multiply(part)

    with pytest.raises(RuntimeError, match="out of memory"):
        run(SliceSchedule("sliced_nccl", (1, 1)).slices(8, ROW_BYTES), lanes, multiply, recording)
    lanes.add("next", 1, None)
    work = {w.what[0]: w for w in lanes.play(iter([1.0, 50.0, 1.0, 1.0, 1.0]))}
    assert work["next"].began >= work["end"].ended == 53.0


# ---- rows ----


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 64), st.integers(1, 5000))
def test_equal_slices_are_the_floors(count, m):
    slices = SliceSchedule("sliced_nccl", (1,) * count).slices(m, ROW_BYTES)
    edges = [i * m // count for i in range(count + 1)]
    wanted = [(a, b) for a, b in pairwise(edges) if b > a]
    assert [(part.begin, part.end) for part in slices] == wanted
    assert len(slices) == min(count, m)


@settings(max_examples=500, deadline=None)
@given(schedules, st.integers(1, 20000), st.integers(1, 999))
def test_slices_cover_all_rows_and_lie_apart(schedule, m, row_bytes):
    slices = schedule.slices(m, row_bytes)
    assert slices
    assert [part.begin for part in slices] == [0, *(part.end for part in slices[:-1])]
    assert slices[-1].end == m
    assert all(part.begin % schedule.align == 0 for part in slices)
    ends = [part.at + (part.end - part.begin) * row_bytes for part in slices]
    assert all(part.at % 16 == 0 for part in slices)
    assert all(part.at >= end for part, end in zip(slices[1:], ends, strict=False))


def test_uneven_slices_on_whole_waves():
    """Five waves of 132 tiles of 128 x 256 are 33 * 128 rows at N = 5120; the last slice takes what is left."""
    schedule = SliceSchedule("sliced_copy_engine", (5, 5, 2), align=128)
    assert [(p.begin, p.end) for p in schedule.slices(8192, 10240)] == [(0, 3328), (3328, 6784), (6784, 8192)]
    assert [(p.begin, p.end) for p in schedule.slices(100, 10240)] == [(0, 100)]


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5000), st.sampled_from([2, 4, 8]), st.sampled_from([2, 4]))
def test_parts_cover_a_slice(numel, ranks, element):
    parts = parts_of(numel, ranks, element)
    assert len(parts) == ranks
    assert parts[0][0] == 0
    assert parts[-1][1] == numel
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert all(low * element % 16 == 0 for low, high in parts if high > low)
    assert max(high - low for low, high in parts) == parts[0][1]
