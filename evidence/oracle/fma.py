"""A correctly rounded float32 FMA for arrays (docs/numerics.md#oracles), without an FMA instruction.

The product of two float32 is exact in float64. Its sum with a float32 is rounded to 53 bits and then
to 24: twice, which differs from rounding once only where the first rounding lands exactly on a midpoint
between two float32. Only there the lost part is recovered by two-sum and the sum rounded to odd,
which makes the second rounding right (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

import numpy as np

from .arrays import F32, F64, namespace
from .single import narrow, widen

_DROPPED = (1 << 29) - 1
"""The float64 fraction bits that a normal float32 lacks."""
_MIDPOINT = 1 << 28
_SMALLEST_NORMAL = 2.0**-126


def fma(a: F32, b: F32, c: F32) -> F32:
    """`a * b + c` rounded once to float32, elementwise with broadcasting; special values as IEEE 754 has them."""
    xp = namespace(a, b, c)
    with np.errstate(all="ignore"):
        product = widen(xp.asarray(a)) * widen(xp.asarray(b))
    product, addend = xp.broadcast_arrays(product, xp.asarray(c))
    return add_product(product, addend)


def add_product(product: F64, addend: F32) -> F32:
    """`product + addend` rounded once to float32.

    `product` is the exact product of two float32 held in float64; both arrays have the same shape.
    """
    xp = namespace(product, addend)
    with np.errstate(all="ignore"):
        wide = widen(addend)
        total = xp.asarray(product + wide)
        result = narrow(total)
        twice_rounded = (total.view(xp.int64) & _DROPPED) == _MIDPOINT
        # A subnormal float32 has its midpoints at other bits: all of them are done with care.
        twice_rounded |= xp.abs(total) < _SMALLEST_NORMAL
        if twice_rounded.any():
            odd = _to_odd(product[twice_rounded], wide[twice_rounded], total[twice_rounded])
            result[twice_rounded] = narrow(odd)
    return result


def _to_odd(product: F64, addend: F64, total: F64) -> F64:
    """The exact sum rounded to odd: truncated, and its last bit set if anything was cut off. Finite only."""
    xp = namespace(total)
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(xp.int64)
    away = xp.where((lost > 0) == (total > 0), 1, -1)
    odd: F64 = xp.where((lost != 0) & (bits & 1 == 0), bits + away, bits).view(xp.float64)
    return odd
