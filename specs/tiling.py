"""How the rows of a matrix-vector product spread over CTAs and threads: pure arithmetic.

Validation and the generator both use it, so that what was accepted is what gets generated.
A tiling is a schedule: it decides which threads compute a row and when, never the tree that reduces the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..table import WARP
from .tree import TreeSpec

MAX_THREADS = 1024
LOAD_BYTES = (2, 4, 8, 16)


class TilingError(ValueError):
    """An option that doesn't fit; `option` names it, so that the message can point at its key."""

    def __init__(self, option: str, message: str) -> None:
        self.option = option
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RowTiling:
    """A CTA of `threads` is cut into `teams`; a team plays the lanes of one row at a time."""

    rows: int
    threads: int
    """Threads of a CTA."""
    team: int
    """Threads that reduce one row together."""
    teams: int
    """Rows in flight in a CTA at the same moment."""
    lane_passes: int
    """Lanes that one thread plays: t, t + team, t + 2 team, ..."""
    rows_per_cta: int
    """Rows that a CTA takes at once: a tile."""
    rows_per_team: int
    ctas: int
    """Grid size; a CTA strides over the tiles."""
    tiles: int
    load_bytes: int
    """Bytes that a thread loads from a weight matrix at once."""
    staged: bool
    """The loads don't follow the chunks of the tree, so the weights go through shared memory."""


def row_tiling(
    *,
    rows: int,
    row_elements: int,
    tree: TreeSpec,
    ctas: int | None,
    threads: int | None,
    load_bytes: int | None,
    rows_per_cta: int | None,
    element_bytes: int = 2,
    may_stage: bool,
    default_threads: int,
) -> RowTiling:
    """Resolve a schedule's options for `rows` rows of `row_elements` elements of `element_bytes` bytes.

    None means the default: the legal CTA size next below `default_threads`, one row a team, one CTA a tile,
    and the widest load that divides a chunk.

    Raises:
        TilingError: an option doesn't fit the tree, the rows or the other options.
    """
    threads = _default_threads(default_threads, tree.lanes) if threads is None else threads
    _check_threads(threads, tree.lanes)
    team = min(threads, tree.lanes)
    teams = threads // team
    rows_per_cta = teams if rows_per_cta is None else rows_per_cta
    if rows_per_cta < 1 or rows_per_cta % teams:
        raise TilingError(
            "rows_per_cta",
            f"rows_per_cta is {rows_per_cta}; it must be a multiple of {teams}, the rows that "
            f"{threads} threads in teams of {team} work on at the same time.",
        )
    tiles = -(-rows // rows_per_cta)
    ctas = tiles if ctas is None else ctas
    if not 1 <= ctas <= tiles:
        raise TilingError(
            "ctas",
            f"ctas is {ctas}; {rows} rows in tiles of {rows_per_cta} keep 1 to {tiles} CTAs busy.",
        )
    load_bytes, staged = _loads(load_bytes, tree, row_elements, element_bytes, may_stage)
    return RowTiling(
        rows=rows,
        threads=threads,
        team=team,
        teams=teams,
        lane_passes=tree.lanes // team,
        rows_per_cta=rows_per_cta,
        rows_per_team=rows_per_cta // teams,
        ctas=ctas,
        tiles=tiles,
        load_bytes=load_bytes,
        staged=staged,
    )


def _fits(threads: int, lanes: int) -> bool:
    return lanes < WARP or lanes % threads == 0 or threads % lanes == 0


def _default_threads(wanted: int, lanes: int) -> int:
    """Give the largest legal CTA size up to `wanted`; one warp is always legal."""
    sizes = range(WARP, min(wanted, MAX_THREADS) + 1, WARP)
    return max((size for size in sizes if _fits(size, lanes)), default=WARP)


def _check_threads(threads: int, lanes: int) -> None:
    if threads < WARP or threads > MAX_THREADS or threads % WARP:
        raise TilingError(
            "threads",
            f"threads is {threads}; it must be a multiple of {WARP}, from {WARP} to {MAX_THREADS}.",
        )
    if not _fits(threads, lanes):
        raise TilingError(
            "threads",
            f"threads is {threads}; it must divide the {lanes} lanes of the tree, or be a multiple of them.",
        )


def _loads(
    load_bytes: int | None, tree: TreeSpec, row_elements: int, element_bytes: int, may_stage: bool
) -> tuple[int, bool]:
    """Resolve the load width and whether it needs staging through shared memory."""
    chunk_bytes = tree.chunk * element_bytes
    if load_bytes is None:
        return max(size for size in LOAD_BYTES if chunk_bytes % size == 0), False
    if load_bytes not in LOAD_BYTES or load_bytes < element_bytes:
        raise TilingError(
            "load_bytes",
            f"load_bytes is {load_bytes}; allowed are "
            f"{', '.join(str(size) for size in LOAD_BYTES if size >= element_bytes)}.",
        )
    if chunk_bytes % load_bytes == 0:
        return load_bytes, False
    if not may_stage:
        raise TilingError(
            "load_bytes",
            f"load_bytes is {load_bytes}, but a lane's chunk is {tree.chunk} elements, {chunk_bytes} bytes, "
            "and this kernel doesn't stage weights in shared memory; take a width that divides the chunk.",
        )
    if row_elements * element_bytes % load_bytes:
        raise TilingError(
            "load_bytes",
            f"load_bytes is {load_bytes}; it must divide a row of {row_elements * element_bytes} bytes.",
        )
    return load_bytes, True
