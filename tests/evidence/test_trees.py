"""Reduction trees against a scalar evaluation that follows the contract word by word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.evidence.oracle import trees
from kernwright.evidence.oracle.trees import check, dot, squares


def values(rng: np.random.Generator, *size: int) -> np.ndarray:
    """float32 with full mantissas over some binades, so that every order of adding gives other bits."""
    return np.ldexp(rng.standard_normal(size), rng.integers(-3, 4, size)).astype(np.float32)


def bits(array: np.ndarray) -> list[int]:
    return np.asarray(array, dtype=np.float32).view(np.uint32).ravel().tolist()


@settings(max_examples=40, deadline=None)
@given(
    segments=st.integers(1, 4),
    lanes=st.sampled_from([1, 2, 4, 8, 16, 32, 64, 96]),
    chunk=st.sampled_from([1, 2, 3, 5, 8]),
    chunks=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_tree(scalar, segments, lanes, chunk, chunks, seed):
    rng = np.random.default_rng(seed)
    a, b = values(rng, 2, segments * chunk * chunks)
    tree = (segments, lanes, chunk)
    assert bits(dot(a, b, tree)) == bits(scalar.tree(a.tolist(), b.tolist(), tree))
    assert bits(squares(a, tree)) == bits(scalar.tree(a.tolist(), a.tolist(), tree))


@pytest.mark.parametrize(
    ("tree", "length"), [((1, 320, 8), 2560), ((4, 320, 8), 10240), ((1, 32, 2), 320), ((2, 64, 4), 2056)]
)
def test_trees_of_the_real_shape_and_a_tail(scalar, tree, length):
    rng = np.random.default_rng(length)
    a, b = values(rng, 2, length)
    assert bits(dot(a, b, tree)) == bits(scalar.tree(a.tolist(), b.tolist(), tree))


def test_the_tree_matters():
    """Neighbouring trees give other bits for these values: the tests above can tell them apart."""
    a, b = values(np.random.default_rng(0), 2, 64, 1280)
    seen = {
        tuple(bits(dot(a, b, tree))) for tree in [(1, 32, 8), (1, 64, 8), (1, 32, 4), (4, 32, 8), (1, 1, 1)]
    }
    assert len(seen) == 5


def test_rows_give_the_same_bits_whatever_the_block(monkeypatch):
    rng = np.random.default_rng(1)
    y, w = values(rng, 3, 1, 96), values(rng, 1, 7, 96)
    whole = dot(y, w, (2, 4, 3))
    assert whole.shape == (3, 7)
    monkeypatch.setitem(trees._LANES_PER_BLOCK, "numpy", 1)
    assert bits(dot(y, w, (2, 4, 3))) == bits(whole)
    rows = [[dot(y[n, 0], w[0, r], (2, 4, 3)) for r in range(7)] for n in range(3)]
    assert bits(np.array(rows)) == bits(whole)


def test_empty_lanes_are_positive_zero_and_take_part():
    """A lone -0.0 product meets the +0.0 of its accumulator, and of the empty lanes."""
    minus_zero = np.array([-0.0], dtype=np.float32)
    assert bits(dot(minus_zero, np.ones(1, np.float32), (1, 8, 1))) == [0]


def test_inf_and_nan_pass_through_without_warnings(recwarn):
    a = np.array([[np.inf, 1], [np.inf, -np.inf], [np.nan, 1], [3e38, 3e38]], dtype=np.float32)
    found = dot(a, np.ones(2, np.float32), (1, 2, 1))
    assert found[0] == np.inf
    assert np.isnan(found[1:3]).all()
    assert found[3] == np.inf
    assert not recwarn.list


@pytest.mark.parametrize(
    ("tree", "length", "message"),
    [
        ((2, 32, 8), 24, "segments x chunk is 16, which must divide 24"),
        ((1, 48, 1), 48, "has 48 lanes; use a power of two up to 32 or a multiple of 32"),
        ((1, 0, 1), 8, "has 0 lanes"),
        ((0, 1, 1), 8, "must be at least 1"),
    ],
)
def test_refused_trees(tree, length, message):
    with pytest.raises(ValueError, match=message):
        check(tree, length)


def test_lengths_must_be_equal():
    with pytest.raises(ValueError, match="A dot product of 8 with 4 elements"):
        dot(np.zeros(8, np.float32), np.zeros(4, np.float32), (1, 1, 1))
