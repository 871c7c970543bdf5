"""Baselines of a hyper-connection boundary: torch eager, torch.compile, three Triton kernels.

All compute the same function with the same rounding points, in each library's own order of sums. A
boundary takes residual, block, injection, norm, down and up weight and gives x, block_input and injection_out. The
Triton kernels are for one token.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ...evidence.graphs import capture, replay_ms
from .oracle_shape import OracleShape

if TYPE_CHECKING:
    from ...evidence.family_evidence import Call, Chain

Tensors = Sequence[torch.Tensor]


def of(shape: OracleShape) -> Mapping[str, Callable[[Chain], Call]]:
    """The baselines that are installed here."""
    boundary = eager(shape)
    found: dict[str, Callable[[Chain], Call]] = {
        "torch eager": lambda _chain: boundary,
        "torch.compile": lambda _chain: compiled(boundary),
    }
    if shape.tokens == 1 and importlib.util.find_spec("triton") is not None:
        found["triton"] = lambda chain: fastest_triton(shape, chain)
    return found


def eager(shape: OracleShape) -> Call:
    """The boundary as one writes it in torch: FP32 where it matters, storage dtype at the rounding points."""
    branches, hidden, rank = shape.branches, shape.hidden, shape.low_rank

    def boundary(inputs: Tensors) -> Tensors:
        residual, block, injection, norm_weight, down_weight, up_weight = inputs
        dtype = residual.dtype
        scale = 2 * torch.sigmoid(injection.float() / branches)
        state = residual.view(-1, branches, hidden).float() + block.float()[:, None, :] * scale[:, :, None]
        x = state.to(dtype)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + shape.eps)
        y = (wide * (1 + norm_weight.float().view(-1, hidden))).to(dtype)
        down = functional.linear(y.flatten(1), down_weight)
        lora = functional.silu(down[:, :rank].float() / branches).to(dtype)
        gates = functional.linear(lora, up_weight).view(-1, branches, hidden)
        block_input = (torch.sigmoid(gates.float()) * y.float()).mean(1).to(dtype)
        return x.flatten(1), block_input, down[:, rank : rank + branches]

    return boundary


def compiled(boundary: Call) -> Call:
    """The same through torch.compile."""
    # All closures made here share one code object, of which torch's compiler keeps eight versions in all; graphs that
    # were captured from earlier ones stay as they are.
    torch.compiler.reset()
    inner = torch.compile(lambda *inputs: boundary(inputs), fullgraph=True, dynamic=False)
    return lambda inputs: inner(*inputs)


def fastest_triton(shape: OracleShape, chain: Chain) -> Call:
    """Three Triton kernels at the tile sizes that are fastest here."""
    from .baselines_triton import boundary

    rows_in_all = shape.stored_down_rows("boundary")
    tiles = [
        (rows, block, columns, warps)
        for rows, block, columns, warps in itertools.product((1, 2, 4), (1024, 2048), (4, 8, 16), (4, 8))
        if rows_in_all % rows == 0 and shape.width % block == 0 and shape.hidden % columns == 0
    ]
    timed = []
    for index, tile in enumerate(tiles):
        call = boundary(shape, *tile)
        graph = capture(lambda call=call: chain.run(call))  # type: ignore[misc]
        timed.append((replay_ms(graph, 5), index))
    return boundary(shape, *tiles[min(timed)[1]])
