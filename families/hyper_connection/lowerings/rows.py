"""Lowering of the replicated route for several tokens: decode batches and speculative verification.

How many tokens a call has is an argument of the kernels, `tokens`, not a number in their text: a thread keeps its
weights in registers and goes through the tokens, so no register or loop depends on how many there are. One text, and
one record, then serves all batch sizes of the interval. Beyond 16 tokens, blocks of 16 have CTAs of their own.
"""

from __future__ import annotations

from ....generator.lowering import Lowering
from ..schedules.limits import BLOCK_TOKENS
from ..spec import HyperConnectionWorkload, Replicated
from .boundary import MatrixShapes, replicated
from .gates import wide_loads

UNROLL = 2
"""Tokens whose loads and butterflies overlap."""


def lower_rows(workload: HyperConnectionWorkload, candidate: Replicated) -> Lowering:
    """Lower a candidate of the replicated route for an interval of tokens."""
    most = workload.tokens.max
    together = min(most, BLOCK_TOKENS)
    blocks = -(-most // together)
    shapes = MatrixShapes.of(workload, candidate)
    up_mix = shapes.tilings["up_mix"]
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
        **wide_loads(up_mix, shapes.up),
    }
    return replicated(workload, shapes, "replicated_rows", constants, blocks)
