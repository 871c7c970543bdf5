"""The oracle of all-reduce against exact fractions, rounded as the contract says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.evidence.oracle.dtypes import storage
from kernwright.families.all_reduce.oracle import all_reduce, all_reduce_sum2, local_sum

DTYPES = ("float16", "bfloat16", "float32")
WORDS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32}


def load(bits, dtype):
    return bits.view(np.float32) if dtype == "float32" else storage(dtype).load(bits)


def to_bits(values, dtype):
    values = np.asarray(values, np.float32)
    return values.view(np.uint32) if dtype == "float32" else storage(dtype).store(values)


def same(bits, values, dtype) -> bool:
    """Bit for bit, but for the payload of a NaN."""
    found, wanted = load(bits, dtype).tolist(), list(values)
    return all(
        math.isnan(a) if math.isnan(b) else (a, math.copysign(1, a)) == (b, math.copysign(1, b))
        for a, b in zip(found, wanted, strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(DTYPES), ranks=st.sampled_from([2, 4, 8]), seed=st.integers(0, 2**32 - 1))
def test_any_bits(scalar, dtype, ranks, seed):
    """Raw bits: subnormals, infinities and NaNs are among them."""
    bits = (
        np.random.default_rng(seed)
        .integers(0, np.iinfo(WORDS[dtype]).max + 1, (ranks, 40))
        .astype(WORDS[dtype])
    )
    columns = load(bits, dtype).T.tolist()
    found = all_reduce(list(bits), dtype)
    assert found.dtype == WORDS[dtype]
    assert same(found, [scalar.store(scalar.chain(column), dtype) for column in columns], dtype)


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(DTYPES), ranks=st.sampled_from([2, 4, 8]), seed=st.integers(0, 2**32 - 1))
def test_two_inputs_are_added_and_rounded_first(scalar, dtype, ranks, seed):
    rng = np.random.default_rng(seed)
    values = np.ldexp(rng.standard_normal((2, ranks, 40)), rng.integers(-6, 7, (2, ranks, 40)))
    a, b = to_bits(values, dtype)
    locals_ = [
        [scalar.store(scalar.add(x, y), dtype) for x, y in zip(*pair, strict=True)]
        for pair in zip(load(a, dtype).tolist(), load(b, dtype).tolist(), strict=True)
    ]
    assert all(same(local_sum(a[r], b[r], dtype), locals_[r], dtype) for r in range(ranks))
    expected = [scalar.store(scalar.chain(list(column)), dtype) for column in zip(*locals_, strict=True)]
    assert same(all_reduce_sum2(list(a), list(b), dtype), expected, dtype)


def test_the_contract_can_be_told_from_its_neighbours():
    """Other orders, a rounding between, and FP16 sums give other bits for these values."""
    rng = np.random.default_rng(3)
    values = np.ldexp(rng.standard_normal((8, 400)), rng.integers(-6, 7, (8, 400)))
    bits = list(to_bits(values, "bfloat16"))
    right = all_reduce(bits, "bfloat16")
    rounded = bits[0]
    for tensor in bits[1:]:
        rounded = local_sum(rounded, tensor, "bfloat16")
    assert np.count_nonzero(rounded != right) > 50
    wide = list(to_bits(values, "float32"))
    assert np.count_nonzero(all_reduce(wide, "float32") != all_reduce(wide[::-1], "float32")) > 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_keep_their_sign_and_sixty_thousand_overflows(dtype):
    zero, minus = to_bits([0.0], dtype), to_bits([-0.0], dtype)
    assert (all_reduce([minus] * 4, dtype) == minus).all()
    assert (all_reduce([zero] * 4, dtype) == zero).all()
    assert (all_reduce([minus, zero], dtype) == zero).all()
    (total,) = load(all_reduce([to_bits([60000.0], dtype)] * 4, dtype), dtype)
    assert total == (math.inf if dtype == "float16" else 239616.0 if dtype == "bfloat16" else 240000.0)
    (back,) = load(all_reduce([to_bits([v], dtype) for v in (60000.0, 60000.0, -60000.0, 0.0)], dtype), dtype)
    assert back == (59904.0 if dtype == "bfloat16" else 60000.0)  # nothing is rounded on the way


def test_what_is_refused():
    with pytest.raises(ValueError, match="found contributions of 2 shapes; every rank contributes one"):
        all_reduce([np.zeros(3, np.uint16), np.zeros(4, np.uint16)], "float16")
    with pytest.raises(ValueError, match="found contributions of 0 shapes"):
        all_reduce([], "float16")
    with pytest.raises(ValueError, match="'float64' is no storage dtype of the oracle"):
        all_reduce([np.zeros(3, np.uint64)] * 2, "float64")
