"""The contract's arithmetic in torch against exact fractions and a scalar evaluation of the trees."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.runtime import exact

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def float32(value: Fraction) -> float:
    """Round to nearest even, by integers alone."""
    if value == 0:
        return 0.0
    sign, magnitude = (-1 if value < 0 else 1), abs(value)
    exponent = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 1, -126)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    rounded = round(magnitude / unit) * unit  # Python's round is to nearest even
    return sign * (math.inf if rounded >= Fraction(2) ** 128 else float(rounded))


def scalar_fma(a: float, b: float, c: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        result = float32(total)
        return math.copysign(result, -1.0 if total < 0 else 1.0)
    # IEEE: an exact zero is -0 only where both terms are.
    negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
    return -0.0 if negative and a * b == 0 and c == 0 else 0.0


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def torch_fma(a: float, b: float, c: float) -> float:
    return float(exact.fma(*(torch.tensor([value], dtype=torch.float32) for value in (a, b, c)))[0])


@settings(max_examples=300, deadline=None)
@given(FINITE, FINITE, FINITE)
def test_fma_is_correctly_rounded(a: float, b: float, c: float) -> None:
    assert bits(torch_fma(a, b, c)) == bits(scalar_fma(a, b, c))


def hard_cases() -> list[tuple[float, float, float]]:
    rng = np.random.default_rng(7)
    cases = []
    for _ in range(2000):
        a, b = (float(np.float32(x)) for x in rng.standard_normal(2) * 2.0 ** rng.integers(-60, 60, 2))
        product = a * b
        near = float(np.float32(-product))
        cases.append((a, b, near))  # cancellation: only the low bits of the product survive
        cases.append((a, b, float(np.nextafter(np.float32(near), np.float32(0)))))
        # ties and almost ties: an addend whose half unit is the product, plus or minus a far smaller bit
        exponent = int(rng.integers(-100, 100))
        odd = float(np.float32((1 + 2 * int(rng.integers(0, 2**22)) * 2.0**-23) * 2.0**exponent))
        half = 2.0 ** (exponent - 24)
        wobble = float(np.float32(1 + int(rng.integers(-1, 2)) * 2.0**-23))
        cases.append((wobble, half, odd))
        cases.append((wobble, -half, odd))
        # results among the subnormals
        cases.append((float(np.float32(rng.standard_normal() * 2.0**-70)), 2.0**-75, a * 2.0**-149))
    return [(a, b, float(np.float32(c))) for a, b, c in cases]


def test_fma_on_hard_cases() -> None:
    cases = hard_cases()
    a, b, c = (torch.tensor(column, dtype=torch.float32) for column in zip(*cases, strict=True))
    found = exact.fma(a, b, c).view(torch.int32).tolist()
    expected = [struct.unpack("<i", struct.pack("<f", scalar_fma(*case)))[0] for case in cases]
    assert found == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # 1 + 2**-24 is a tie; the product's last bit, 2**-46 away, decides.
        ((1 + 2**-23, 2**-24, 1.0), 1 + 2**-23),
        ((1.0, 2**-24, 1.0), 1.0),
        ((1 - 2**-24, 2**-24, 1.0), 1.0),
        ((-1.0, 0.0, 0.0), 0.0),
        ((-1.0, 0.0, -0.0), -0.0),
        ((-(2.0**-100), 2.0**-100, 0.0), -0.0),
        ((3e38, 2.0, 0.0), math.inf),
        ((3e38, 3e38, -math.inf), -math.inf),
    ],
)
def test_fma_corner(case: tuple[float, float, float], expected: float) -> None:
    assert bits(torch_fma(*case)) == bits(expected)


def test_fma_of_nonfinite_values() -> None:
    assert math.isnan(torch_fma(math.inf, 0.0, 1.0))
    assert math.isnan(torch_fma(math.inf, 1.0, -math.inf))
    assert torch_fma(math.inf, 1.0, 1.0) == math.inf
    assert math.isnan(torch_fma(1.0, 1.0, math.nan))


def scalar_dot(a: list[float], b: list[float], tree: tuple[int, int, int]) -> float:
    """docs/numerics.md#reduction-trees, word by word."""
    segments, lanes, chunk = tree
    size = len(a) // segments
    results = []
    for segment in range(segments):
        acc = [0.0] * lanes
        for k in range(size):
            lane, index = (k // chunk) % lanes, segment * size + k
            acc[lane] = scalar_fma(a[index], b[index], acc[lane])
        width = min(lanes, 32)
        groups = [acc[start : start + width] for start in range(0, lanes, width)]
        for group in groups:
            distance = width // 2
            while distance:
                group[:] = [add(group[i], group[i ^ distance]) for i in range(width)]
                distance //= 2
        total = groups[0][0]
        for group in groups[1:]:
            total = add(total, group[0])
        results.append(total)
    total = results[0]
    for result in results[1:]:
        total = add(total, result)
    return total


def add(a: float, b: float) -> float:
    return float(np.float32(a) + np.float32(b))


@pytest.mark.parametrize(
    ("length", "tree"),
    [
        (24, (1, 1, 1)),
        (24, (3, 4, 2)),
        (40, (1, 32, 2)),
        (96, (2, 8, 4)),
        (200, (1, 64, 2)),
        (320, (4, 32, 8)),
        (330, (1, 96, 1)),
        (16, (2, 32, 8)),
    ],
)
def test_dot_follows_the_tree(length: int, tree: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(length)
    a = torch.randn(2, 1, length, generator=generator) * torch.logspace(-3, 3, length)
    b = torch.randn(1, 3, length, generator=generator)
    found = exact.dot(a, b, tree)
    assert found.shape == (2, 3)
    for row in range(2):
        for column in range(3):
            expected = scalar_dot(a[row, 0].tolist(), b[0, column].tolist(), tree)
            assert bits(float(found[row, column])) == bits(expected)


def test_a_lane_without_an_element_keeps_a_negative_zero() -> None:
    # Both lanes round to -0.0; lane 1 has no element in the second round.
    tiny = 2.0**-100
    a = torch.tensor([[tiny, tiny, tiny]])
    found = exact.dot(a, torch.full((1, 3), -tiny), (1, 2, 1))
    assert bits(float(found[0])) == bits(-0.0)


def test_a_tree_that_does_not_divide_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"the tree is \[1, 4, 8\] and the length 20; segments x chunk must"):
        exact.dot(torch.zeros(1, 20), torch.zeros(1, 20), (1, 4, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_exp_is_within_one_ulp_over_all_storage_values(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    found = exact.exp(every).double()
    with np.errstate(over="ignore"):  # above FP32's range the truth is Inf too
        truth = np.exp(every.double().numpy())
        rounded = truth.astype(np.float32)
    finite = np.isfinite(rounded) & np.isfinite(found.numpy())
    unit = np.spacing(np.maximum(rounded[finite], np.float32(2.0**-126))).astype(np.float64)
    assert np.max(np.abs(found.numpy()[finite] - truth[finite]) / unit) <= 0.92
    assert np.array_equal(np.isinf(rounded), np.isinf(found.numpy()))
    assert np.array_equal(np.isnan(rounded), np.isnan(found.numpy()))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 1.0),
        (-0.0, 1.0),
        (math.inf, math.inf),
        (-math.inf, 0.0),
        (88.72283172607422, math.exp(88.72283172607422)),
        (88.72283935546875, math.inf),
        (-103.97207641601562, 2.0**-149),
        (-103.9720916748047, 0.0),
    ],
)
def test_exp_at_its_edges(x: float, expected: float) -> None:
    assert float(exact.exp(torch.tensor([x]))[0]) == pytest.approx(expected, rel=1e-7, abs=0)


def test_sigmoid_and_silu() -> None:
    x = torch.tensor([0.0, math.inf, -math.inf, math.nan, -200.0, 1.0])
    assert exact.sigmoid(x)[:3].tolist() == [0.5, 1.0, 0.0]
    assert math.isnan(exact.sigmoid(x)[3])
    assert exact.sigmoid(x)[4] == 0.0
    one = exact.exp(torch.tensor([-1.0]))
    assert exact.silu(x)[5] == torch.ones(1) / (1 + one)
    assert math.isnan(exact.silu(x)[2])  # -Inf * 0, as IEEE gives it


@given(FINITE, st.sampled_from([3.0, 6.0, 7.0, 10.0]))
@settings(max_examples=100, deadline=None)
def test_a_quotient_is_rounded_once(x: float, divisor: float) -> None:
    found = float(exact.quotient(torch.tensor([x], dtype=torch.float32), divisor)[0])
    assert found == float32(Fraction(x) / Fraction(divisor))


def test_a_root_is_rounded_once() -> None:
    # Against integers: the square of the middle between a root and its neighbour decides.
    x = torch.rand(2000, generator=torch.Generator().manual_seed(2)) * torch.logspace(-38, 38, 2000)
    for value, root in zip(x.tolist(), exact.sqrt(x).tolist(), strict=True):
        below, above = (float(np.nextafter(np.float32(root), np.float32(end))) for end in (0, np.inf))
        low, high = ((Fraction(root) + Fraction(next_)) / 2 for next_ in (below, above))
        assert low**2 <= Fraction(value) <= high**2
    zeros = exact.sqrt(torch.tensor([0.0, -0.0, math.inf, -1.0]))
    assert [bits(float(value)) for value in zeros[:3]] == [bits(0.0), bits(-0.0), bits(math.inf)]
    assert math.isnan(zeros[3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torch_rounds_storage_to_nearest_even(dtype: torch.dtype) -> None:
    """What the rounding points rely on: every tie between neighbours, subnormals and overflow included."""
    largest = {torch.float16: 0x7BFF, torch.bfloat16: 0x7F7F}[dtype]
    pattern = torch.arange(largest, dtype=torch.int32).to(torch.int16)
    low, high = pattern.view(dtype).double(), (pattern + 1).view(dtype).double()
    tie = ((low + high) / 2).float()
    even = torch.where(pattern % 2 == 0, pattern, pattern + 1)
    assert torch.equal(tie.to(dtype).view(torch.int16), even)
    above = (tie.view(torch.int32) + 1).view(torch.float32)
    below = (tie.view(torch.int32) - 1).view(torch.float32)
    assert torch.equal(above.to(dtype).view(torch.int16), pattern + 1)
    assert torch.equal(below.to(dtype).view(torch.int16), pattern)
    assert torch.tensor([65520.0, 65519.996]).half().tolist() == [math.inf, 65504.0]
