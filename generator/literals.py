"""Numbers as source text."""

from __future__ import annotations

import struct


def float_literal(value: float) -> str:
    """The FP32 literal of `value` in CUDA: hexadecimal, so that nothing is rounded, then decimal.

    >>> float_literal(0.25)
    '0x1p-2f /* 0.25 */'
    """
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    mantissa, exponent = float(single).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{int(exponent)}f /* {value!r} */"
