"""Lowering of the tensor-parallel routes of `hyper_connection` (docs/hyper_connection.md#routes).

Every tensor is one pointer, as on the replicated route, so that a plan launches all routes alike. A launch of one
rank (`rank_base` its number, grid as stated) is what a process of a group makes. All ranks in one launch
(`rank_base` 0, grid y the world size) is for one GPU: each tensor but the weights, and each scratch and state buffer,
then holds that of rank after rank.
"""

from __future__ import annotations

from typing import Any

from ....generator.lowering import Lowering
from ....specs.tree import TreeShape
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
from .gates import wide_loads


def lower_sharded(workload: HyperConnectionWorkload, candidate: Sharded) -> Lowering:
    """Lower a candidate of a sharded route at one token."""
    up = candidate.UP
    shapes = MatrixShapes.of(workload, candidate)
    tilings, down_tree, up_tree = shapes.tilings, shapes.down, shapes.up
    parts = candidate.down_split or 1
    parallel = isinstance(candidate, FusedUpMixGather) and candidate.parallel_gates
    gates = candidate.gates(workload)
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
        **wide_loads(tilings[up], up_tree),
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
