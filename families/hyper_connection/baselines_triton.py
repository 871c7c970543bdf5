"""Three Triton kernels for one boundary of one token; imported only where Triton is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .oracle_shape import OracleShape

if TYPE_CHECKING:
    from ...evidence.family_evidence import Call


@triton.jit
def _combine_norm(
    residual,
    block,
    injection,
    weight,
    x_out,
    y_out,
    eps,
    HC: tl.constexpr,
    H: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    branch = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    inside = k < H
    scale = 2.0 * tl.sigmoid(tl.load(injection + branch).to(tl.float32) / HC)
    state = tl.load(residual + branch * H + k, inside, 0.0).to(tl.float32)
    state += tl.load(block + k, inside, 0.0).to(tl.float32) * scale
    x = state.to(x_out.dtype.element_ty)
    tl.store(x_out + branch * H + k, x, inside)
    wide = x.to(tl.float32)
    y = wide * tl.rsqrt(tl.sum(wide * wide, 0) / H + eps)
    w = tl.load(weight + branch * WEIGHT_STRIDE + k, inside, 0.0).to(tl.float32)
    tl.store(y_out + branch * H + k, (y + y * w).to(y_out.dtype.element_ty), inside)


@triton.jit
def _down(
    y,
    weight,
    lora,
    injection_out,
    HC: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.static_range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        w = tl.load(weight + rows[:, None] * K + k[None, :]).to(tl.float32)
        total += w * tl.load(y + k).to(tl.float32)[None, :]
    d = tl.sum(total, 1).to(lora.dtype.element_ty)
    t = d.to(tl.float32) / HC
    tl.store(lora + rows, (t * tl.sigmoid(t)).to(lora.dtype.element_ty), rows < R)
    tl.store(injection_out + rows - R, d, (rows >= R) & (rows < R + HC))


@triton.jit
def _up_mix(
    lora,
    weight,
    y,
    out,
    HC: tl.constexpr,
    H: tl.constexpr,
    R: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    h = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, WIDTH)
    inside = k < R
    low = tl.load(lora + k, inside, 0.0).to(tl.float32)
    mixed = tl.zeros((COLUMNS,), tl.float32)
    for branch in tl.static_range(HC):
        rows = branch * H + h
        w = tl.load(weight + rows[:, None] * R + k[None, :], inside[None, :], 0.0).to(tl.float32)
        gate = tl.sum(w * low[None, :], 1).to(out.dtype.element_ty).to(tl.float32)
        mixed += tl.sigmoid(gate) * tl.load(y + rows).to(tl.float32)
    tl.store(out + h, (mixed / HC).to(out.dtype.element_ty))


def boundary(shape: OracleShape, rows: int, block: int, columns: int, warps: int) -> Call:
    """A boundary with these tile sizes: powers of two that divide the rows, the state and the hidden size."""
    branches, hidden, rank, width = shape.branches, shape.hidden, shape.low_rank, shape.width
    stride = hidden if shape.norm_weight == "per_branch" else 0
    norm_width, rank_width = triton.next_power_of_2(hidden), triton.next_power_of_2(rank)
    ctas = shape.stored_down_rows("boundary") // rows

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        residual, state_block, injection, norm_weight, down_weight, up_weight = inputs
        x, y = torch.empty_like(residual), torch.empty_like(residual)
        lora = torch.empty(1, rank, dtype=residual.dtype, device=residual.device)
        injection_out, block_input = torch.empty_like(injection), torch.empty_like(state_block)
        _combine_norm[(branches,)](
            residual,
            state_block,
            injection,
            norm_weight,
            x,
            y,
            shape.eps,
            branches,
            hidden,
            stride,
            norm_width,
            num_warps=8,
        )
        _down[(ctas,)](
            y, down_weight, lora, injection_out, branches, width, rank, rows, block, num_warps=warps
        )
        _up_mix[(hidden // columns,)](
            lora, up_weight, y, block_input, branches, hidden, rank, columns, rank_width, num_warps=warps
        )
        return x, block_input, injection_out

    return run
