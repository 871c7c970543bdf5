"""Lowering of the replicated route for several tokens: decode batches and speculative verification.

How many tokens a call has is an argument of the kernels, `tokens`, not a number in their text: a thread keeps its
weights in registers and goes through the tokens, so no register or loop depends on how many there are. One text, and
one record, then serves all batch sizes of the interval. Beyond 16 tokens, blocks of 16 have CTAs of their own.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ....generator.literals import float_literal
from ....generator.lowering import Lowering, NotGenerated, ScheduleError, TreeShape
from ....specs import RowTiling
from ....table import Launch
from ..spec import HyperConnectionWorkload, Replicated
from .gates import check_gates, load_widths, wide_loads
from .limits import check_kept, check_norm

BLOCK_TOKENS = 16
"""Tokens of a CTA; further ones have CTAs of their own, which read the weights once more."""
MOST_TOKENS = 1024
"""Tokens of a call: exact sums of so many take far longer than a GEMM library's, under a tolerance."""
HELD_LIMIT = 96
"""32-bit words of weights that a thread holds while it goes through the tokens."""
UNROLL = 2
"""Tokens whose loads and butterflies overlap."""


def lower_rows(workload: HyperConnectionWorkload, candidate: Replicated) -> Lowering:
    """Lower a candidate of the replicated route for an interval of tokens.

    Raises:
        NotGenerated: more tokens, or a tree, than there are templates for.
        ScheduleError: options that need more registers or shared memory than there are.
    """
    most = workload.tokens.max
    if most > MOST_TOKENS:
        raise NotGenerated(
            f"tokens is {workload.tokens.min} to {most}; this version has templates for {MOST_TOKENS} at most, and "
            f"serves more by the reference"
        )
    together = min(most, BLOCK_TOKENS)
    blocks = -(-most // together)
    tilings = {kernel: candidate.tiling(workload, kernel) for kernel in ("down", "down_final", "up_mix")}
    trees = workload.trees()
    norm = TreeShape.of(trees["norm"], workload.hidden)
    down_tree = TreeShape.of(trees["down"], workload.branches * workload.hidden)
    up_tree = TreeShape.of(trees["up"], workload.low_rank)
    check_norm(candidate, norm)
    _check_down(candidate, tilings["down"], down_tree, together)
    check_gates(candidate, tilings["up_mix"], up_tree, workload.branches)
    if up_tree.lanes < together:
        raise NotGenerated(
            f"candidate {candidate.name} serves up to {together} tokens at once, each mixed by a lane of its own, "
            f"but the up tree has {up_tree.lanes} lanes: state a tree.up with more, or fewer tokens"
        )
    norm_threads = max(norm.lanes, 32)
    constants: dict[str, Any] = {
        "dtype": workload.dtype,
        "branches": workload.branches,
        "hidden": workload.hidden,
        "low_rank": workload.low_rank,
        "eps": float_literal(workload.eps),
        "branches_power_of_two": workload.branches & (workload.branches - 1) == 0,
        "inverse_branches": float_literal(1.0 / workload.branches),
        "per_branch": workload.norm_weight == "per_branch",
        "early_norm_weight": candidate.early_norm_weight,
        "l1_bypass": candidate.l1_bypass,
        "most_tokens": together,
        **({"token_blocks": True} if blocks > 1 else {}),
        "several_tokens": True,
        "stacked": "token",
        "unroll": UNROLL,
        "load_widths": load_widths(norm, down_tree, up_tree, *tilings.values()),
        "norm": {**asdict(norm), "threads": norm_threads},
        "down_tree": down_tree,
        "up_tree": up_tree,
        "tilings": tilings,
        "tiling": tilings["up_mix"],
        "up": "up_mix",
        "gates_per_row": workload.branches,
        "row_is": "a hidden coordinate",
        **wide_loads(candidate, tilings["up_mix"], up_tree),
    }

    def branches(*args: str) -> Launch:
        return Launch((workload.branches, most, 1), (norm_threads, 1, 1), (*args, "tokens"))

    def rows(kernel: str, *args: str) -> Launch:
        tiling = tilings[kernel]
        return Launch((tiling.ctas, blocks, 1), (tiling.threads, 1, 1), (*args, "tokens"))

    state = workload.branches * workload.hidden
    return Lowering(
        template="hyper_connection/replicated_rows.cu.j2",
        constants=constants,
        kernels={
            "combine_norm": branches("residual", "block", "injection", "norm_weight", "x", "y"),
            "norm": branches("residual", "norm_weight", "y"),
            "combine": branches("residual", "block", "injection", "x"),
            "down": rows("down", "y", "down_weight", "lora", "injection_out"),
            "down_final": rows("down_final", "y", "down_weight", "lora"),
            "up_mix": rows("up_mix", "lora", "up_weight", "y", "block_input"),
        },
        steps={
            "boundary": ("combine_norm", "down", "up_mix"),
            "first": ("norm", "down", "up_mix"),
            "combine": ("combine",),
            "final": ("combine_norm", "down_final", "up_mix"),
        },
        scratch={
            "x": ((most, state), workload.dtype),
            "y": ((most, state), workload.dtype),
            "lora": ((most, workload.low_rank), workload.dtype),
        },
        scratch_by="tokens",
        arguments={"tokens": "uint32"},
    )


def _check_down(candidate: Replicated, tiling: RowTiling, tree: TreeShape, tokens: int) -> None:
    held = tiling.rows_per_team * tree.segments * tree.steps * tiling.lane_passes * max(tree.chunk // 2, 1)
    if held > HELD_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name} lets a thread of down hold {held} words of weights while it goes through "
            f"the tokens; {HELD_LIMIT} are allowed: lower down.rows_per_cta or raise down.threads"
        )
    check_kept(candidate, tiling, tree, tree.segments, tokens)
