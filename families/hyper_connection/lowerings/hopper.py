"""The routes for Hopper: from a layout to kernels, launch geometry, and what they keep between calls."""

from __future__ import annotations

from typing import Any

from ....generator.lowering import Lowering
from ....table import Launch
from ..schedules.hopper import OneKernel, Prefetched, TwoKernels
from ..schedules.hopper_layout import EXTRA_WARPS, Staging, staging
from ..spec import HyperConnectionWorkload
from .boundary import workload_constants

COMBINE_THREADS = 128
RECORD_WORDS = 8
"""Of the error record: failures; CTA, row, branch, expected and seen generation of the first."""

PLANE_ROWS = 8
"""Of the exchange: the rows of a load of 16 bytes that fill a cache line, so that each load has lines of its own."""

_COMBINED = ("residual", "block", "injection")
_WEIGHTS = ("norm_weight", "down_weight", "up_weight")
_EXCHANGE = ("exchange", "generations", "record", "timeout_ns")


def lower_prefetched(workload: HyperConnectionWorkload, candidate: Prefetched) -> Lowering:
    """Lower a candidate of route `one_kernel` or `two_kernels`; the spec has checked that its layout exists."""
    if isinstance(candidate, OneKernel):
        return _one_kernel(workload, candidate)
    assert isinstance(candidate, TwoKernels)
    return _two_kernels(workload, candidate)


def _one_kernel(workload: HyperConnectionWorkload, candidate: OneKernel) -> Lowering:
    down, up = candidate.layouts(workload)
    memory = staging(workload, down, up)
    threads = (down.warps + EXTRA_WARPS) * 32

    def launch(*args: str) -> Launch:
        return Launch(
            grid=(down.ctas, 1, 1),
            block=(threads, 1, 1),
            args=(*args, *_EXCHANGE),
            shared_bytes=memory.dynamic_bytes,
            programmatic=True,
            resident=True,
        )

    plane = -(-(workload.down_rows + 1) // PLANE_ROWS) * PLANE_ROWS
    return Lowering(
        template="hyper_connection/one_kernel.cu.j2",
        constants={
            **_constants(workload, candidate),
            "down": down,
            "up": up,
            "offsets": memory,
            "load_widths": {2, 16, up.chunk * 2},
            "ctas_per_sm": memory.ctas_per_sm,
            "exchange_bytes": candidate.exchange_bytes,
            "polls": candidate.polls,
            "look_after": candidate.look_after_cycles,
        },
        kernels={
            "boundary": launch(*_COMBINED, *_WEIGHTS, "x", "block_input", "injection_out"),
            "first": launch("residual", *_WEIGHTS, "block_input", "injection_out"),
            "final": launch(*_COMBINED, *_WEIGHTS, "block_input"),
            "combine": _combine(workload),
        },
        steps={kind: (kind,) for kind in candidate.KERNELS},
        state={
            "exchange": ((plane * workload.branches,), "int64"),
            "generations": ((down.ctas,), "int32"),
            "record": ((RECORD_WORDS,), "int32"),
        },
        arguments={"timeout_ns": "uint64"},
    )


def _two_kernels(workload: HyperConnectionWorkload, candidate: TwoKernels) -> Lowering:
    down, up = candidate.layouts(workload)
    memory = {"down": staging(workload, down, None), "up": staging(workload, None, up)}

    def launch(phase: str, *args: str) -> Launch:
        ctas, warps = (down.ctas, down.warps) if phase == "down" else (up.ctas, up.warps)
        return Launch(
            grid=(ctas, 1, 1),
            block=((warps + EXTRA_WARPS) * 32, 1, 1),
            args=args,
            shared_bytes=memory[phase].dynamic_bytes,
            programmatic=True,
        )

    weights, mixed = ("norm_weight", "down_weight"), ("y", "up_weight", "block_input")
    # Each kernel has a layout of its own, and they share the names of its parts.
    offsets = Staging(memory["down"].down, memory["down"].norm, memory["up"].up, 0, 0)
    return Lowering(
        template="hyper_connection/two_kernels.cu.j2",
        constants={
            **_constants(workload, candidate),
            "down": down,
            "up": up,
            "offsets": offsets,
            "load_widths": {2, 16, up.chunk * 2},
        },
        kernels={
            "combine_norm_down": launch("down", *_COMBINED, *weights, "x", "y", "partials"),
            "norm_down": launch("down", "residual", *weights, "y", "partials"),
            "combine_norm_down_final": launch("down", *_COMBINED, *weights, "y", "partials_final"),
            "up_mix": launch("up", "partials", *mixed, "injection_out"),
            "up_mix_final": launch("up", "partials_final", *mixed),
            "combine": _combine(workload),
        },
        steps={
            "boundary": ("combine_norm_down", "up_mix"),
            "first": ("norm_down", "up_mix"),
            "combine": ("combine",),
            "final": ("combine_norm_down_final", "up_mix_final"),
        },
        scratch={
            "y": ((1, workload.branches * workload.hidden), workload.dtype),
            "partials": ((workload.branches, workload.down_rows), "float32"),
            "partials_final": ((workload.branches, workload.low_rank), "float32"),
        },
    )


def _constants(workload: HyperConnectionWorkload, candidate: Prefetched) -> dict[str, Any]:
    branches, pace = workload.branches, candidate.pace_cycles
    hurries = pace > 0 and candidate.hurried != "nothing"
    return {
        **workload_constants(workload),
        "seeded": candidate.seeded,
        "evict_first": candidate.evict_first,
        "state_first": candidate.order == "state_first",
        "pace_cycles": pace,
        "hurried": candidate.hurried,
        "hurries": hurries,
        "pacing": (", last" if pace else "") + (", &shared.released" if hurries else ""),
        "combine": {
            "threads": COMBINE_THREADS,
            "ragged": branches * workload.hidden // 8 % COMBINE_THREADS != 0,
        },
    }


def _combine(workload: HyperConnectionWorkload) -> Launch:
    chunks = workload.branches * workload.hidden // 8
    return Launch(
        grid=(-(-chunks // COMBINE_THREADS), 1, 1),
        block=(COMBINE_THREADS, 1, 1),
        args=(*_COMBINED, "x"),
        programmatic=True,
    )
