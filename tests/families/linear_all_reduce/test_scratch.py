"""Scratch grows, never under a captured graph, and belongs to a stream."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from kernwright.families.linear_all_reduce.overlap.lanes import IN_ORDER
from kernwright.families.linear_all_reduce.overlap.scratch import Pool, Scratch
from kernwright.runtime import NotWarm


def make(made=None):
    def allocate(size):
        buffer = torch.empty(size, dtype=torch.uint8)
        if made is not None:
            made.append(weakref.ref(buffer))
        return buffer

    return Scratch(allocate, IN_ORDER)


def test_it_grows_and_never_shrinks():
    scratch = make()
    first = scratch.take(100, capturing=False)
    assert scratch.take(40, capturing=False) is first
    assert scratch.take(100, capturing=True) is first
    assert scratch.take(101, capturing=False).numel() == 101
    assert scratch.take(100, capturing=False).numel() == 101


def test_a_buffer_that_a_graph_has_seen_stays():
    made = []
    scratch = make(made)
    scratch.take(100, capturing=False)
    scratch.take(100, capturing=True)
    scratch.take(200, capturing=False)
    scratch.take(300, capturing=False)
    gc.collect()
    assert [reference() is not None for reference in made] == [True, False, True]


def test_nothing_is_allocated_inside_a_capture():
    scratch = make()
    with pytest.raises(NotWarm, match="needs 100 bytes of scratch on this stream, has 0, and a CUDA graph"):
        scratch.take(100, capturing=True)
    scratch.take(64, capturing=False)
    with pytest.raises(NotWarm, match="needs 100 bytes of scratch on this stream, has 64"):
        scratch.take(100, capturing=True)


def test_every_stream_has_its_own():
    pool = Pool(make)
    one, memory = pool.take(("cuda:0", 1), 10, capturing=False)
    other, elsewhere = pool.take(("cuda:0", 2), 10, capturing=False)
    assert one is not other
    assert memory.data_ptr() != elsewhere.data_ptr()
    assert pool.take(("cuda:0", 1), 4, capturing=True) == (one, memory)
    assert pool.take(("cuda:1", 1), 10, capturing=False)[0] is not one
    assert pool.bytes == 40  # three, and a preallocated one


def test_a_stream_that_is_first_seen_in_a_capture_takes_a_preallocated_one():
    """Which is as large as what any call has needed; a second stream needs one more eager call, or prepare()."""
    pool = Pool(make)
    with pytest.raises(
        NotWarm, match="no scratch for the stream that is being captured, and none preallocated"
    ):
        pool.take(("cuda:0", 1), 100, capturing=True)
    pool.take(("cuda:0", 1), 100, capturing=False)
    pool.take(("cuda:0", 1), 40, capturing=False)
    captured, memory = pool.take(("cuda:0", 2), 100, capturing=True)
    assert pool.take(("cuda:0", 2), 60, capturing=True) == (captured, memory)
    with pytest.raises(NotWarm):
        pool.take(("cuda:0", 3), 10, capturing=True)
    pool.take(("cuda:0", 1), 100, capturing=False)
    assert pool.take(("cuda:0", 3), 100, capturing=True)[1].numel() == 100
    pool.prepare(200, 2)
    for stream in (4, 5):
        assert pool.take(("cuda:0", stream), 200, capturing=True)[1].numel() == 200


def test_a_larger_graph_takes_a_larger_preallocated_one_and_leaves_the_smaller_one_its_own():
    """Each is warmed up on some stream and captured on the same other one, from the smallest to the largest."""
    pool = Pool(make)
    graphs = []
    for size in (100, 200, 400):
        pool.take(("cuda:0", 1), size, capturing=False)
        graphs.append(weakref.ref(pool.take(("cuda:0", 2), size, capturing=True)[1]))
    gc.collect()
    buffers = [graph() for graph in graphs]
    assert [buffer.numel() for buffer in buffers] == [100, 200, 400]
    assert len({buffer.data_ptr() for buffer in buffers}) == 3
    again = pool.take(("cuda:0", 2), 150, capturing=True)[1]
    assert again is buffers[2]


def test_scratch_without_memory():
    """A reduction inside of the channel needs streams and events alone."""
    pool = Pool(make)
    pool.take(("cuda:0", 1), 0, capturing=False)
    assert pool.take(("cuda:0", 2), 0, capturing=True)[1].numel() == 0
