"""What a thread, a CTA and the templates can hold: specs are checked against it, so that what is valid is generated.

What is beyond spills, doesn't launch, compiles for minutes, or has no template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ....specs import RowTiling
from ....specs.errors import Finding, KeyPath
from ....specs.tree import TreeShape
from ..channel_layout import LARGEST_GRID

if TYPE_CHECKING:
    from ..spec import HyperConnectionWorkload, MatrixRoute, Sharded

SUMS_LIMIT = 192
"""Partial sums of a thread: they live in registers, of which a thread has 255."""
UNROLLED_LIMIT = 2048
"""Multiply-adds of a thread for one tile: all are unrolled, and more take the compiler minutes."""
ELEMENTS_LIMIT = 128
"""Elements of x that a thread of the norm keeps in registers, two in each."""
STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of static shared memory that a kernel may declare on every architecture."""
CHUNKS_LIMIT = 256
"""32-bit words of weights that a thread holds at once."""
CHUNK_BYTES = (4, 8)
"""Chunks that a shuffle moves."""
BLOCK_TOKENS = 16
"""Tokens of a CTA; further ones have CTAs of their own, which read the weights once more."""
MOST_TOKENS = 1024
"""Tokens of a call: exact sums of so many take far longer than a GEMM library's, under a tolerance."""
HELD_LIMIT = 96
"""32-bit words of weights that a thread holds while it goes through the tokens."""
TREE: KeyPath = ("route",)
"""What doesn't fit a tree is reported at the candidate's route: another one may do."""


class Unfit(ValueError):
    """An option or a tree that can't be built; `path` is the key of a candidate that is to blame."""

    def __init__(self, path: KeyPath, message: str) -> None:
        """Say which and why."""
        super().__init__(message)
        self.path = path


def unfit(check: Callable[[], None]) -> Iterator[Finding]:
    """What a check finds."""
    try:
        check()
    except Unfit as error:
        yield Finding(error.path, f"{error}.")


def key(candidate: MatrixRoute, kernel: str, option: str) -> KeyPath:
    """Where a candidate states an option of a kernel: in the kernel's table, or flat."""
    table = getattr(candidate, kernel, None)
    return (kernel, option) if table is not None and getattr(table, option) is not None else (option,)


def trees_of(workload: HyperConnectionWorkload) -> dict[str, TreeShape]:
    """The workload's trees, applied to what they reduce."""
    trees = workload.trees()
    lengths = {
        "norm": workload.hidden,
        "down": workload.branches * workload.hidden,
        "up": workload.low_rank,
    }
    return {name: TreeShape.of(trees[name], length) for name, length in lengths.items()}


def check_replicated(workload: HyperConnectionWorkload, candidate: MatrixRoute) -> None:
    """Check route `replicated`; raises Unfit."""
    trees = trees_of(workload)
    down, up = (candidate.tiling(workload, kernel) for kernel in ("down", "up_mix"))
    check_norm(trees["norm"])
    if workload.tokens.max > 1:
        _check_rows(workload, candidate, down, up, trees)
        return
    if trees["down"].groups > 1:  # one thread finishes a row, and its group results lie in shared memory
        _check_finishers(candidate, down)
        _check_kept(candidate, down, trees["down"], trees["down"].segments)
    _check_up_mix(candidate, up, trees["up"], workload.branches, workload.low_rank)
    _check_sums(candidate, "down", down, trees["down"], trees["down"].segments)
    _check_sums(candidate, "up_mix", up, trees["up"], trees["up"].segments * workload.branches)


def check_sharded(workload: HyperConnectionWorkload, candidate: Sharded, gates: int) -> None:
    """Check what the sharded routes share, `gates` being those that a team computes of a row; raises Unfit."""
    if (workload.tokens.min, workload.tokens.max) != (1, 1):
        raise Unfit(
            ("route",),
            f"candidate {candidate.name} has route {candidate.route}, and tokens is {workload.tokens.min} to "
            f"{workload.tokens.max}; this version has templates of that route for tokens = 1 alone",
        )
    if candidate.packed_down:
        raise Unfit(
            ("packed_down",),
            f"candidate {candidate.name} asks for packed_down, which needs a copy of the down weight that plans "
            "don't keep yet; leave packed_down out",
        )
    trees, parts = trees_of(workload), candidate.down_split or 1
    down, up = (candidate.tiling(workload, kernel) for kernel in ("down", candidate.UP))
    check_norm(trees["norm"])
    if trees["down"].segments % parts:
        raise Unfit(
            ("down_split",),
            f"candidate {candidate.name} splits the down rows into {parts} parts, but the down tree has "
            f"{trees['down'].segments} segments; down_split must divide them",
        )
    segments = trees["down"].segments // parts
    _check_finishers(candidate, down)
    _check_kept(candidate, down, trees["down"], segments)
    _check_sums(candidate, "down", down, trees["down"], segments)
    _check_gates(candidate, up, trees["up"], gates)
    if candidate.fuse_combine_norm:
        _check_fused_norm(candidate, down, trees["norm"], trees["down"], workload.branches)
    _check_wide_loads(candidate, up, trees["up"])


