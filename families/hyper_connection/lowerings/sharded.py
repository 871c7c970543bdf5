"""Lowering of the tensor-parallel routes of `hyper_connection` (docs/hyper_connection.md#routes).

Every tensor is one pointer, as on the replicated route, so that a plan launches all routes alike. A launch of one
rank (`rank_base` its number, grid as stated) is what a process of a group makes. All ranks in one launch
(`rank_base` 0, grid y the world size) is for one GPU: each tensor but the weights, and each scratch and state buffer,
then holds that of rank after rank.
"""

from __future__ import annotations

from typing import Any

from ....generator.lowering import Lowering, NotGenerated, ScheduleError, TreeShape
from ....specs import RowTiling
from ....table import Launch
from ..channel_layout import (
    EXCHANGE_THREADS,
    FIRST_GENERATION,
    LARGEST_GRID,
    LAYOUT_VERSION,
    HyperConnectionChannel,
    exchange_ctas,
)
from ..spec import FusedUpMixGather, GateSharded, HyperConnectionWorkload, Sharded
from .boundary import Buffers, MatrixShapes, branch_kernels, state_buffers
from .gates import check_gates, wide_loads
from .limits import check_finishers, check_kept, check_sums


def lower_sharded(workload: HyperConnectionWorkload, candidate: Sharded) -> Lowering:
    """Lower a candidate of a sharded route at one token.

    Raises:
        NotGenerated: an option or a tree that there are no templates for.
        ScheduleError: options that contradict each other, the channel or the hardware's limits.
    """
    _check_generated(candidate)
    up = candidate.UP
    shapes = MatrixShapes.of(workload, candidate)
    tilings, down_tree, up_tree = shapes.tilings, shapes.down, shapes.up
    parts = candidate.down_split or 1
    parallel = isinstance(candidate, FusedUpMixGather) and candidate.parallel_gates
    gates = 1 if parallel else workload.branches // (workload.world_size if up == "up" else 1)
    _check_down(candidate, tilings["down"], down_tree, parts)
    check_gates(candidate, tilings[up], up_tree, gates)
    if candidate.fuse_combine_norm:
        _check_fused_norm(candidate, tilings["down"], shapes.norm, down_tree, workload.branches)
    if isinstance(candidate, FusedUpMixGather):
        _check_fused(candidate, tilings[up], workload.branches if parallel else 1)
    constants: dict[str, Any] = {
        **shapes.constants(workload, candidate),
        "world_size": workload.world_size,
        "fuse_combine_norm": candidate.fuse_combine_norm,
        "fuse_down_gather": candidate.fuse_down_gather,
        "prefetch_chunks": candidate.prefetch_chunks,
        "parts": parts,
        "parallel_gates": parallel,
        "stacked": "rank",
        "layout_version": LAYOUT_VERSION,
        "first_generation": FIRST_GENERATION,
        "largest_grid": LARGEST_GRID,
        "exchange_threads": EXCHANGE_THREADS,
        "channel": HyperConnectionChannel.of(workload),
        "up": up,
        "tiling": tilings[up],
        "gates_per_row": gates,
        "row_is": "a gate" if parallel else "a hidden coordinate",
        **wide_loads(candidate, tilings[up], up_tree),
    }
    return Lowering(
        template=f"hyper_connection/{candidate.route}.cu.j2",
        constants=constants,
        kernels=_kernels(workload, candidate, shapes, parts),
        steps=_steps(candidate),
        scratch=_scratch(workload, candidate, down_tree, parts),
        state={"arrivals": ((tilings["down"].tiles,), "int32")} if parts > 1 else {},
        arguments={
            "channels": f"pointers[{workload.world_size}]",
            "rank_base": "uint32",
            "timeout_ns": "uint64",
        },
        capabilities=(f"hyper_connection_{candidate.route}",),
    )


