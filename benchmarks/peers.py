"""What people run today for a hyper-connection boundary: torch eager, torch.compile, three Triton kernels.

All compute the same function with the same rounding points, in the order of sums that each library likes.
A boundary is called with `(residual, block, injection, norm_weight, down_weight, up_weight)` of one token and
gives `(x, block_input, injection_out)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch.nn import functional

BRANCHES, HIDDEN, RANK, EPS = 4, 2560, 320, 1e-6
STATE = BRANCHES * HIDDEN

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Boundary = Callable[..., Result]


def eager(
    residual: torch.Tensor,
    block: torch.Tensor,
    injection: torch.Tensor,
    norm_weight: torch.Tensor,
    down_weight: torch.Tensor,
    up_weight: torch.Tensor,
) -> Result:
    """The boundary as one writes it in torch: FP32 where it matters, storage dtype at the rounding points."""
    dtype = residual.dtype
    scale = 2 * torch.sigmoid(injection.float() / BRANCHES)
    state = residual.view(-1, BRANCHES, HIDDEN).float() + block.float()[:, None, :] * scale[:, :, None]
    x = state.to(dtype)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    y = (wide * (1 + norm_weight.float().view(BRANCHES, HIDDEN))).to(dtype)
    down = functional.linear(y.flatten(1), down_weight)
    lora = functional.silu(down[:, :RANK].float() / BRANCHES).to(dtype)
    injection_out = down[:, RANK : RANK + BRANCHES]
    gates = functional.linear(lora, up_weight).view(-1, BRANCHES, HIDDEN)
    block_input = (torch.sigmoid(gates.float()) * y.float()).mean(1).to(dtype)
    return x.flatten(1), block_input, injection_out


compiled: Boundary = torch.compile(eager, fullgraph=True, dynamic=False)


@triton.jit
def _combine_norm(residual, block, injection, weight, x_out, y_out, H: tl.constexpr, WIDTH: tl.constexpr):
    branch = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    inside = k < H
    scale = 2.0 * tl.sigmoid(tl.load(injection + branch).to(tl.float32) * 0.25)
    state = tl.load(residual + branch * H + k, inside, 0.0).to(tl.float32)
    state += tl.load(block + k, inside, 0.0).to(tl.float32) * scale
    x = state.to(x_out.dtype.element_ty)
    tl.store(x_out + branch * H + k, x, inside)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / H + 1e-6)
    w = tl.load(weight + branch * H + k, inside, 0.0).to(tl.float32)
    y = wide * inverse
    tl.store(y_out + branch * H + k, (y + y * w).to(y_out.dtype.element_ty), inside)


@triton.jit
def _down(
    y, weight, lora, injection_out, K: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.static_range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        w = tl.load(weight + rows[:, None] * K + k[None, :]).to(tl.float32)
        total += w * tl.load(y + k).to(tl.float32)[None, :]
    d = tl.sum(total, 1).to(lora.dtype.element_ty)
    t = d.to(tl.float32) * 0.25
    tl.store(lora + rows, (t * tl.sigmoid(t)).to(lora.dtype.element_ty), rows < R)
    tl.store(injection_out + rows - R, d, (rows >= R) & (rows < R + 4))


@triton.jit
def _up_mix(
    lora, weight, y, out, H: tl.constexpr, R: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr
):
    h = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, WIDTH)
    inside = k < R
    low = tl.load(lora + k, inside, 0.0).to(tl.float32)
    mixed = tl.zeros((COLUMNS,), tl.float32)
    for branch in tl.static_range(4):
        rows = branch * H + h
        w = tl.load(weight + rows[:, None] * R + k[None, :], inside[None, :], 0.0).to(tl.float32)
        gate = tl.sum(w * low[None, :], 1).to(out.dtype.element_ty).to(tl.float32)
        mixed += tl.sigmoid(gate) * tl.load(y + rows).to(tl.float32)
    tl.store(out + h, (mixed * 0.25).to(out.dtype.element_ty))


def triton_boundary(rows: int, block: int, columns: int, warps: int) -> Boundary:
    """Three Triton kernels with the given tile sizes; powers of two that divide 336 and 2560."""

    def boundary(residual, state_block, injection, norm_weight, down_weight, up_weight) -> Result:
        x, y = torch.empty_like(residual), torch.empty_like(residual)
        lora = torch.empty(1, RANK, dtype=residual.dtype, device=residual.device)
        injection_out = torch.empty_like(injection)
        block_input = torch.empty_like(state_block)
        _combine_norm[(BRANCHES,)](
            residual,
            state_block,
            injection,
            norm_weight,
            x,
            y,
            HIDDEN,
            triton.next_power_of_2(HIDDEN),
            num_warps=8,
        )
        _down[(336 // rows,)](y, down_weight, lora, injection_out, STATE, RANK, rows, block, num_warps=warps)
        _up_mix[(HIDDEN // columns,)](
            lora, up_weight, y, block_input, HIDDEN, RANK, columns, 512, num_warps=warps
        )
        return x, block_input, injection_out

    return boundary


TRITON_TILES = [
    (rows, block, columns, warps)
    for rows in (1, 2, 4)
    for block in (1024, 2048)
    for columns in (4, 8, 16)
    for warps in (4, 8)
]
"""Tile sizes that the benchmark tries before it takes the fastest: a peer at its best."""
