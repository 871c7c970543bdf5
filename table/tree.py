"""How many lanes a reduction tree may have (docs/numerics.md#reduction-trees)."""

from __future__ import annotations

WARP = 32
MAX_LANES = 1024
"""A team of lanes never exceeds one CTA, and a CTA has at most 1024 threads."""


def legal_lanes(lanes: int) -> bool:
    """Tell whether a tree may have so many lanes: a power of two up to 32, or a multiple of 32 up to 1024."""
    if lanes <= WARP:
        return lanes > 0 and lanes & (lanes - 1) == 0
    return lanes <= MAX_LANES and lanes % WARP == 0


def default_lanes(limit: int) -> int:
    """Give the largest legal number of lanes up to `limit` (1 where the limit is below that)."""
    if limit >= WARP:
        return min(limit, MAX_LANES) // WARP * WARP
    return 1 << (max(limit, 1).bit_length() - 1)
