"""Lowering of route `tensor_core`: tiles of 16 rows by 8 tokens, sums of down in parts that the spec fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....generator.lowering import Lowering
from ....specs.tree import TreeShape
from ....table import Launch
from ..schedules.tensor_core import PADDING, TILE_ROWS, TensorCore
from ..spec import HyperConnectionWorkload
from .boundary import branch_kernels, norm_constants, state_buffers, workload_constants

FINISH_THREADS = 128
UNROLL = 2
"""Tiles of tokens whose loads overlap."""


@dataclass(frozen=True)
class DownTiling:
    """How the rows of down lie on CTAs."""

    rows: int
    """As stored: a whole number of tiles."""
    ctas: int
    ragged: bool
    """The last CTA has fewer tiles than the others."""


def lower_tensor_core(workload: HyperConnectionWorkload, candidate: TensorCore) -> Lowering:
    """Lower a candidate of route `tensor_core`; the spec has checked that the tiles fit."""
    norm = TreeShape.of(workload.trees()["norm"], workload.hidden)
    most = workload.tokens.max
    at_once, cta_rows = candidate.tokens_at_once(workload), candidate.row_tiles * TILE_ROWS
    blocks = -(-most // at_once)
    stored = {"down": workload.padded_down_rows, "down_final": workload.low_rank}
    tilings = {
        kernel: DownTiling(rows, -(-rows // cta_rows), rows % cta_rows != 0)
        for kernel, rows in stored.items()
    }
    constants: dict[str, Any] = {
        **workload_constants(workload),
        "early_norm_weight": True,
        "l1_bypass": False,
        "several_tokens": True,
        "stacked": "token",
        "load_widths": {norm.load_bytes},
        "norm": norm_constants(norm),
        "segments": candidate.segments,
        "warps": candidate.warps,
        "steps": candidate.steps(workload),
        "row_tiles": candidate.row_tiles,
        "cta_rows": cta_rows,
        "padded_rows": cta_rows + PADDING,
        "tile_rows": TILE_ROWS,
        "padding": PADDING,
        "tokens_per_cta": at_once,
        "finish_threads": FINISH_THREADS,
        "unroll": UNROLL,
        "tilings": tilings,
    }

    def down(kernel: str, *args: str) -> Launch:
        return Launch(
            (tilings[kernel].ctas, candidate.segments, blocks),
            (candidate.warps * 32, 1, 1),
            (*args, "tokens"),
            shared_bytes=candidate.sum_bytes(workload),
        )

    def finish(rows: int, *args: str) -> Launch:
        return Launch((-(-rows // FINISH_THREADS), most, 1), (FINISH_THREADS, 1, 1), (*args, "tokens"))

    return Lowering(
        template="hyper_connection/tensor_core.cu.j2",
        constants=constants,
        kernels={
            **branch_kernels(workload, norm, "tokens"),
            "down": down("down", "y", "down_weight", "partials"),
            "down_final": down("down_final", "y", "down_weight", "partials_final"),
            "finish": finish(workload.down_rows, "partials", "lora", "injection_out"),
            "finish_final": finish(workload.low_rank, "partials_final", "lora"),
            "up_mix": Launch(
                (workload.hidden // TILE_ROWS, blocks, 1),
                (workload.branches * 32, 1, 1),
                ("lora", "up_weight", "y", "block_input", "tokens"),
            ),
        },
        steps={
            "boundary": ("combine_norm", "down", "finish", "up_mix"),
            "first": ("norm", "down", "finish", "up_mix"),
            "combine": ("combine",),
            "final": ("combine_norm", "down_final", "finish_final", "up_mix"),
        },
        scratch={
            **state_buffers(workload),
            "partials": ((most, candidate.segments, stored["down"]), "float32"),
            "partials_final": ((most, candidate.segments, stored["down_final"]), "float32"),
        },
        scratch_by="tokens",
        arguments={"tokens": "uint32"},
    )
