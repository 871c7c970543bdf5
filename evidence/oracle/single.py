"""Float32 operations rounded once, subnormals kept, on NumPy and on CuPy.

CuPy compiles its kernels with `-ftz=true`: any float32 operation of its own, a conversion too, may flush a
subnormal. So all arithmetic happens in float64, where nothing is flushed, and subnormals enter and leave by
their bits. The detour is exact: 53 bits are more than twice 24, plus two (Figueroa 1995), and a subnormal sum
or product of float32 is exact in float64.
"""

from __future__ import annotations

import numpy as np

from .arrays import F32, F64, namespace

_EXPONENT = 0x7F80_0000
_FRACTION = 0x007F_FFFF
_SIGN = 0x8000_0000
_SMALLEST_NORMAL = 2.0**-126
_SUBNORMAL_UNIT = 2.0**-149


def widen(values: F32) -> F64:
    """The float64 of the same values."""
    xp = namespace(values)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide: F64 = values.astype(xp.float64)
    if xp is np:
        return wide
    bits = xp.ascontiguousarray(values).view(xp.uint32).reshape(values.shape)
    subnormal = (bits & _FRACTION).astype(xp.float64) * _SUBNORMAL_UNIT
    subnormal = xp.where(bits & _SIGN, -subnormal, subnormal)
    exact: F64 = xp.where(bits & _EXPONENT, wide, subnormal)
    return exact


def narrow(wide: F64) -> F32:
    """float64 rounded to nearest even float32."""
    xp = namespace(wide)
    with np.errstate(all="ignore"):
        result: F32 = wide.astype(xp.float32)
    if xp is np:
        return result
    size = xp.abs(wide)
    small = size < _SMALLEST_NORMAL
    bits = xp.rint(xp.where(small, size, 0.0) / _SUBNORMAL_UNIT).astype(xp.uint32)  # may round up to normal
    bits |= xp.where(xp.signbit(wide), xp.uint32(_SIGN), xp.uint32(0))
    rounded: F32 = xp.where(small, bits, result.view(xp.uint32)).view(xp.float32)
    return rounded


def add(a: F32, b: F32) -> F32:
    with np.errstate(all="ignore"):
        return narrow(widen(a) + widen(b))


def multiply(a: F32, b: F32) -> F32:
    with np.errstate(all="ignore"):
        return narrow(widen(a) * widen(b))


def divide(a: F32, b: F32) -> F32:
    with np.errstate(all="ignore"):
        return narrow(widen(a) / widen(b))


def square_root(a: F32) -> F32:
    xp = namespace(a)
    with np.errstate(all="ignore"):
        return narrow(xp.sqrt(widen(a)))
