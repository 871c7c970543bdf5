"""The contract's arithmetic in torch: the same bits as the kernels, on any device (docs/numerics.md).

All tensors are float32 unless said otherwise. Divisions are by tensors, never by Python numbers: torch
turns the latter into a multiplication by the reciprocal on a GPU, which rounds twice. No result depends
on the values through control flow, so everything here may stand inside a captured CUDA graph.
"""

from __future__ import annotations

import torch

from ..table import Tree

# exp: 2**n * P(r) with x = n ln 2 + r; at most 0.91 ulp from the true value over all float32.
_OVERFLOW = float.fromhex("0x1.62e42ep+6")
_UNDERFLOW = float.fromhex("-0x1.9fe36ap+6")
_LOG2_E = float.fromhex("0x1.715476p+0")
_ROUND = float.fromhex("0x1.8p+23")  # adding it rounds to an integer
_MINUS_LN2 = (float.fromhex("-0x1.62e400p-1"), float.fromhex("-0x1.7f7d1cp-20"))  # high part, low part
_POLYNOMIAL = tuple(
    float.fromhex(text)
    for text in (
        "0x1.6b6920p-10",
        "0x1.122f8ap-7",
        "0x1.5556a6p-5",
        "0x1.5554a2p-3",
        "0x1p-1",
        "0x1p+0",
        "0x1p+0",
    )
)


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """`a * b + c` with one rounding, elementwise with broadcasting.

    The product of two float32 is exact in float64. Its sum with `c` is rounded to odd there, with the
    error from two-sum telling the direction; 53 bits rounded to odd and then to 24 is one rounding.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(torch.int64)
    # NaN, from Inf - Inf, is neither above nor below zero: such totals stay as they are.
    inexact = (error > 0) | (error < 0)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    odd = torch.where(inexact & ((bits & 1) == 0), bits + step, bits)
    return odd.view(torch.float64).float()


def exp(x: torch.Tensor) -> torch.Tensor:
    """The contract's own exponential (docs/numerics.md#functions)."""
    inside = (x >= _UNDERFLOW) & (x <= _OVERFLOW)
    safe = torch.where(inside, x, torch.zeros_like(x))  # so that n below is a small integer
    n = fma(safe, _like(x, _LOG2_E), _like(x, _ROUND)) - _ROUND
    r = fma(n, _like(x, _MINUS_LN2[0]), safe)
    r = fma(n, _like(x, _MINUS_LN2[1]), r)
    p = _like(x, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = fma(p, r, _like(x, coefficient))
    exponent = n.to(torch.int32)
    half = exponent >> 1
    # Two factors, because 2**n itself may be no float32; only the second product rounds.
    result = p * _power_of_two(half) * _power_of_two(exponent - half)
    result = torch.where(x > _OVERFLOW, _like(x, float("inf")), result)
    result = torch.where(x < _UNDERFLOW, torch.zeros_like(x), result)
    return torch.where(x.isnan(), x, result)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """`1 / (1 + exp(-x))`."""
    one = _like(x, 1.0)
    return one / (one + exp(-x))


def silu(x: torch.Tensor) -> torch.Tensor:
    """`x * sigmoid(x)`."""
    return x * sigmoid(x)


def quotient(x: torch.Tensor, divisor: float) -> torch.Tensor:
    """`x / divisor`, rounded once."""
    return x / _like(x, divisor)


def sqrt(x: torch.Tensor) -> torch.Tensor:
    """The square root, rounded once.

    torch's float32 root on a CPU goes through a vector library that is off by one ulp for a fifth of all
    arguments. A float64 root may be off as well and still rounds right: the root of a float32 is never
    nearer than 2**-50 to the middle between two float32.
    """
    return torch.sqrt(x.double()).float()


def dot(a: torch.Tensor, b: torch.Tensor, tree: Tree) -> torch.Tensor:
    """Sum of `a * b` over the last axis of `[..., K]`, broadcasting; ValueError where the tree doesn't divide K."""
    segments, lanes, chunk = tree
    length = a.shape[-1]
    if length % (segments * chunk):
        raise ValueError(
            f"the tree is {list(tree)} and the length {length}; segments x chunk must divide the length"
        )
    chunks = length // (segments * chunk)
    a = a.reshape(*a.shape[:-1], segments, chunks, chunk)
    b = b.reshape(*b.shape[:-1], segments, chunks, chunk)
    leading = (a[..., 0, 0] + b[..., 0, 0]).shape
    acc = torch.zeros((*leading, lanes), dtype=torch.float32, device=a.device)
    for first in range(0, chunks, lanes):
        taken = min(lanes, chunks - first)
        part = slice(first, first + taken)
        for element in range(chunk):
            step = fma(a[..., part, element], b[..., part, element], acc[..., :taken])
            # A lane without an element keeps its value: adding +0.0 to it would lose a -0.0.
            acc = step if taken == lanes else torch.cat((step, acc[..., taken:]), dim=-1)
    return _in_order(_in_order(_butterflies(acc)))


def _butterflies(acc: torch.Tensor) -> torch.Tensor:
    """`[..., L]` to `[..., groups]`: the butterfly of each group of min(L, 32) lanes.

    Addition commutes, so after each step both partners hold one value, and half of them are enough.
    """
    width = min(acc.shape[-1], 32)
    acc = acc.reshape(*acc.shape[:-1], acc.shape[-1] // width, width)
    while width > 1:
        width //= 2
        acc = acc[..., :width] + acc[..., width : 2 * width]
    return acc.squeeze(-1)


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis in increasing order, starting from the first part."""
    total = parts[..., 0]
    for index in range(1, parts.shape[-1]):
        total = total + parts[..., index]
    return total


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return ((exponent + 127) << 23).view(torch.float32)


def _like(x: torch.Tensor, value: float) -> torch.Tensor:
    """A float32 scalar on x's device, filled there: copying it from the host would break a capture."""
    return torch.full((), value, dtype=torch.float32, device=x.device)
