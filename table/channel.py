"""Where the parts of a channel begin: one after the other, none sharing a cache line or a sector with another."""

from __future__ import annotations

from collections.abc import Mapping

ALIGNMENT = 256
"""Bytes."""
OVERLAP = 3
"""In an error record of a channel, in the place of the number of a wait: two calls met on the channel."""
DISAGREEMENT = 255
"""The same: a peer has made another call."""


def aligned(size: int) -> int:
    """Bytes that a part of `size` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def laid_out(parts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Give where each part begins, and the size of all, in bytes, for the parts' sizes in their order."""
    begin, offsets = 0, {}
    for part, size in parts.items():
        offsets[part] = begin
        begin += aligned(size)
    return offsets, begin
