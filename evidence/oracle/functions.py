"""exp, sigmoid and silu as docs/numerics.md defines them: float32, bit for bit everywhere.

The polynomial of `exp` is the minimax one of degree 6 with c0, c1 and c2 fixed, its coefficients rounded to float32
and then searched for the least error of the whole function.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .arrays import F32, namespace
from .fma import fma
from .single import add, divide, multiply

OVERFLOW = float.fromhex("0x1.62e42ep+6")
"""The largest float32 whose exp is finite."""
UNDERFLOW = float.fromhex("-0x1.9fe36ap+6")
"""exp of anything below is less than half the smallest subnormal."""
LOG2_E = float.fromhex("0x1.715476p+0")
ROUND_TO_INTEGER = float.fromhex("0x1.8p+23")
"""Added and subtracted again, it leaves the nearest integer."""
LN2_HIGH = float.fromhex("0x1.62e400p-1")
"""15 significant bits: its product with any |n| <= 150 is exact."""
LN2_LOW = float.fromhex("0x1.7f7d1cp-20")
COEFFICIENTS = tuple(
    map(
        float.fromhex,
        ("0x1.6b6920p-10", "0x1.122f8ap-7", "0x1.5556a6p-5", "0x1.5554a2p-3", "0x1p-1", "0x1p+0", "0x1p+0"),
    )
)
"""c6 down to c0."""


def exp(x: F32) -> F32:
    """e to the power x: float32 [...] to float32 [...].

    NaN gives NaN, above `OVERFLOW` +Inf, below `UNDERFLOW` +0.0; subnormal results are rounded once.
    """
    xp = namespace(x)
    f32 = xp.float32
    usual = (x <= f32(OVERFLOW)) & (x >= f32(UNDERFLOW))
    inside: F32 = xp.where(usual, x, f32(0))
    n = add(fma(inside, f32(LOG2_E), f32(ROUND_TO_INTEGER)), f32(-ROUND_TO_INTEGER))
    r = fma(n, f32(-LN2_HIGH), inside)
    r = fma(n, f32(-LN2_LOW), r)
    p: F32 = xp.full_like(r, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        p = fma(p, r, f32(coefficient))
    exponent = n.astype(xp.int32)
    half = exponent >> 1
    scaled = multiply(multiply(p, _power_of_two(half)), _power_of_two(exponent - half))
    limit = xp.where(x > 0, f32(np.inf), f32(0))
    result: F32 = xp.where(usual, scaled, xp.where(x == x, limit, x))
    return result


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)): float32 [...] to float32 [...]."""
    xp = namespace(x)
    one = xp.float32(1)
    return divide(one, add(one, exp(-x)))


def silu(x: F32) -> F32:
    """x * sigmoid(x): float32 [...] to float32 [...]; -Inf gives NaN, as -Inf * 0 does."""
    return multiply(x, sigmoid(x))


def _power_of_two(exponent: NDArray[np.int32]) -> F32:
    """2 ** exponent, made of the bits of a normal float32: exponents from -126 to 127."""
    xp = namespace(exponent)
    power: F32 = ((exponent + 127) << 23).view(xp.float32)
    return power