def _kernels(
    workload: HyperConnectionWorkload, candidate: Sharded, shapes: MatrixShapes, parts: int
) -> dict[str, Launch]:
    def rows(kernel: str, *args: str, parts: int = 1, resident: bool = False) -> Launch:
        tiling = shapes.tilings[kernel]
        return Launch((tiling.ctas, 1, parts), (tiling.threads, 1, 1), args, resident=resident)

    def exchange(words: int, *args: str) -> Launch:
        grid, args = (exchange_ctas(words), 1, 1), ("channels", *args, "rank_base", "timeout_ns")
        return Launch(grid, (EXCHANGE_THREADS, 1, 1), args, resident=True)

    sends = ("channels",) if candidate.fuse_down_gather else ()
    sums = {"down": "segment_sums", "down_first": "segment_sums", "down_final": "final_segment_sums"}
    combining = ("residual", "block", "injection", "norm_weight", "down_weight", "x", "y")
    first = ("residual", "norm_weight", "down_weight", "y")
    down = {"down": combining, "down_first": first, "down_final": combining}
    if not candidate.fuse_combine_norm:
        down = dict.fromkeys(("down", "down_final"), ("y", "down_weight"))
    apart = branch_kernels(workload, shapes.norm)
    kernels = {"combine": apart.pop("combine"), **({} if candidate.fuse_combine_norm else apart)}
    for kernel, args in down.items():
        tiling = "down_final" if kernel == "down_final" else "down"
        split = (sums[kernel], "arrivals") if parts > 1 else ()
        kernels[kernel] = rows(tiling, *sends, *args, "shard", *split, "rank_base", parts=parts)
    kernels["gather_down"] = exchange(1, "shard", "lora", "injection_out")
    kernels["gather_down_final"] = exchange(1, "shard", "lora")
    if isinstance(candidate, GateSharded):
        kernels["up"] = rows("up", "lora", "up_weight", "gates", "rank_base")
        kernels["mix"] = exchange(workload.hidden, "gates", "y", "block_input")
    elif isinstance(candidate, FusedUpMixGather):
        args = ("channels", "lora", "up_weight", "y", "block_input", "rank_base", "timeout_ns")
        kernels["up_mix"] = rows("up_mix", *args, resident=True)
    else:
        kernels["up_mix"] = rows("up_mix", "lora", "up_weight", "y", "mixed", "rank_base")
        kernels["gather"] = exchange(workload.hidden // workload.world_size, "mixed", "block_input")
    return kernels


def _steps(candidate: Sharded) -> dict[str, tuple[str, ...]]:
    fused = candidate.fuse_combine_norm
    if isinstance(candidate, GateSharded):
        behind: tuple[str, ...] = ("up", "mix")
    else:
        behind = ("up_mix",) if isinstance(candidate, FusedUpMixGather) else ("up_mix", "gather")
    return {
        "boundary": (*(() if fused else ("combine_norm",)), "down", "gather_down", *behind),
        "first": (*(("down_first",) if fused else ("norm", "down")), "gather_down", *behind),
        "combine": ("combine",),
        "final": (*(() if fused else ("combine_norm",)), "down_final", "gather_down_final", *behind),
    }


def _scratch(
    workload: HyperConnectionWorkload, candidate: Sharded, down_tree: TreeShape, parts: int
) -> Buffers:
    ranks, dtype = workload.world_size, workload.dtype
    rows = workload.down_rows // ranks
    state = state_buffers(workload)
    scratch = {"x": state["x"], "y": state["y"], "shard": ((1, rows), dtype), "lora": state["lora"]}
    if parts > 1:
        scratch["segment_sums"] = ((rows, down_tree.segments), "float32")
        scratch["final_segment_sums"] = ((workload.low_rank // ranks, down_tree.segments), "float32")
    if isinstance(candidate, GateSharded):
        scratch["gates"] = ((workload.branches // ranks, workload.hidden), dtype)
    elif not isinstance(candidate, FusedUpMixGather):
        scratch["mixed"] = ((1, workload.hidden // ranks), dtype)
    return scratch


def _check_generated(candidate: Sharded) -> None:
    if candidate.packed_down:
        raise NotGenerated(
            f"candidate {candidate.name} asks for packed_down, which needs a copy of the down weight that plans "
            f"don't keep yet; leave packed_down out"
        )


def _check_down(candidate: Sharded, tiling: RowTiling, tree: TreeShape, parts: int) -> None:
    if tree.segments % parts:
        raise ScheduleError(
            f"candidate {candidate.name} splits the down rows into {parts} parts, but the down tree has "
            f"{tree.segments} segments; down_split must divide them"
        )
    segments = tree.segments // parts
    check_finishers(candidate, tiling)
    check_kept(candidate, tiling, tree, segments)
    check_sums(candidate, "down", tiling, tree, segments)


def _check_fused_norm(
    candidate: Sharded, tiling: RowTiling, norm: TreeShape, down: TreeShape, branches: int
) -> None:
    """The thread that normalises a chunk must be the one that multiplies it, and a branch a segment."""
    same = (norm.segments, norm.lanes, norm.chunk) == (1, down.lanes, down.chunk)
    if not same or down.segments != branches or down.lanes < 32 or tiling.threads != down.lanes:
        raise NotGenerated(
            f"candidate {candidate.name} asks for fuse_combine_norm, which is generated where a branch is a segment "
            f"of down, both trees have the same lanes and chunks, and down.threads is the number of lanes; here norm "
            f"is [{norm.segments}, {norm.lanes}, {norm.chunk}], down [{down.segments}, {down.lanes}, {down.chunk}] "
            f"and down.threads {tiling.threads}"
        )
    if not candidate.prefetch_chunks:
        return
    if tiling.ctas < tiling.tiles:
        raise NotGenerated(
            f"candidate {candidate.name} asks for prefetch_chunks on a grid that strides; leave down.ctas out"
        )
    chunks = tiling.rows_per_team * (down.segments // (candidate.down_split or 1)) * down.steps
    if candidate.prefetch_chunks > chunks:
        raise ScheduleError(
            f"prefetch_chunks of candidate {candidate.name} is {candidate.prefetch_chunks}, but a thread of down "
            f"takes {chunks} chunks of the weight: lower it, or raise down.rows_per_cta"
        )


def _check_fused(candidate: FusedUpMixGather, tiling: RowTiling, gates: int) -> None:
    if tiling.ctas > LARGEST_GRID:
        raise ScheduleError(
            f"candidate {candidate.name} has {tiling.ctas} CTAs in the fused launch; a channel counts the calls of "
            f"{LARGEST_GRID} at most: state ctas, or raise rows_per_cta"
        )
    if tiling.rows_per_cta % gates:
        raise ScheduleError(
            f"candidate {candidate.name} gives a CTA {tiling.rows_per_cta} gates at once; with parallel_gates all "
            f"{gates} branches of a hidden coordinate must be among them: take a multiple of {gates} as rows_per_cta"
        )
    if tiling.rows_per_cta // gates > tiling.threads:
        raise ScheduleError(
            f"candidate {candidate.name} gives a CTA {tiling.rows_per_cta // gates} hidden coordinates and "
            f"{tiling.threads} threads, but a thread mixes one at most: lower rows_per_cta"
        )