def check_fused(candidate: Sharded, tiling: RowTiling, gates: int) -> None:
    """Check the fused launch, in which a row has so many gates of its own; raises Unfit."""
    rows = key(candidate, "up_mix", "rows_per_cta")
    if tiling.ctas > LARGEST_GRID:
        raise Unfit(
            key(candidate, "up_mix", "ctas"),
            f"candidate {candidate.name} has {tiling.ctas} CTAs in the fused launch; a channel counts the calls of "
            f"{LARGEST_GRID} at most: state ctas, or raise rows_per_cta",
        )
    if tiling.rows_per_cta % gates:
        raise Unfit(
            rows,
            f"candidate {candidate.name} gives a CTA {tiling.rows_per_cta} gates at once; with parallel_gates all "
            f"{gates} branches of a hidden coordinate must be among them: take a multiple of {gates} as rows_per_cta",
        )
    if tiling.rows_per_cta // gates > tiling.threads:
        raise Unfit(
            rows,
            f"candidate {candidate.name} gives a CTA {tiling.rows_per_cta // gates} hidden coordinates and "
            f"{tiling.threads} threads, but a thread mixes one at most: lower rows_per_cta",
        )


def check_norm(tree: TreeShape) -> None:
    """Check that a thread of the norm can keep its elements in registers; raises Unfit."""
    elements = tree.segments * tree.steps * tree.chunk
    if elements > ELEMENTS_LIMIT:
        raise Unfit(
            TREE,
            f"the norm's tree gives a thread {elements} elements to keep in registers; {ELEMENTS_LIMIT} are allowed: "
            "state a tree.norm with more lanes",
        )


def _check_finishers(candidate: MatrixRoute, tiling: RowTiling) -> None:
    if tiling.rows_per_cta > tiling.threads:
        raise Unfit(
            key(candidate, "down", "rows_per_cta"),
            f"candidate {candidate.name} gives a CTA of the down kernel {tiling.rows_per_cta} rows and "
            f"{tiling.threads} threads, but a thread finishes one row at most: lower down.rows_per_cta or "
            f"raise down.threads",
        )


def _check_kept(
    candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape, segments: int, tokens: int = 1
) -> None:
    needed = tiling.rows_per_cta * tokens * segments * tree.groups * 4
    if needed > STATIC_SHARED_LIMIT:
        what = f"{tiling.rows_per_cta} rows of down" + (f" and {tokens} tokens" if tokens > 1 else "")
        raise Unfit(
            key(candidate, "down", "rows_per_cta"),
            f"candidate {candidate.name} keeps the sums of {what} in {needed} bytes of shared memory; "
            f"{STATIC_SHARED_LIMIT} are allowed: lower down.rows_per_cta",
        )


def _check_sums(
    candidate: MatrixRoute, kernel: str, tiling: RowTiling, tree: TreeShape, sums_per_row: int
) -> None:
    """`sums_per_row` are segments x branches: everything is unrolled over them."""
    path = key(candidate, kernel, "rows_per_cta")
    sums = tiling.rows_per_team * sums_per_row * tiling.lane_passes
    unrolled = sums * tree.steps * tree.chunk
    if sums <= SUMS_LIMIT and unrolled > UNROLLED_LIMIT:
        raise Unfit(
            path,
            f"candidate {candidate.name} gives a thread of {kernel} {unrolled} multiply-adds a tile; "
            f"{UNROLLED_LIMIT} are allowed: state a tree with more lanes, lower {kernel}.rows_per_cta or raise "
            f"{kernel}.threads",
        )
    if sums > SUMS_LIMIT and tiling.rows_per_team == 1:
        raise Unfit(
            path,
            f"candidate {candidate.name} gives a thread of {kernel} {sums} partial sums of a single row; "
            f"{SUMS_LIMIT} are allowed: state a tree with fewer segments, or raise {kernel}.threads",
        )
    if sums > SUMS_LIMIT:
        raise Unfit(
            path,
            f"candidate {candidate.name} gives a thread of {kernel} {sums} partial sums; {SUMS_LIMIT} are allowed: "
            f"lower {kernel}.rows_per_cta or raise {kernel}.threads",
        )


def _check_up_mix(
    candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape, branches: int, low_rank: int
) -> None:
    staged = tiling.rows_per_cta * branches * low_rank * 2 if tiling.staged else 0
    sums = tiling.rows_per_cta * branches * tree.segments * tree.groups * 4 if tree.groups > 1 else 0
    if staged + sums > STATIC_SHARED_LIMIT:
        raise Unfit(
            key(candidate, "up_mix", "rows_per_cta"),
            f"candidate {candidate.name} keeps {tiling.rows_per_cta} hidden coordinates x {branches} "
            f"branches of up_mix in {staged + sums} bytes of shared memory; {STATIC_SHARED_LIMIT} are "
            f"allowed: lower up_mix.rows_per_cta{' or up_mix.load_bytes' if staged else ''}",
        )


