"""The default reduction trees of a boundary, for spec files that state none and for calls that no spec serves."""

from __future__ import annotations

from ...table import Tree, default_lanes

CHUNK = 8
"""Elements that a lane takes at a time: the widest load of the storage dtypes."""


def default_trees(branches: int, hidden: int, low_rank: int) -> dict[str, Tree]:
    """The trees of `norm`, `down` and `up`; chunks of one element where 8 (2) doesn't fit.

    Source: docs/numerics.md#reduction-trees.
    """
    chunk = CHUNK if hidden % CHUNK == 0 else 1
    lanes = default_lanes(hidden // chunk)
    return {
        "norm": (1, lanes, chunk),
        "down": (branches, lanes, chunk),
        "up": (1, 32, 2 if low_rank % 2 == 0 else 1),
    }
