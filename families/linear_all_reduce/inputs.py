"""Activations and weights of all ranks, made of Philox words: the same on every machine, different on every rank."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from ...evidence.oracle.arrays import Bits
from ...evidence.oracle.dtypes import storage
from ...evidence.oracle.philox import stream, sum_of_bytes

VALUE_KINDS = ("small", "zeros", "normal", "nonfinite")
EXACT = ("small", "zeros")
"""Kinds whose products and sums are whole numbers that every dtype holds, so that no order of adding rounds."""
MOST_ONES = 250
"""Columns of x that aren't zero in `small`, over all ranks: BF16 holds whole numbers up to 256."""


def activations(dtype: str, kind: str, seed: int, ranks: int, m: int, k: int, xp: ModuleType = np) -> Bits:
    """x of all ranks, [ranks, m, k], as bits of `dtype` on the array library `xp`.

    - `small`: -1, 0 and 1 in the first columns, zero in the others;
    - `normal`: the sum of four uniform bytes, centred, scaled so that results stay near 1;
    - `nonfinite`: normal, but rank 0's first row holds an Inf, the last rank's last one a NaN;
    - `zeros`.

    Raises:
        ValueError: another kind, or a seed out of range.
    """
    if kind not in VALUE_KINDS:
        raise ValueError(f"Values {kind!r} are unknown; use one of {', '.join(VALUE_KINDS)}.")
    words = stream(seed, "x", ranks * m * k, xp).reshape(ranks, m, k)
    if kind == "zeros":
        zeros: Bits = xp.zeros((ranks, m, k), xp.uint16)
        return zeros
    if kind == "small":
        bits = _small(dtype, words, xp)
        bits[:, :, MOST_ONES // ranks :] = 0
        return bits
    bits = _normal(dtype, words, k, xp)
    if kind == "nonfinite":
        inf, nan = storage(dtype).store(np.array([np.inf, np.nan], np.float32)).tolist()
        bits[0, 0, 0], bits[-1, -1, -1] = inf, nan
    return bits


def weights(dtype: str, kind: str, seed: int, ranks: int, width: int, k: int, xp: ModuleType = np) -> Bits:
    """The weight of all ranks, [ranks, width, k]; whole numbers where sums are to be exact, else normal."""
    words = stream(seed, "weight", ranks * width * k, xp).reshape(ranks, width, k)
    return _small(dtype, words, xp) if kind in EXACT else _normal(dtype, words, k, xp)


def _small(dtype: str, words: Any, xp: ModuleType) -> Bits:
    values = (words % np.uint32(3)).astype(xp.float32) - np.float32(1)
    return storage(dtype).store(values)


def _normal(dtype: str, words: Any, k: int, xp: ModuleType) -> Bits:
    """Standard deviation about k**-0.25: the product of x and weight has one near 1."""
    scale = np.float32(2.0 ** -(7 + round(math.log2(k) / 4)))
    return storage(dtype).store(sum_of_bytes(words, xp).astype(xp.float32) * scale)
