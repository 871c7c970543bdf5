"""Philox4x32-10 in integer arrays (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

Counter-based and made of integer operations only: the same words on every machine, library and version.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
_BLOCK = {"numpy": 1 << 14, "cupy": 1 << 24}
"""Counters worked on at once: a CPU's cache, a GPU's memory."""


def philox(counter: Words, key: tuple[int, int], xp: ModuleType) -> Words:
    """Random words of counters: uint32 [n, 4] to uint32 [n, 4], under a key of two 32-bit integers."""
    c0, c1, c2, c3 = (counter[:, column].astype(xp.uint64) for column in range(4))
    low = xp.uint64(_LOW)
    shift = xp.uint64(32)
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * xp.uint64(_MULTIPLIERS[0])
        product1 = c2 * xp.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ xp.uint64(k0),
            product1 & low,
            (product0 >> shift) ^ c3 ^ xp.uint64(k1),
            product0 & low,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    words: Words = xp.stack([c0, c1, c2, c3], axis=1).astype(xp.uint32)
    return words


def sum_of_bytes(words: Words, xp: ModuleType) -> NDArray[np.int32]:
    """Near-normal integers: the sum of each word's four bytes, less its mean; standard deviation 148."""
    total: NDArray[np.int32] = xp.full(words.shape, -510, xp.int32)
    for shift in range(0, 32, 8):
        total += ((words >> np.uint32(shift)) & np.uint32(0xFF)).astype(xp.int32)
    return total


def stream(seed: int, name: str, count: int, xp: ModuleType) -> Words:
    """`count` words (uint32) of the stream that a 64-bit seed and a name of at most 8 ASCII bytes select.

    The name fills the counter's upper half, so streams of one seed never overlap.

    Raises:
        ValueError: if the seed or the name is out of range.
    """
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"Seed {seed} is out of range; use 0 to 2**64 - 1.")
    label = name.encode("ascii")
    if len(label) > 8:
        raise ValueError(f"Stream name {name!r} has {len(label)} bytes; use at most 8.")
    upper = int.from_bytes(label, "little")
    blocks = -(-count // 4)
    words: Words = xp.empty((blocks, 4), dtype=xp.uint32)
    for start in range(0, blocks, _BLOCK[xp.__name__]):
        stop = min(start + _BLOCK[xp.__name__], blocks)
        index = xp.arange(start, stop, dtype=xp.uint64)
        counter = xp.empty((stop - start, 4), dtype=xp.uint32)
        counter[:, 0] = (index & xp.uint64(_LOW)).astype(xp.uint32)
        counter[:, 1] = (index >> xp.uint64(32)).astype(xp.uint32)
        counter[:, 2] = upper & _LOW
        counter[:, 3] = upper >> 32
        words[start:stop] = philox(counter, (seed & _LOW, seed >> 32), xp)
    return words.reshape(-1)[:count]
