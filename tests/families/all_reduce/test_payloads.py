"""What ranks contribute to an all-reduce: each kind of values is what it says, and differs by rank."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.evidence.oracle.dtypes import storage
from kernwright.families.all_reduce.oracle import all_reduce, local_sum
from kernwright.families.all_reduce.payloads import FORMATS, VALUE_KINDS, payloads

DTYPES = ("float16", "bfloat16", "float32")


def values(bits, dtype):
    return bits.view(np.float32) if dtype == "float32" else storage(dtype).load(bits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*VALUE_KINDS, "mixed"])
def test_seeds_ranks_and_roles_differ_and_repeat(dtype, kind):
    bits = payloads(dtype, kind, 3, 4, 600)
    assert bits.shape == (4, 600)
    assert bits.itemsize == (4 if dtype == "float32" else 2)
    assert np.array_equal(bits, payloads(dtype, kind, 3, 4, 600))
    assert not np.array_equal(bits, payloads(dtype, kind, 4, 4, 600))
    assert not np.array_equal(bits, payloads(dtype, kind, 3, 4, 600, "addends"))
    assert len({row.tobytes() for row in bits}) == 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_kind_is_what_it_says(dtype):
    form = FORMATS[dtype]
    made = {kind: payloads(dtype, kind, 5, 4, 4000) for kind in VALUE_KINDS}
    exponents = {kind: (bits & ~np.uint32(form.sign)) >> form.fraction for kind, bits in made.items()}
    assert set(np.unique(exponents["subnormal"])) == {0}
    assert np.count_nonzero(made["subnormal"] & form.mask) > 15_000
    assert set(np.unique(made["signed_zero"])) == {0, form.sign}
    top = (form.infinity >> form.fraction) - 1
    assert set(np.unique(exponents["large"])) == {top - 1, top}
    held = values(made["nonfinite"], dtype)
    for share in (np.isposinf(held), np.isneginf(held), np.isnan(held)):
        assert 0.08 < share.mean() < 0.15
    spread = np.abs(values(made["normal"], dtype))
    assert np.isfinite(spread).all()
    assert 8 < spread.max() < 32
    assert 0.1 < np.median(spread) < 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [4, 8])
def test_the_order_of_the_ranks_decides_bits(dtype, ranks):
    rows = list(payloads(dtype, "cancelling", 7, ranks, 4000))
    right = all_reduce(rows, dtype)
    for order in (rows[::-1], rows[1:] + rows[:1]):
        assert np.count_nonzero(all_reduce(order, dtype) != right) > 400


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_after_every_rank_decides_bits(dtype):
    rows = list(payloads(dtype, "normal", 7, 4, 4000))
    total = rows[0]
    for row in rows[1:]:
        total = local_sum(total, row, dtype)
    assert np.count_nonzero(total != all_reduce(rows, dtype)) > 400


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_sums_overflow(dtype):
    found = values(all_reduce(list(payloads(dtype, "large", 7, 2, 4000)), dtype), dtype)
    assert 0.2 < np.isinf(found).mean() < 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_lie_halfway(dtype):
    """Added exactly, the sum of two ranks is an odd number of half units in the last place."""
    a, b = (values(row, dtype).astype(np.float64) for row in payloads(dtype, "ties", 7, 2, 4000))
    unit = 2.0 ** -FORMATS[dtype].fraction
    inside = (np.abs(a + b) > 1) & (np.abs(a + b) < 2)
    halves = (a + b)[inside] / (unit / 2)
    assert inside.mean() > 0.9
    assert (halves % 2 == 1).all()
    addends = np.abs(values(payloads(dtype, "ties", 7, 2, 4000, "addends"), dtype))
    assert set(np.unique(addends)) == {0, unit / 2, 1.5 * unit}


def test_mixed_holds_every_kind_in_turn():
    bits = payloads("bfloat16", "mixed", 7, 2, 61)
    for index, kind in enumerate(VALUE_KINDS):
        own = payloads("bfloat16", kind, 7, 2, 61)
        assert np.array_equal(bits[:, index :: len(VALUE_KINDS)], own[:, index :: len(VALUE_KINDS)])


def test_what_there_is_not():
    with pytest.raises(
        ValueError, match="'float64' is no dtype of an all-reduce; use one of float16, bfloat16, float32"
    ):
        payloads("float64", "normal", 1, 2, 8)
    with pytest.raises(ValueError, match="Values 'huge' are unknown; use one of normal, cancelling, large"):
        payloads("float16", "huge", 1, 2, 8)
