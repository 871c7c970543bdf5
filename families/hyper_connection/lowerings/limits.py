"""What a thread and a CTA can hold: schedules and trees beyond it spill, don't launch, or compile for minutes."""

from __future__ import annotations

from ....generator.lowering import ScheduleError, TreeShape
from ....specs import CandidateSpec, RowTiling
from ..spec import MatrixRoute

SUMS_LIMIT = 192
"""Partial sums of a thread: they live in registers, of which a thread has 255."""

UNROLLED_LIMIT = 2048
"""Multiply-adds of a thread for one tile: all are unrolled, and more take the compiler minutes."""

ELEMENTS_LIMIT = 128
"""Elements of x that a thread of the norm keeps in registers, two in each."""

STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of static shared memory that a kernel may declare on every architecture."""


def check_norm(candidate: CandidateSpec, tree: TreeShape) -> None:
    """Refuse a norm that keeps too much in registers; raises ScheduleError."""
    elements = tree.segments * tree.steps * tree.chunk
    if elements > ELEMENTS_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name}: the norm's tree gives a thread {elements} elements to keep in registers; "
            f"{ELEMENTS_LIMIT} are allowed: state a tree.norm with more lanes"
        )


def check_finishers(candidate: MatrixRoute, tiling: RowTiling) -> None:
    """Refuse more rows than threads where a thread finishes one row of down; raises ScheduleError."""
    if tiling.rows_per_cta > tiling.threads:
        raise ScheduleError(
            f"candidate {candidate.name} gives a CTA of the down kernel {tiling.rows_per_cta} rows and "
            f"{tiling.threads} threads, but a thread finishes one row at most: lower down.rows_per_cta or "
            f"raise down.threads"
        )


def check_kept(
    candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape, segments: int, tokens: int = 1
) -> None:
    """Refuse group results of down, of so many segments and tokens, that don't fit; raises ScheduleError."""
    needed = tiling.rows_per_cta * tokens * segments * tree.groups * 4
    if needed > STATIC_SHARED_LIMIT:
        what = f"{tiling.rows_per_cta} rows of down" + (f" and {tokens} tokens" if tokens > 1 else "")
        raise ScheduleError(
            f"candidate {candidate.name} keeps the sums of {what} in {needed} bytes of shared memory; "
            f"{STATIC_SHARED_LIMIT} are allowed: lower down.rows_per_cta"
        )


def check_sums(
    candidate: MatrixRoute, kernel: str, tiling: RowTiling, tree: TreeShape, sums_per_row: int
) -> None:
    """Refuse too many sums of a thread, `sums_per_row` being segments x branches: everything is unrolled over them.

    Raises:
        ScheduleError: they don't fit into registers, or take the compiler minutes.
    """
    sums = tiling.rows_per_team * sums_per_row * tiling.lane_passes
    unrolled = sums * tree.steps * tree.chunk
    if sums <= SUMS_LIMIT and unrolled > UNROLLED_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name} gives a thread of {kernel} {unrolled} multiply-adds a tile; "
            f"{UNROLLED_LIMIT} are allowed: state a tree with more lanes, lower {kernel}.rows_per_cta or raise "
            f"{kernel}.threads"
        )
    if sums > SUMS_LIMIT and tiling.rows_per_team == 1:
        raise ScheduleError(
            f"candidate {candidate.name} gives a thread of {kernel} {sums} partial sums of a single row; "
            f"{SUMS_LIMIT} are allowed: state a tree with fewer segments, or raise {kernel}.threads"
        )
    if sums > SUMS_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name} gives a thread of {kernel} {sums} partial sums; {SUMS_LIMIT} are allowed: "
            f"lower {kernel}.rows_per_cta or raise {kernel}.threads"
        )
