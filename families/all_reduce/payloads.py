"""What ranks contribute to an all-reduce: seeded values of every kind, different on every rank.

All of it is made of Philox words by integer operations, as `inputs`; float32 is a storage dtype here.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Literal, get_args

import numpy as np

from ...evidence.oracle.dtypes import storage
from ...evidence.oracle.philox import stream, sum_of_bytes
from .oracle import AnyBits

Role = Literal["inputs", "addends"]
"""What a rank contributes, and what `sum2` adds to it."""

ValueKind = Literal["normal", "cancelling", "large", "subnormal", "signed_zero", "nonfinite", "ties"]
VALUE_KINDS: tuple[ValueKind, ...] = get_args(ValueKind)


@dataclass(frozen=True, slots=True)
class Format:
    """A storage dtype by its bits."""

    width: int
    """Bits of a value."""
    fraction: int
    """Bits of the fraction."""
    infinity: int
    one: int

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.width - 1)

    @property
    def mask(self) -> int:
        """All bits of the fraction."""
        return (1 << self.fraction) - 1


CANCEL_EXPONENT = {"float16": 14, "bfloat16": 18, "float32": 14}
"""Of the values that cancel: FP32's last place there lies among the bits of a normal value of the dtype."""

FORMATS = {
    "float16": Format(16, 10, 0x7C00, 0x3C00),
    "bfloat16": Format(16, 7, 0x7F80, 0x3F80),
    "float32": Format(32, 23, 0x7F800000, 0x3F800000),
}


def payloads(
    dtype: str, kind: str, seed: int, ranks: int, numel: int, role: Role = "inputs", xp: ModuleType = np
) -> AnyBits:
    """Bits `[ranks, numel]` of what the ranks contribute, on the array library `xp`.

    - `normal`: normal-like, scaled by a power of two of its own from 2**-3 to 2**4;
    - `cancelling`: normal, but two ranks of each element hold values that cancel and are so large that FP32 loses
      what was added before: 16-bit values of like size add up exactly, these show the order of the sum;
    - `large`: +-[1/4, 1) of the largest exponent: sums overflow, in an order that decides the result;
    - `subnormal`: random subnormals; `signed_zero`: +0.0 and -0.0;
    - `nonfinite`: normal, but every third value is Inf, -Inf or NaN;
    - `ties`: rank 0's `inputs` are +-[1, 2), those of the others, and all `addends`, are an odd number of half units
      of the last place or zero, so that sums lie halfway between two values of the dtype;
    - `mixed`: all of these, one after the other: no element depends on its neighbours.

    Raises:
        ValueError: another kind or dtype, or a seed out of range.
    """
    if dtype not in FORMATS:
        raise ValueError(f"{dtype!r} is no dtype of an all-reduce; use one of {', '.join(FORMATS)}.")
    if kind == "mixed":
        made = [_values(dtype, each, seed, ranks, numel, role, xp) for each in VALUE_KINDS]
        which = xp.arange(numel) % len(made)
        bits = made[0]
        for index, values in enumerate(made[1:], 1):
            bits = xp.where(which == index, values, bits)
        return bits
    if kind not in VALUE_KINDS:
        raise ValueError(f"Values {kind!r} are unknown; use one of {', '.join(VALUE_KINDS)}, or 'mixed'.")
    return _values(dtype, kind, seed, ranks, numel, role, xp)


def _values(dtype: str, kind: str, seed: int, ranks: int, numel: int, role: Role, xp: ModuleType) -> AnyBits:
    form, size = FORMATS[dtype], (ranks, numel)
    random = _random(seed, f"{role[:3]}_bits", size, xp)
    bits: AnyBits
    if kind in ("signed_zero", "subnormal"):
        bits = random & np.uint32(form.sign | (form.mask if kind == "subnormal" else 0))
    elif kind == "large":
        top = (form.infinity >> form.fraction) - 1
        exponent = top - ((random >> np.uint32(form.fraction)) & np.uint32(1))
        bits = (random & np.uint32(form.sign | form.mask)) | (exponent << np.uint32(form.fraction))
    elif kind == "ties":
        bits = _ties(form, role, random, xp)
    else:
        normal = _normal(dtype, seed, role, size, xp)
        if kind == "normal":
            return normal
        if kind == "cancelling":
            bits = _cancelling(form, normal, random, CANCEL_EXPONENT[dtype], xp)
        else:
            bits = _spoiled(form, normal, random, xp)
    narrow: AnyBits = bits.astype(xp.uint16 if form.width == 16 else xp.uint32)
    return narrow


