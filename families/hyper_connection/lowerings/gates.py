"""What `gates.cuh.j2` needs and can do: the up projection of the sharded routes and of several tokens."""

from __future__ import annotations

from typing import Any

from ....generator.lowering import NotGenerated, ScheduleError, TreeShape
from ....specs import RowTiling
from ..spec import MatrixRoute

CHUNKS_LIMIT = 256
"""32-bit words of weights that a thread holds at once."""
CHUNK_TYPES = {4: "unsigned int", 8: "unsigned long long"}
"""Types that a shuffle moves, by the bytes of a chunk."""


def load_widths(*shapes: TreeShape | RowTiling) -> set[int]:
    """Bytes of the words that trees and tilings load: what the text declares words for."""
    return {shape.load_bytes for shape in shapes}


def wide_loads(candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape) -> dict[str, Any]:
    """Constants for loads of several chunks, which the lanes that they belong to exchange by shuffles.

    Raises:
        NotGenerated: a width that isn't several whole chunks, or that the tree has too few chunks for.
    """
    chunk_bytes = tree.chunk * 2
    wide = tiling.load_bytes // chunk_bytes
    if not tiling.staged:
        return {"wide": 1}
    if tiling.load_bytes % chunk_bytes or chunk_bytes not in CHUNK_TYPES or tree.lanes % wide:
        raise NotGenerated(
            f"candidate {candidate.name} loads {tiling.load_bytes} bytes of {candidate.UP} at once, and a lane's "
            f"chunk has {chunk_bytes}; on sharded routes a load that is wider than the chunk is generated for "
            f"whole chunks of 4 or 8 bytes alone: take another {candidate.UP}.load_bytes"
        )
    if tree.segment * 2 % tiling.load_bytes:
        raise NotGenerated(
            f"candidate {candidate.name} loads {tiling.load_bytes} bytes of {candidate.UP} at once, but a segment "
            f"of the up tree has {tree.segment * 2}; take a width that divides it"
        )
    blocks = tree.chunks // (tree.lanes * wide)
    if blocks == 0:
        raise NotGenerated(
            f"candidate {candidate.name} loads {tiling.load_bytes} bytes of {candidate.UP} at once, but the lanes "
            f"of the up tree have {tree.steps} chunks each; take a narrower {candidate.UP}.load_bytes"
        )
    return {
        "wide": wide,
        "wide_bytes": tiling.load_bytes,
        "wide_blocks": blocks,
        "chunk_type": CHUNK_TYPES[chunk_bytes],
    }


def check_gates(candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape, gates: int) -> None:
    """Refuse what the gates' template can't do, `gates` being those that a team computes of a row.

    Raises:
        NotGenerated: a tree of several butterflies.
        ScheduleError: more weights than a thread has registers for.
    """
    up = candidate.UP
    if tree.groups > 1:
        raise NotGenerated(
            f"the up tree has {tree.lanes} lanes; candidate {candidate.name} of route {candidate.route} is generated "
            f"for 32 at most: state a tree.up with fewer lanes, or take route replicated"
        )
    words = tiling.rows_per_team * gates * tree.segments * tree.steps * max(tree.chunk // 2, 1)
    if words > CHUNKS_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name} lets a thread of {up} hold {words} words of weights at once; "
            f"{CHUNKS_LIMIT} are allowed: lower {up}.rows_per_cta or raise {up}.threads"
        )
