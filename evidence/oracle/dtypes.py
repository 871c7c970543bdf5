"""Storage dtypes as bit patterns: load, round, hash (docs/numerics.md#instructions).

bfloat16 has no NumPy or CuPy dtype, so every stored tensor is a uint16 array of bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .arrays import F32, Bits, namespace


@dataclass(frozen=True, slots=True)
class Storage:
    """A 16-bit floating-point storage dtype; tensors of it are uint16 bit arrays."""

    name: str
    fraction_bits: int
    infinity: int
    """Bits of +Inf."""
    nan: int
    """Bits of the NaN that stands for all of them."""

    def load(self, bits: Bits) -> F32:
        """The float32 values of the bits; exact."""
        xp = namespace(bits)
        if self.name == "float16":
            half: F32 = bits.view(xp.float16).astype(xp.float32)
            return half
        brain: F32 = (bits.astype(xp.uint32) << 16).view(xp.float32)
        return brain

    def store(self, values: F32) -> Bits:
        """float32 values rounded to nearest even; overflow gives Inf, subnormals are kept, NaN stays NaN."""
        xp = namespace(values)
        values = xp.ascontiguousarray(values, dtype=xp.float32).reshape(values.shape)
        if self.name == "float16":
            with np.errstate(all="ignore"):
                half: Bits = values.astype(xp.float16).view(xp.uint16)
            return half
        word = values.view(xp.uint32)
        rounded = (word + (0x7FFF + ((word >> 16) & 1))) >> 16
        # Rounding could carry a NaN's payload into the sign; truncating could turn it into Inf.
        brain: Bits = xp.where(values == values, rounded, (word >> 16) | 0x40).astype(xp.uint16)
        return brain

    def canonical(self, bits: Bits) -> Bits:
        """The bits with every NaN replaced by the one NaN: payloads and signs differ between processors."""
        xp = namespace(bits)
        canonical: Bits = xp.where((bits & 0x7FFF) > self.infinity, xp.uint16(self.nan), bits)
        return canonical


FLOAT16 = Storage("float16", fraction_bits=10, infinity=0x7C00, nan=0x7E00)
BFLOAT16 = Storage("bfloat16", fraction_bits=7, infinity=0x7F80, nan=0x7FC0)


def storage(name: str) -> Storage:
    """The storage dtype of that name.

    Raises:
        ValueError: for a name that is neither float16 nor bfloat16.
    """
    for known in (FLOAT16, BFLOAT16):
        if known.name == name:
            return known
    raise ValueError(f"{name!r} is no storage dtype of the oracle; use 'float16' or 'bfloat16'.")


def on_host(bits: Bits) -> Bits:
    """The array as NumPy's, copied from the GPU if it is there."""
    xp = namespace(bits)
    host: Bits = bits if xp is np else xp.asnumpy(bits)
    return host


def digest(tensors: Mapping[str, Bits], dtype: Storage) -> str:
    """SHA-256 (hex) of the dtype, then in name order of each name, shape and canonical bits (little-endian)."""
    sha = hashlib.sha256(f"{dtype.name}\n".encode())
    for name in sorted(tensors):
        bits = on_host(dtype.canonical(tensors[name]))
        shape = "x".join(map(str, bits.shape))
        sha.update(f"{name} {shape}\n".encode())
        sha.update(bits.astype("<u2").tobytes())
    return sha.hexdigest()