def _ties(form: Format, role: Role, random: AnyBits, xp: ModuleType) -> AnyBits:
    """See `payloads`: values in [1, 2), and 1 or 3 halves of their last place."""
    sign = random & np.uint32(form.sign)
    value = (random & np.uint32(form.mask)) | np.uint32(form.one)
    half = np.uint32(form.one - ((form.fraction + 1) << form.fraction))
    three = half + np.uint32(
        (1 << form.fraction) | (1 << (form.fraction - 1))
    )  # twice, and half as much again
    step = xp.where(random & np.uint32(1), half, three)
    rank = xp.arange(random.shape[0]).reshape(-1, 1)
    often = (random & np.uint32(2)) != 0
    bits: AnyBits = xp.where(often | ((rank == 1) & (role == "inputs")), step, np.uint32(0))
    if role == "inputs":
        bits = xp.where(rank == 0, value, bits)
    signed: AnyBits = bits.astype(xp.uint32) | sign
    return signed


def _cancelling(form: Format, normal: AnyBits, random: AnyBits, exponent: int, xp: ModuleType) -> AnyBits:
    """A large value at one rank of each element, and its negative at another."""
    ranks, chosen = random.shape[0], random[0]
    large = (chosen & np.uint32(form.mask)) | np.uint32(form.one + (exponent << form.fraction))
    one = chosen % np.uint32(ranks)
    other = (one + np.uint32(1) + (chosen >> np.uint32(16)) % np.uint32(ranks - 1)) % np.uint32(ranks)
    rank = xp.arange(ranks).reshape(-1, 1)
    bits = xp.where(rank == one, large, normal.astype(xp.uint32))
    negative: AnyBits = xp.where(rank == other, large | np.uint32(form.sign), bits)
    return negative


def _spoiled(form: Format, normal: AnyBits, random: AnyBits, xp: ModuleType) -> AnyBits:
    """Normal values with Inf, -Inf or NaN in the place of a third of them."""
    nan = form.infinity | (1 << (form.fraction - 1))
    which = random % np.uint32(9)
    bits = normal.astype(xp.uint32)
    for index, value in enumerate((form.infinity, form.infinity | form.sign, nan)):
        bits = xp.where(which == index, np.uint32(value), bits)
    return bits


def _normal(dtype: str, seed: int, role: Role, size: tuple[int, int], xp: ModuleType) -> AnyBits:
    """The sum of four uniform bytes, centred, times a power of two; exact in float32, then rounded to the dtype."""
    words = _random(seed, f"{role[:3]}_norm", size, xp)
    exponent = (_random(seed, f"{role[:3]}_exp", size, xp) >> np.uint32(29)).astype(xp.int32) - 3
    fine = _random(seed, f"{role[:3]}_fine", size, xp) >> np.uint32(20)
    # 10 bits of the sum and 12 more behind them: a float32 holds both, and low bits are what a wrong order changes.
    whole = sum_of_bytes(words, xp) * 4096 + fine.astype(xp.int32)
    values = xp.ldexp(whole.astype(xp.float32), exponent - 20)
    if dtype == "float32":
        single: AnyBits = values.astype(xp.float32).view(xp.uint32)
        return single
    return storage(dtype).store(values.astype(xp.float32))


def _random(seed: int, name: str, size: tuple[int, int], xp: ModuleType) -> AnyBits:
    """Uniform 32-bit words."""
    words: AnyBits = stream(seed, name, size[0] * size[1], xp).reshape(size)
    return words
