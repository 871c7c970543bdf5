"""What `gates.cuh.j2` needs: the up projection of the sharded routes and of several tokens."""

from __future__ import annotations

from typing import Any

from ....specs import RowTiling
from ....specs.tree import TreeShape

CHUNK_TYPES = {4: "unsigned int", 8: "unsigned long long"}
"""Types that a shuffle moves, by the bytes of a chunk."""


def load_widths(*shapes: TreeShape | RowTiling) -> set[int]:
    """Bytes of the words that trees and tilings load: what the text declares words for."""
    return {shape.load_bytes for shape in shapes}


def wide_loads(tiling: RowTiling, tree: TreeShape) -> dict[str, Any]:
    """Constants for loads of several chunks, which the lanes that they belong to exchange by shuffles."""
    chunk_bytes = tree.chunk * 2
    wide = tiling.load_bytes // chunk_bytes
    if not tiling.staged:
        return {"wide": 1}
    return {
        "wide": wide,
        "wide_bytes": tiling.load_bytes,
        "wide_blocks": tree.chunks // (tree.lanes * wide),
        "chunk_type": CHUNK_TYPES[chunk_bytes],
    }
