"""exp, sigmoid and silu: error bounds over every 16-bit input and a dense sample, edges, constants."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from kernwright.evidence.oracle import functions
from kernwright.evidence.oracle.dtypes import BFLOAT16, FLOAT16
from kernwright.evidence.oracle.functions import exp, sigmoid, silu


def ulps(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the float32 binade that the float64 truth lies in."""
    _, exponent = np.frexp(truth)
    return np.abs(found.astype(np.float64) - truth) / np.ldexp(1.0, np.maximum(exponent, -125) - 24)


def all_of(dtype) -> np.ndarray:
    x = dtype.load(np.arange(65536, dtype=np.uint16))
    return x[np.isfinite(x)]


def dense() -> np.ndarray:
    """Every 1499th float32 between 2**-26 and 104, both signs, and those around the edges and worst cases."""
    words = np.arange(0x32800000, 0x42D00000, 1499, dtype=np.uint32)
    edges = np.array([0x42B17218, 0x42CFF1B5, 0x40A664C0, 0x3EB17218, 0x42AEAC50], dtype=np.uint32)
    near = (edges[:, None] + np.arange(-300, 300)).astype(np.uint32).ravel()
    positive = np.concatenate([words, near]).view(np.float32)
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("x", [all_of(FLOAT16), all_of(BFLOAT16), dense()], ids=["fp16", "bf16", "dense"])
def test_exp_is_within_one_ulp(x):
    x = x[x <= functions.OVERFLOW]
    error = ulps(exp(x), np.exp(x.astype(np.float64)))
    assert error.max() < 0.9092  # the exhaustive maximum over float32 is 0.90911


@pytest.mark.parametrize("x", [all_of(FLOAT16), all_of(BFLOAT16), dense()], ids=["fp16", "bf16", "dense"])
def test_sigmoid_and_silu_are_within_a_few_ulps(x):
    # Where exp(-x) overflows float32 the answer is 0; just before, 1 + exp(-x) is still finite.
    x = x[x >= -functions.OVERFLOW]
    truth = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert ulps(sigmoid(x), truth).max() < 2.5
    assert ulps(silu(x), x * truth).max() < 3.6


def test_exp_edges():
    x = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 88.72283172607422, 88.72283935546875, -103.97207641601562],
        dtype=np.float32,
    )
    found = exp(np.append(x, np.float32(-103.97208404541016)))
    assert math.isnan(found[0])
    assert found[1:5].tolist() == [np.inf, 0.0, 1.0, 1.0]
    assert np.isfinite(found[5])
    assert found[6] == np.inf
    assert found[7] == np.float32(2.0**-149)
    assert found[8] in (0.0, np.float32(2.0**-149))
    assert exp(np.array([-104, -3e38], dtype=np.float32)).tolist() == [0.0, 0.0]
    assert not np.signbit(exp(np.array([-np.inf, -104], dtype=np.float32))).any()


def test_subnormal_results_are_rounded_once():
    x = np.linspace(-103.9, -87.4, 5000).astype(np.float32)
    found = exp(x)
    assert (found > 0).all()
    assert (found[x < -87.5] < 2.0**-126).all()
    assert ulps(found, np.exp(x.astype(np.float64))).max() < 0.91


def test_sigmoid_and_silu_edges():
    x = np.array([np.inf, -np.inf, 0.0, -0.0, -200.0, 200.0, np.nan], dtype=np.float32)
    assert np.array_equal(sigmoid(x), np.float32([1, 0, 0.5, 0.5, 0, 1, np.nan]), equal_nan=True)
    assert np.array_equal(silu(x), np.float32([np.inf, np.nan, 0, 0, 0, 200, np.nan]), equal_nan=True)
    assert np.signbit(silu(x))[[2, 3, 4]].tolist() == [False, True, True]


def test_exp_equals_the_scalar_evaluation(scalar):
    x = np.random.default_rng(5).uniform(-80, 80, 6000).astype(np.float32)
    assert exp(x).tolist() == [scalar.exp(v) for v in x.tolist()]
    x = x[:1000] / np.float32(16)
    assert sigmoid(x).tolist() == [scalar.sigmoid(v) for v in x.tolist()]


def test_the_split_of_ln_2():
    """high x n is exact for |n| <= 150, and high + low is ln 2 to twice float32's precision."""
    high, low = functions.LN2_HIGH, functions.LN2_LOW
    assert float(np.float32(high)) == high
    assert float(np.float32(low)) == low
    assert all(float(np.float32(high * n)) == high * n for n in range(-150, 151))
    # ln 2 = sum of 1 / (k 2**k)
    ln2 = sum(Fraction(1, k << k) for k in range(1, 80))
    assert abs(Fraction(high) + Fraction(low) - ln2) < Fraction(1, 1 << 44)
    assert all(float(np.float32(c)) == c for c in functions.COEFFICIENTS)
