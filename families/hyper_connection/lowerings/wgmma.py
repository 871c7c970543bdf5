"""Lowering of route `wgmma`: tiles of 64 tokens by rows of weights, and launches that overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....generator.lowering import Lowering
from ....specs.tree import TreeShape
from ....table import Launch
from ..schedules.wgmma import COORDINATES, GROUP_TOKENS, Wgmma
from ..spec import HyperConnectionWorkload
from .boundary import branch_kernels, norm_constants, state_buffers, workload_constants
from .tensor_core import FINISH_THREADS, DownTiling

MOST_THREADS = 1024
FEW_TOKENS = 128


def lower_wgmma(workload: HyperConnectionWorkload, candidate: Wgmma) -> Lowering:
    """Lower a candidate of route `wgmma`; the spec has checked that the tiles fit."""
    norm = TreeShape.of(candidate.norm_tree(workload), workload.hidden)
    most, columns = workload.tokens.max, workload.branches * COORDINATES
    stored = {"down": workload.padded_down_rows, "down_final": workload.low_rank}
    tilings = {
        kernel: DownTiling(rows, -(-rows // candidate.row_tile), rows % candidate.row_tile != 0)
        for kernel, rows in stored.items()
    }
    # Of few tokens every SM should have some rows; of many, a CTA a token is launched sooner than three.
    finishers = FINISH_THREADS if most <= FEW_TOKENS else min(-(-workload.down_rows // 32) * 32, MOST_THREADS)
    constants: dict[str, Any] = {
        **workload_constants(workload),
        "early_norm_weight": norm.steps == 1,  # more would take too many registers
        "l1_bypass": False,
        "several_tokens": True,
        "stacked": "token",
        "programmatic": True,
        "load_widths": {norm.load_bytes, 16, 2},
        "norm": norm_constants(norm),
        "product_columns": sorted({candidate.row_tile, columns}),
        "segments": candidate.segments,
        "blocks": candidate.blocks(workload),
        "groups": candidate.groups,
        "cta_rows": candidate.row_tile,
        "stages": candidate.stages,
        "weight_bytes": candidate.weight_bytes(),
        "finish_threads": finishers,
        "up_groups": candidate.up_groups,
        "coordinates": COORDINATES,
        "tilings": tilings,
    }

    def down(kernel: str, *args: str) -> Launch:
        return Launch(
            (tilings[kernel].ctas, candidate.segments, -(-most // (candidate.groups * GROUP_TOKENS))),
            (candidate.groups * 128, 1, 1),
            (*args, "tokens"),
            shared_bytes=candidate.down_bytes(),
        )

    def finish(rows: int, *args: str) -> Launch:
        return Launch((-(-rows // finishers), most, 1), (finishers, 1, 1), (*args, "tokens"))

    kernels = {
        **branch_kernels(workload, norm, "tokens"),
        "down": down("down", "y", "down_weight", "partials"),
        "down_final": down("down_final", "y", "down_weight", "partials_final"),
        "finish": finish(workload.down_rows, "partials", "lora", "injection_out"),
        "finish_final": finish(workload.low_rank, "partials_final", "lora"),
        "up_mix": Launch(
            (candidate.up_ctas, 1, 1),
            (candidate.up_groups * 128, 1, 1),
            ("lora", "up_weight", "y", "block_input", "tokens"),
            shared_bytes=candidate.up_bytes(workload),
        ),
    }
    return Lowering(
        template="hyper_connection/wgmma.cu.j2",
        constants=constants,
        kernels={name: replace(launch, programmatic=True) for name, launch in kernels.items()},
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
