"""Hyper-connection schedules: from a candidate to kernels, launch geometry and buffers.

The replicated route at one token is lowered here; several tokens and the sharded routes have modules of their own.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ...generator.literals import float_literal
from ...generator.lowering import Lowering, NotGenerated, ScheduleError, TreeShape
from ...specs import CandidateSpec, RowTiling, WorkloadSpec
from ...table import CtaRecord, Launch
from .channel_layout import FIRST_NUMBER, HyperConnectionChannel, shards
from .lowerings.gates import load_widths
from .lowerings.hopper import lower_prefetched
from .lowerings.limits import STATIC_SHARED_LIMIT, check_finishers, check_kept, check_norm, check_sums
from .lowerings.rows import lower_rows
from .lowerings.sharded import lower_sharded
from .lowerings.tensor_core import lower_tensor_core
from .schedules.hopper import Prefetched
from .schedules.tensor_core import TensorCore
from .spec import HyperConnectionWorkload, Replicated, Sharded

UNIT = "tokens"
AWAITED = ("the shard of the down rows", "the gates", "the outputs", "the outputs of the fused launch")
"""The exchanges of `HyperConnectionChannel`, in the order of their numbers."""
WAITS = dict(enumerate(AWAITED, FIRST_NUMBER))
CTA_RECORD = CtaRecord(
    ("failures", "cta", "row", "branch", "expected", "seen"), "row {row} of branch {branch}"
)
"""As `exchange.cuh.j2` writes it."""


def lower(workload: WorkloadSpec, candidate: CandidateSpec) -> Lowering:
    """Lower a candidate of a hyper-connection workload.

    Raises:
        NotGenerated: an option, a tree or a number of tokens that there are no templates for.
        ScheduleError: rows don't fit into shared memory, or outnumber the threads that finish them.
    """
    assert isinstance(workload, HyperConnectionWorkload)
    lowering = _lower_route(workload, candidate)
    # The channel is the workload's: candidates that need none have it as well.
    channel = HyperConnectionChannel.of(workload).offsets() if shards(workload) else {}
    return replace(lowering, channel=channel)


def _lower_route(workload: HyperConnectionWorkload, candidate: CandidateSpec) -> Lowering:
    if isinstance(candidate, Prefetched):
        return lower_prefetched(workload, candidate)
    if isinstance(candidate, TensorCore):
        return lower_tensor_core(workload, candidate)
    one_token = (workload.tokens.min, workload.tokens.max) == (1, 1)
    if isinstance(candidate, Sharded) and one_token:
        return lower_sharded(workload, candidate)
    if not isinstance(candidate, Replicated):
        raise NotGenerated(
            f"candidate {candidate.name} has route {candidate.route}, and tokens is {workload.tokens.min} to "
            f"{workload.tokens.max}; this version has templates of that route for tokens = 1 alone"
        )
    if not one_token:
        return lower_rows(workload, candidate)
    return _lower_replicated(workload, candidate)


def _lower_replicated(workload: HyperConnectionWorkload, candidate: Replicated) -> Lowering:
    trees = workload.trees()
    branches, hidden, low_rank = workload.branches, workload.hidden, workload.low_rank
    state = branches * hidden
    tilings = {kernel: candidate.tiling(workload, kernel) for kernel in ("down", "down_final", "up_mix")}
    down_tree, up_tree = TreeShape.of(trees["down"], state), TreeShape.of(trees["up"], low_rank)
    _check_down(candidate, tilings["down"], down_tree)
    _check_up_mix(candidate, tilings["up_mix"], up_tree, branches, low_rank)
    check_sums(candidate, "down", tilings["down"], down_tree, down_tree.segments)
    check_sums(candidate, "up_mix", tilings["up_mix"], up_tree, up_tree.segments * branches)

    norm = TreeShape.of(trees["norm"], hidden)
    check_norm(candidate, norm)
    norm_threads = max(norm.lanes, 32)  # a butterfly needs whole warps
    constants: dict[str, Any] = {
        "dtype": workload.dtype,
        "branches": branches,
        "hidden": hidden,
        "low_rank": low_rank,
        "up_words_per_row": low_rank * 2 // tilings["up_mix"].load_bytes,
        "eps": float_literal(workload.eps),
        "branches_power_of_two": branches & (branches - 1) == 0,
        "inverse_branches": float_literal(1.0 / branches),
        "per_branch": workload.norm_weight == "per_branch",
        "early_norm_weight": candidate.early_norm_weight,
        "l1_bypass": candidate.l1_bypass,
        "load_widths": load_widths(norm, down_tree, up_tree, *tilings.values()),
        "norm": {**asdict(norm), "threads": norm_threads},
        "down_tree": down_tree,
        "up_tree": up_tree,
        "tilings": tilings,
    }

    def per_branch_launch(*args: str) -> Launch:
        return Launch(grid=(branches, 1, 1), block=(norm_threads, 1, 1), args=args)

    def row_launch(kernel: str, *args: str) -> Launch:
        tiling = tilings[kernel]
        return Launch(grid=(tiling.ctas, 1, 1), block=(tiling.threads, 1, 1), args=args)

    return Lowering(
        template="hyper_connection/replicated.cu.j2",
        constants=constants,
        kernels={
            "combine_norm": per_branch_launch("residual", "block", "injection", "norm_weight", "x", "y"),
            "norm": per_branch_launch("residual", "norm_weight", "y"),
            "combine": per_branch_launch("residual", "block", "injection", "x"),
            "down": row_launch("down", "y", "down_weight", "lora", "injection_out"),
            "down_final": row_launch("down_final", "y", "down_weight", "lora"),
            "up_mix": row_launch("up_mix", "lora", "up_weight", "y", "block_input"),
        },
        steps={
            "boundary": ("combine_norm", "down", "up_mix"),
            "first": ("norm", "down", "up_mix"),
            "combine": ("combine",),
            "final": ("combine_norm", "down_final", "up_mix"),
        },
        scratch={
            "x": ((1, state), workload.dtype),
            "y": ((1, state), workload.dtype),
            "lora": ((1, low_rank), workload.dtype),
        },
    )


def _check_down(candidate: Replicated, tiling: RowTiling, tree: TreeShape) -> None:
    """A row of several groups is finished by one thread, and its group results lie in shared memory."""
    if tree.groups == 1:
        return
    check_finishers(candidate, tiling)
    check_kept(candidate, tiling, tree, tree.segments)


def _check_up_mix(
    candidate: Replicated, tiling: RowTiling, tree: TreeShape, branches: int, low_rank: int
) -> None:
    staged = tiling.rows_per_cta * branches * low_rank * 2 if tiling.staged else 0
    sums = tiling.rows_per_cta * branches * tree.segments * tree.groups * 4 if tree.groups > 1 else 0
    if staged + sums > STATIC_SHARED_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name} keeps {tiling.rows_per_cta} hidden coordinates x {branches} "
            f"branches of up_mix in {staged + sums} bytes of shared memory; {STATIC_SHARED_LIMIT} are "
            f"allowed: lower up_mix.rows_per_cta{' or up_mix.load_bytes' if staged else ''}"
        )