def _check_rows(
    workload: HyperConnectionWorkload,
    candidate: MatrixRoute,
    down: RowTiling,
    up: RowTiling,
    trees: dict[str, TreeShape],
) -> None:
    """Several tokens: a thread holds its weights while it goes through them."""
    most, tree = workload.tokens.max, trees["down"]
    if most > MOST_TOKENS:
        raise Unfit(
            ("route",),
            f"tokens is {workload.tokens.min} to {most}; this version has templates for {MOST_TOKENS} at most, and "
            "serves more by the reference",
        )
    together = min(most, BLOCK_TOKENS)
    held = down.rows_per_team * tree.segments * tree.steps * down.lane_passes * max(tree.chunk // 2, 1)
    if held > HELD_LIMIT:
        raise Unfit(
            key(candidate, "down", "rows_per_cta"),
            f"candidate {candidate.name} lets a thread of down hold {held} words of weights while it goes through "
            f"the tokens; {HELD_LIMIT} are allowed: lower down.rows_per_cta or raise down.threads",
        )
    _check_kept(candidate, down, tree, tree.segments, together)
    _check_gates(candidate, up, trees["up"], workload.branches)
    if trees["up"].lanes < together:
        raise Unfit(
            TREE,
            f"candidate {candidate.name} serves up to {together} tokens at once, each mixed by a lane of its own, "
            f"but the up tree has {trees['up'].lanes} lanes: state a tree.up with more, or fewer tokens",
        )
    _check_wide_loads(candidate, up, trees["up"])


def _check_gates(candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape, gates: int) -> None:
    up = candidate.UP
    if tree.groups > 1:
        raise Unfit(
            TREE,
            f"the up tree has {tree.lanes} lanes; candidate {candidate.name} of route {candidate.route} is generated "
            "for 32 at most: state a tree.up with fewer lanes, or take route replicated",
        )
    words = tiling.rows_per_team * gates * tree.segments * tree.steps * max(tree.chunk // 2, 1)
    if words > CHUNKS_LIMIT:
        raise Unfit(
            key(candidate, up, "rows_per_cta"),
            f"candidate {candidate.name} lets a thread of {up} hold {words} words of weights at once; "
            f"{CHUNKS_LIMIT} are allowed: lower {up}.rows_per_cta or raise {up}.threads",
        )


def _check_wide_loads(candidate: MatrixRoute, tiling: RowTiling, tree: TreeShape) -> None:
    """Loads of several chunks are exchanged by shuffles between the lanes that the chunks belong to."""
    if not tiling.staged:
        return
    up, chunk = candidate.UP, tree.chunk * 2
    path, wide = key(candidate, up, "load_bytes"), tiling.load_bytes // chunk
    at_once = f"candidate {candidate.name} loads {tiling.load_bytes} bytes of {up} at once"
    if tiling.load_bytes % chunk or chunk not in CHUNK_BYTES or tree.lanes % wide:
        raise Unfit(
            path,
            f"{at_once}, and a lane's chunk has {chunk}; where shuffles exchange them, a load that is wider than the "
            f"chunk is generated for whole chunks of 4 or 8 bytes alone: take another {up}.load_bytes",
        )
    if tree.segment * 2 % tiling.load_bytes:
        raise Unfit(
            path,
            f"{at_once}, but a segment of the up tree has {tree.segment * 2}; take a width that divides it",
        )
    if tree.chunks < tree.lanes * wide:
        raise Unfit(
            path,
            f"{at_once}, but the lanes of the up tree have {tree.steps} chunks each; take a narrower {up}.load_bytes",
        )


def _check_fused_norm(
    candidate: Sharded, tiling: RowTiling, norm: TreeShape, down: TreeShape, branches: int
) -> None:
    """The thread that normalises a chunk must be the one that multiplies it, and a branch a segment."""
    same = (norm.segments, norm.lanes, norm.chunk) == (1, down.lanes, down.chunk)
    if not same or down.segments != branches or down.lanes < 32 or tiling.threads != down.lanes:
        raise Unfit(
            ("fuse_combine_norm",),
            f"candidate {candidate.name} asks for fuse_combine_norm, which is generated where a branch is a segment "
            f"of down, both trees have the same lanes and chunks, and down.threads is the number of lanes; here norm "
            f"is [{norm.segments}, {norm.lanes}, {norm.chunk}], down [{down.segments}, {down.lanes}, {down.chunk}] "
            f"and down.threads {tiling.threads}",
        )
    if not candidate.prefetch_chunks:
        return
    if tiling.ctas < tiling.tiles:
        raise Unfit(
            ("prefetch_chunks",),
            f"candidate {candidate.name} asks for prefetch_chunks on a grid that strides; leave down.ctas out",
        )
    chunks = tiling.rows_per_team * (down.segments // (candidate.down_split or 1)) * down.steps
    if candidate.prefetch_chunks > chunks:
        raise Unfit(
            ("prefetch_chunks",),
            f"prefetch_chunks of candidate {candidate.name} is {candidate.prefetch_chunks}, but a thread of down "
            f"takes {chunks} chunks of the weight: lower it, or raise down.rows_per_cta",
        )
