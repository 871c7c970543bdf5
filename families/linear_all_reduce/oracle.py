"""FP8 per-token quantisation, bit for bit (docs/linear_all_reduce.md).

`scale = max(amax / 448, 1 / (448 * 512))` in FP32; `q = e4m3(clamp(x / scale, +-448))`, nearest even. Codes are
found by a search through the 127 values of E4M3, not by arithmetic on bits.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...evidence.oracle.arrays import F32, Bits
from ...evidence.oracle.dtypes import storage
from ...evidence.oracle.single import divide

Codes = NDArray[np.uint8]

LARGEST = 448.0
NAN_CODE = 0x7F
LEAST_SCALE = np.float32(1 / (448 * 512))

_CODES = np.arange(127)
E4M3 = np.where(_CODES < 8, _CODES * 2.0**-9, (8 + _CODES % 8) * 2.0 ** (_CODES // 8 - 10))
"""Values of the codes 0 to 126, float64, rising; 127 is NaN, and bit 7 the sign."""


def to_e4m3(values: F32) -> Codes:
    """Codes of finite float32 values between -448 and 448."""
    size = np.abs(values.astype(np.float64))
    upper = np.clip(np.searchsorted(E4M3, size), 1, 126)  # E4M3[upper - 1] < size <= E4M3[upper], but for 0
    below, above = size - E4M3[upper - 1], E4M3[upper] - size
    up = (above < below) | ((above == below) & (upper % 2 == 0))
    codes = np.where(up, upper, upper - 1).astype(np.uint8)
    signs = np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))
    signed: Codes = codes | signs
    return signed


def from_e4m3(codes: Codes) -> F32:
    """The values of codes; exact."""
    size = np.append(E4M3, np.nan)[codes & 0x7F]
    values: F32 = np.where(codes & 0x80, -size, size).astype(np.float32)
    return values


def quantise_rows(bits: Bits, dtype: str, nonfinite: Literal["nan", "clean"] = "nan") -> tuple[Codes, F32]:
    """Codes [M, K] and scales [M] of x [M, K], given as bits of float16 or bfloat16.

    Args:
        nonfinite: a row with Inf or NaN is NaN, its scale too; or such elements count as zero.
    """
    x = storage(dtype).load(bits)
    finite = np.isfinite(x)
    x = np.where(finite, x, np.float32(0))
    largest = np.abs(x).max(axis=1, initial=0.0)
    scales = np.maximum(divide(largest, np.full_like(largest, LARGEST)), LEAST_SCALE)
    scaled = np.clip(divide(x, scales[:, None]), -LARGEST, LARGEST)
    codes = to_e4m3(scaled)
    lost = ~finite.all(axis=1) if nonfinite == "nan" else np.zeros(len(x), bool)
    codes[lost] = NAN_CODE
    scales[lost] = np.nan
    return codes, scales
