"""The array FMA against exact fractions: random patterns, and where rounding twice goes wrong."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.evidence.oracle.fma import fma

WORD = st.integers(0, 0xFFFFFFFF)


def floats(*words: int) -> np.ndarray:
    return np.array(words, dtype=np.uint32).view(np.float32)


def assert_fma(scalar, a, b, c) -> None:
    """Every element equals the fraction arithmetic, bit for bit; NaN equals NaN."""
    found = fma(a, b, c)
    with np.errstate(all="ignore"):
        expected = np.array(
            [scalar.fma(*map(float, row)) for row in zip(a, b, c, strict=True)], dtype=np.float32
        )
    same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    bad = int(np.argmin(same))
    assert same.all(), f"fma({a[bad]!r}, {b[bad]!r}, {c[bad]!r}) is {found[bad]!r}, not {expected[bad]!r}"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORD, WORD, WORD), min_size=20, max_size=40))
def test_any_bit_patterns(scalar, words):
    assert_fma(scalar, *(floats(*column) for column in zip(*words, strict=True)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-40, 40), st.integers(-148, 90))
def test_near_midpoints(scalar, seed, distance, exponent):
    """a * b adds about half a unit to c, or a tail far below: ties and near ties."""
    rng = np.random.default_rng(seed)
    c = np.ldexp(rng.integers(1 << 23, 1 << 24, 32).astype(np.float64), exponent - 23).astype(np.float32)
    half = np.spacing(c).astype(np.float64) / 2
    a = (1 + rng.integers(-2, 3, 32) * 2.0**-23).astype(np.float32)
    b = (half * rng.choice([1, -1, 3, 2.0**distance, -(2.0**distance)], 32)).astype(np.float32)
    assert_fma(scalar, a, b, c)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_cancellation(scalar, seed):
    """c is minus the rounded product: what remains is the product's own rounding error, often subnormal."""
    rng = np.random.default_rng(seed)
    scale = rng.integers(-70, 60, 32)
    a = np.ldexp(rng.standard_normal(32), scale).astype(np.float32)
    b = np.ldexp(rng.standard_normal(32), scale // 2).astype(np.float32)
    c = -(a * b) * rng.choice(np.array([1, 1, -1, 0.5], dtype=np.float32), 32)
    assert_fma(scalar, a, b, c.astype(np.float32))


def test_special_values_in_all_combinations(scalar):
    special = [0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149), 2.0**-126, float(np.finfo(np.float32).max)]
    special += [-special[-1], np.inf, -np.inf, np.nan, 1 + 2.0**-23, 2.0**-75, 2.0**64]
    columns = zip(*itertools.product(special, repeat=3), strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_fma(scalar, *(np.array(column, dtype=np.float32) for column in columns))


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        # The sum is a midpoint plus or minus a tail that float64 drops.
        (2.0**-30, 2.0**-50, 1 + 2.0**-23, 1 + 2.0**-23),
        (1 + 2.0**-23, 2.0**-24, 1.0, 1 + 2.0**-23),
        (1 - 2.0**-24, 2.0**-24, 1.0, 1.0),
        (2.0**-12, 2.0**-12, 1.0, 1.0),
        (2.0**-12, 2.0**-12, 1 + 2.0**-23, 1 + 2.0**-22),
        # Overflow: the largest float32 plus half a unit is Inf, a trifle less is not.
        (2.0**51, 2.0**52, 2.0**128 - 2.0**104, np.inf),
        ((1 - 2.0**-24) * 2.0**51, 2.0**52, 2.0**128 - 2.0**104, 2.0**128 - 2.0**104),
        # Underflow: half of the smallest subnormal is a tie to zero, a trifle more is not.
        (2.0**-75, 2.0**-75, 0.0, 0.0),
        (2.0**-75, 2.0**-75 * (1 + 2.0**-23), 0.0, 2.0**-149),
        (2.0**-75, -(2.0**-75), 2.0**-149, 0.0),
        (2.0**-149, -(2.0**-149), 2.0**-126, 2.0**-126),
        (2.0**-100, 2.0**-100, -(2.0**-149) * 1.0, -(2.0**-149)),
    ],
)
def test_directed(a, b, c, expected):
    found = fma(np.float32(a), np.float32(b), np.float32(c))
    assert float(found) == expected


def test_the_last_product_bit_decides_a_tie():
    """c + a*b lies 2**-70 below a midpoint: float64 alone would round to even, the wrong way."""
    odd = np.float32(1 + 2.0**-23)
    a = np.float32(2.0**-24 * (1 + 2.0**-23))
    b = np.float32(1 - 2.0**-23)  # a * b = 2**-24 - 2**-70
    assert fma(a, b, odd) == odd
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(odd)) != odd  # what rounding twice gives


def test_broadcasts():
    a = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    b = np.arange(4, dtype=np.float32)
    found = fma(a, b, np.float32(1))
    assert found.shape == (2, 3, 4)
    assert found.dtype == np.float32
    assert np.array_equal(found, a * b + 1)
