"""Comparing bits: NaN, signed zeros, both 16-bit dtypes, what a kernel didn't write."""

from __future__ import annotations

import pytest
import torch
from harness.bits import same
from hypothesis import given
from hypothesis import strategies as st
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.gate import NOTHING, POISON, CaseMismatch, Gate, compare, differing, poison

CASE = Case("boundary", "normal", 1)
DTYPES = [torch.float16, torch.bfloat16]
words = st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=16)


def bits(words, dtype=torch.float16):
    return torch.tensor(words, dtype=torch.uint16).view(dtype)


def is_nan(word, dtype):
    return word & 0x7FFF > (0x7C00 if dtype is torch.float16 else 0x7F80)


@pytest.mark.parametrize("dtype", DTYPES)
@given(words, words)
def test_all_bits_count_but_a_nan_equals_any_nan(dtype, left, right):
    size = min(len(left), len(right))
    pairs = list(zip(left[:size], right[:size], strict=True))
    expected = [a != b and (a == POISON or not (is_nan(a, dtype) and is_nan(b, dtype))) for a, b in pairs]
    assert differing(bits(left[:size], dtype), bits(right[:size], dtype)).tolist() == expected


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32, torch.float64])
def test_minus_zero_is_not_zero(dtype):
    zeros = torch.tensor([0.0, -0.0, 0.0, -0.0], dtype=dtype)
    other = torch.tensor([0.0, 0.0, -0.0, -0.0], dtype=dtype)
    assert differing(zeros, other).tolist() == [False, True, True, False]


def test_payload_and_sign_of_a_nan_do_not_count_but_infinities_do():
    found = bits([0x7E00, 0xFE01, 0x7C01, 0x7C00, 0xFC00, 0x7E00])
    expected = bits([0x7E55, 0x7E00, 0xFFFF, 0x7E00, 0x7C00, 0x7C00])
    assert differing(found, expected).tolist() == [False, False, False, True, True, True]


def test_the_same_word_is_a_nan_in_one_dtype_and_a_number_in_the_other():
    assert differing(bits([0x7E5B]), bits([0x7E00])).tolist() == [False]
    assert differing(bits([0x7E5B], torch.bfloat16), bits([0x7E00], torch.bfloat16)).tolist() == [True]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
def test_the_poison_is_found_where_a_nan_is_expected(dtype):
    expected = torch.full((3,), float("nan"), dtype=dtype)
    found = expected.clone()
    poison(found[1:])
    assert differing(found, expected).tolist() == [False, True, True]


def test_shapes_may_differ_where_the_elements_correspond():
    assert not differing(torch.arange(6.0).view(2, 3), torch.arange(6.0)).any()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
def test_the_poison_is_found_where_a_kernel_did_not_write(dtype):
    expected = torch.linspace(-3, 3, 12, dtype=dtype).view(3, 4)
    found = torch.empty_like(expected)
    poison(found)
    assert set(found.view(torch.int16).flatten().tolist()) == {POISON}
    assert differing(found, expected).all()
    found[:2] = expected[:2]  # a kernel that leaves the last row alone
    gate = compare(CASE, "graph", {"x": found}, {"x": expected})
    assert (gate.values, gate.mismatches, gate.exact) == (12, 4, False)
    assert gate.first.index == (2, 0)


def test_the_first_mismatch_says_both_values_and_bits():
    expected = torch.tensor([[1.0, 2.0], [3.0, -0.0]], dtype=torch.float16)
    found = torch.tensor([[1.0, 2.0], [3.001953125, 0.0]], dtype=torch.float16)
    gate = compare(CASE, "eager", {"x": found}, {"x": expected})
    assert gate == Gate(1, 4, 2, CaseMismatch(CASE, "eager", "x", (1, 0), 3.001953125, 0x4201, 3.0, 0x4200))
    assert str(gate.first) == (
        "x[1, 0] is 3.001953125 (0x4201), expected 3.0 (0x4200), case boundary:normal:1, eager"
    )


def test_negative_bits_are_shown_as_they_are():
    gate = compare(CASE, "eager", {"x": bits([0x8000])}, {"x": bits([0xFC00])})
    assert (gate.first.found_bits, gate.first.expected_bits) == (0x8000, 0xFC00)


def test_only_buffers_of_both_sides_are_compared_and_the_first_in_order_is_told():
    one, two = torch.ones(2), torch.zeros(2)
    found = {"mine": one, "z": one, "a": one, "m": one}
    gate = compare(CASE, "eager", found, {"a": two, "z": two, "m": one, "theirs": two})
    assert (gate.values, gate.mismatches, gate.first.buffer) == (6, 4, "z")


def test_gates_add_up_and_keep_the_first_mismatch():
    first, second = (
        compare(CASE, how, {"x": torch.ones(3)}, {"x": torch.zeros(3)}) for how in ("eager", "graph")
    )
    right = compare(CASE, "eager", {"x": torch.ones(3)}, {"x": torch.ones(3)})
    total = NOTHING + right + first + second
    assert (total.cases, total.values, total.mismatches) == (3, 9, 6)
    assert total.first.how == "eager"
    assert right.exact
    assert not total.exact


def test_nothing_compared_is_not_exact():
    assert not NOTHING.exact
    assert not compare(CASE, "eager", {"x": torch.ones(1)}, {"y": torch.ones(1)}).exact


def test_same_wants_every_tensor_and_as_many():
    one, other = torch.ones(2), torch.zeros(2)
    assert same([one, other], [one, other])
    assert not same([one, other], [one, one])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        same([one], [one, other])
