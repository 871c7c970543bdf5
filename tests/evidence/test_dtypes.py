"""Storage dtypes: rounding against exact arithmetic, comparison and digests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from harness.bits import mismatches
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.evidence.oracle.dtypes import BFLOAT16, FLOAT16, digest, storage

ALL = np.arange(65536, dtype=np.uint16)
BOTH = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=lambda dtype: dtype.name)


@BOTH
def test_loading_and_storing_gives_the_same_bits(dtype):
    assert mismatches(dtype.store(dtype.load(ALL)), ALL, dtype).count == 0


@BOTH
def test_loads_what_torch_loads(dtype):
    view = torch.from_numpy(ALL.view(np.int16)).view(getattr(torch, dtype.name))
    assert np.array_equal(view.float().numpy(), dtype.load(ALL), equal_nan=True)


@BOTH
@settings(max_examples=40, deadline=None)
@given(words=st.lists(st.integers(0, 0xFFFFFFFF), min_size=30, max_size=60))
def test_stores_to_nearest_even(scalar, dtype, words):
    # Each word, and each with the tail of a tie.
    values = np.array(words + [w & 0xFFFF0000 | 0x8000 for w in words], dtype=np.uint32).view(np.float32)
    found = dtype.load(dtype.store(values))
    for value, got in zip(values, found, strict=True):
        expected = np.float32(scalar.store(float(value), dtype.name))
        assert (np.isnan(value) and np.isnan(got)) or (
            got == expected and np.signbit(got) == np.signbit(expected)
        )


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        (FLOAT16, 65519.996, 0x7BFF),
        (FLOAT16, 65520.0, 0x7C00),
        (FLOAT16, -65520.0, 0xFC00),
        (FLOAT16, 2.0**-25, 0x0000),
        (FLOAT16, -(2.0**-25), 0x8000),
        (FLOAT16, 3 * 2.0**-25, 0x0002),
        (BFLOAT16, 1 + 2.0**-8, 0x3F80),
        (BFLOAT16, 1 + 3 * 2.0**-8, 0x3F82),
        (BFLOAT16, 3.4028235e38, 0x7F80),
        (BFLOAT16, -0.0, 0x8000),
        (BFLOAT16, 2.0**-134, 0x0000),
    ],
)
def test_boundaries(dtype, value, bits):
    assert int(dtype.store(np.array([value], dtype=np.float32))[0]) == bits


def test_no_bfloat16_nan_becomes_infinity_or_a_number():
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    assert np.isnan(BFLOAT16.load(BFLOAT16.store(nans))).all()


@BOTH
def test_any_nan_equals_any_nan_but_zeros_have_signs(dtype):
    nans = ALL[np.isnan(dtype.load(ALL))]
    assert len(nans) == 2 * ((1 << dtype.fraction_bits) - 1)
    assert set(dtype.canonical(nans)) == {dtype.nan}
    zeros = np.array([[0x0000, 0x8000], [0x0000, dtype.nan]], dtype=np.uint16)
    other = np.array([[0x0000, 0x0000], [0x0000, dtype.nan | 0x8001]], dtype=np.uint16)
    comparison = mismatches(zeros, other, dtype)
    assert (comparison.count, comparison.size) == (1, 4)
    assert comparison.first is not None
    assert comparison.first.index == (0, 1)
    assert str(comparison.first) == "at [0, 1]: found -0.0 (0x8000), expected 0.0 (0x0000)"


def test_shapes_must_be_equal():
    with pytest.raises(ValueError, match=r"Shape \(2,\) can't be compared with shape \(3,\)"):
        mismatches(ALL[:2], ALL[:3], FLOAT16)


def test_digest_covers_values_shapes_names_and_dtype_but_not_nan_payloads():
    bits = ALL[:6]
    base = digest({"a": bits, "b": bits}, FLOAT16)
    # Made by this function once; a change voids every golden digest.
    assert base == "1f3aaf8218370b7f301fd01ad1a3f72b9381c83102d646a15a68e299fd1949df"
    assert digest({"b": bits, "a": bits}, FLOAT16) == base
    assert digest({"a": bits, "b": bits.reshape(2, 3)}, FLOAT16) != base
    assert digest({"a": bits, "c": bits}, FLOAT16) != base
    assert digest({"a": bits, "b": bits}, BFLOAT16) != base
    assert digest({"a": bits, "b": bits + np.uint16(1)}, FLOAT16) != base
    nans = np.array([0x7C01, 0xFE00], dtype=np.uint16)
    assert digest({"a": nans}, FLOAT16) == digest({"a": nans[::-1]}, FLOAT16)


def test_unknown_dtype():
    with pytest.raises(ValueError, match="'float8' is no storage dtype"):
        storage("float8")
