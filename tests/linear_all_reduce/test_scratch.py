"""Scratch grows, never under a captured graph, and belongs to a stream."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from kernwright.runtime import NotWarm
from kernwright.runtime.linear.lanes import IN_ORDER
from kernwright.runtime.linear.scratch import Pool, Scratch


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
    one, other = (pool.of(("cuda:0", stream), capturing=False) for stream in (1, 2))
    assert one is not other
    assert pool.of(("cuda:0", 1), capturing=True) is one
    assert pool.of(("cuda:1", 1), capturing=False) is not one
    assert one.take(10, capturing=False).data_ptr() != other.take(10, capturing=False).data_ptr()
    assert pool.bytes == 20


def test_a_stream_that_is_first_seen_in_a_capture_takes_a_spare():
    pool = Pool(make)
    with pytest.raises(NotWarm, match="no scratch yet for the stream that is being captured"):
        pool.of(("cuda:0", 1), capturing=True)
    pool.prepare(100, 1)
    taken = pool.of(("cuda:0", 1), capturing=True)
    assert taken.take(100, capturing=True).numel() == 100
    assert pool.of(("cuda:0", 1), capturing=True) is taken
    with pytest.raises(NotWarm):
        pool.of(("cuda:0", 2), capturing=True)
