"""Comparing what a run stored with what it should have stored, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .launch import Array, DeviceBuffer

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}
"""Bits of +Inf: whatever is above them, but for the sign, is a NaN."""


@dataclass(frozen=True, slots=True)
class BufferMismatch:
    """Elements of a buffer that differ from what was expected."""

    buffer: str
    rank: int
    count: int
    size: int
    first: int
    """Flat index of the first one."""
    found: str
    expected: str
    """Bits, in hexadecimal."""

    def __str__(self) -> str:
        return (
            f"Mismatch: {self.count} of {self.size} elements of {self.buffer} of rank {self.rank}; element "
            f"{self.first} is {self.found}, expected {self.expected}."
        )


def compare(buffer: DeviceBuffer, found: Array, expected: Array) -> BufferMismatch | None:
    """The difference, if any: a NaN equals any NaN where the buffer's dtype is known, all else as integers.

    Raises:
        ValueError: sizes differ.
    """
    if found.nbytes != expected.nbytes:
        raise ValueError(
            f"{buffer.name} holds {found.nbytes} bytes, but {expected.nbytes} bytes are expected of it; give "
            "an array of the same shape and dtype."
        )
    ours, theirs = _bits(buffer, found), _bits(buffer, expected)
    differs = ours != theirs
    count = int(np.count_nonzero(differs))
    if count == 0:
        return None
    first = int(differs.argmax())
    digits = 2 * ours.itemsize
    raw = (np.ascontiguousarray(array).reshape(-1).view(ours.dtype) for array in (found, expected))
    pair = (f"0x{int(bits[first]):0{digits}x}" for bits in raw)
    return BufferMismatch(buffer.name, buffer.rank, count, ours.size, first, *pair)


def _bits(buffer: DeviceBuffer, array: Array) -> NDArray[Any]:
    """The array as flat unsigned integers, every NaN replaced by the same one."""
    width = buffer.array.dtype.itemsize
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{width}")
    infinity = _INFINITY.get(buffer.dtype)
    if infinity is None:
        return bits
    sign = bits.dtype.type(1 << (8 * width - 1))
    return np.where((bits & ~sign) > infinity, bits.dtype.type(infinity + 1), bits)
