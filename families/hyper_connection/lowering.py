"""Hyper-connection schedules: from a candidate to kernels, launch geometry and buffers.

The replicated route at one token is lowered here; several tokens and the sharded routes have modules of their own.
"""

from __future__ import annotations

from dataclasses import replace

from ...generator.lowering import Lowering, NotGenerated, ScheduleError, TreeShape
from ...specs import CandidateSpec, RowTiling, WorkloadSpec
from ...table import CtaRecord
from .channel_layout import FIRST_NUMBER, HyperConnectionChannel, shards
from .lowerings.boundary import MatrixShapes, replicated
from .lowerings.hopper import lower_prefetched
from .lowerings.limits import STATIC_SHARED_LIMIT, check_finishers, check_kept, check_sums
from .lowerings.rows import lower_rows
from .lowerings.sharded import lower_sharded
from .lowerings.tensor_core import lower_tensor_core
from .lowerings.wgmma import lower_wgmma
from .schedules.hopper import Prefetched
from .schedules.tensor_core import TensorCore
from .schedules.wgmma import Wgmma
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
    if isinstance(candidate, Wgmma):
        return lower_wgmma(workload, candidate)
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
    shapes = MatrixShapes.of(workload, candidate)
    branches, low_rank, tilings = workload.branches, workload.low_rank, shapes.tilings
    _check_down(candidate, tilings["down"], shapes.down)
    _check_up_mix(candidate, tilings["up_mix"], shapes.up, branches, low_rank)
    check_sums(candidate, "down", tilings["down"], shapes.down, shapes.down.segments)
    check_sums(candidate, "up_mix", tilings["up_mix"], shapes.up, shapes.up.segments * branches)
    constants = {
        **shapes.constants(workload, candidate),
        "up_words_per_row": low_rank * 2 // tilings["up_mix"].load_bytes,
    }
    return replicated(workload, shapes, "replicated", constants)


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
