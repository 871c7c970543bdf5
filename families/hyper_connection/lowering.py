"""Hyper-connection schedules: from a candidate to kernels, launch geometry and buffers.

The replicated route at one token is lowered here; several tokens and the sharded routes have modules of their own.
"""

from __future__ import annotations

from dataclasses import replace

from ...generator.lowering import Lowering
from ...specs import CandidateSpec, WorkloadSpec
from ...table import CtaRecord
from .channel_layout import FIRST_NUMBER, HyperConnectionChannel, shards
from .lowerings.boundary import MatrixShapes, replicated
from .lowerings.hopper import lower_prefetched
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
    """Lower a candidate of a hyper-connection workload; the spec has checked that it fits (`schedules.limits`)."""
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
    if isinstance(candidate, Sharded):
        return lower_sharded(workload, candidate)
    assert isinstance(candidate, Replicated)
    return (
        lower_rows(workload, candidate) if workload.tokens.max > 1 else _lower_replicated(workload, candidate)
    )


def _lower_replicated(workload: HyperConnectionWorkload, candidate: Replicated) -> Lowering:
    shapes = MatrixShapes.of(workload, candidate)
    constants = {
        **shapes.constants(workload, candidate),
        "up_words_per_row": workload.low_rank * 2 // shapes.tilings["up_mix"].load_bytes,
    }
    return replicated(workload, shapes, "replicated", constants)
