"""Lowering of the replicated route for several tokens: decode batches and speculative verification.

How many tokens a call has is an argument of the kernels, `tokens`, not a number in their text: a thread keeps its
weights in registers and goes through the tokens, so no register or loop depends on how many there are. One text, and
one record, then serves all batch sizes of the interval. Beyond 16 tokens, blocks of 16 have CTAs of their own.
"""

from __future__ import annotations

from ....generator.lowering import Lowering, NotGenerated, ScheduleError, TreeShape
from ....specs import RowTiling
from ..spec import HyperConnectionWorkload, Replicated
from .boundary import MatrixShapes, replicated
from .gates import check_gates, wide_loads
from .limits import check_kept

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
    shapes = MatrixShapes.of(workload, candidate)
    up_mix = shapes.tilings["up_mix"]
    _check_down(candidate, shapes.tilings["down"], shapes.down, together)
    check_gates(candidate, up_mix, shapes.up, workload.branches)
    if shapes.up.lanes < together:
        raise NotGenerated(
            f"candidate {candidate.name} serves up to {together} tokens at once, each mixed by a lane of its own, "
            f"but the up tree has {shapes.up.lanes} lanes: state a tree.up with more, or fewer tokens"
        )
    constants = {
        **shapes.constants(workload, candidate),
        "most_tokens": together,
        **({"token_blocks": True} if blocks > 1 else {}),
        "several_tokens": True,
        "stacked": "token",
        "unroll": UNROLL,
        "tiling": up_mix,
        "up": "up_mix",
        "gates_per_row": workload.branches,
        "row_is": "a hidden coordinate",
        **wide_loads(candidate, up_mix, shapes.up),
    }
    return replicated(workload, shapes, "replicated_rows", constants, blocks)


def _check_down(candidate: Replicated, tiling: RowTiling, tree: TreeShape, tokens: int) -> None:
    held = tiling.rows_per_team * tree.segments * tree.steps * tiling.lane_passes * max(tree.chunk // 2, 1)
    if held > HELD_LIMIT:
        raise ScheduleError(
            f"candidate {candidate.name} lets a thread of down hold {held} words of weights while it goes through "
            f"the tokens; {HELD_LIMIT} are allowed: lower down.rows_per_cta or raise down.threads"
        )
    check_kept(candidate, tiling, tree, tree.segments, tokens)
