"""One hyper-connection boundary in torch (contract of the family, section 2).

`exact` follows the workload's reduction trees and gives the kernels' bits. `approximate` keeps the rounding
points and leaves the sums to torch and its GEMM library: contract "tolerance", for many tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from .exact import Tree, dot, fma, quotient, sigmoid, silu
from .hyper_connection_shape import Shape

Tensors = dict[str, torch.Tensor]

BLOCK_ELEMENTS = 1 << 22
"""Accumulators of a reduction that are worked on at once: bounds its temporaries to a few 100 MB."""


def exact(shape: Shape, kind: str, given: Tensors, trees: dict[str, Tree]) -> Tensors:
    """The outputs of one kind, tree-exact, by name; `given` holds its inputs, `trees` norm, down and up.

    Every tensor of the storage dtype is rounded where the contract says: x, y, d, lora, injection_out, g,
    block_input.
    """
    outputs: Tensors = {}
    state = given["residual"]
    if kind != "first":
        state = outputs["x"] = _combine(shape, given)
    if kind == "combine":
        return outputs
    y = _norm(shape, state, given["norm_weight"], trees["norm"])
    d = _rows(y, given["down_weight"][: shape.down_rows(kind)], trees["down"]).to(state.dtype)
    t = quotient(d[:, : shape.low_rank].float(), shape.branches)
    lora = silu(t).to(state.dtype)
    if kind != "final":
        outputs["injection_out"] = d[:, shape.low_rank :].contiguous()
    gate = _rows(lora, given["up_weight"], trees["up"]).to(state.dtype)
    outputs["block_input"] = _mix(shape, gate, y)
    return outputs


def approximate(shape: Shape, kind: str, given: Tensors) -> Tensors:
    """As `exact`, with torch's own sums, exponentials and GEMMs."""
    outputs: Tensors = {}
    state, dtype, branched = given["residual"], given["residual"].dtype, (-1, shape.branches, shape.hidden)
    if kind != "first":
        scale = 2 * torch.sigmoid(given["injection"].float() / shape.branches)
        combined = state.float().view(branched) + given["block"].float()[:, None] * scale[..., None]
        state = outputs["x"] = combined.to(dtype).flatten(1)
    if kind == "combine":
        return outputs
    x = state.float().view(branched)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + shape.eps)
    y = (normed + normed * _branched_weight(shape, given["norm_weight"])).to(dtype)
    d = y.flatten(1) @ given["down_weight"][: shape.down_rows(kind)].T
    lora = functional.silu(d[:, : shape.low_rank].float() / shape.branches).to(dtype)
    if kind != "final":
        outputs["injection_out"] = d[:, shape.low_rank :].contiguous()
    gate = torch.sigmoid((lora @ given["up_weight"].T).float()).view(branched)
    outputs["block_input"] = ((gate * y.float()).sum(1) / shape.branches).to(dtype)
    return outputs


def _combine(shape: Shape, given: Tensors) -> torch.Tensor:
    """x `[N, HC * H]`: one FMA for each element, then one rounding."""
    residual = given["residual"].float().unflatten(1, (shape.branches, shape.hidden))
    scale = 2 * sigmoid(quotient(given["injection"].float(), shape.branches))
    x = fma(given["block"].float()[:, None], scale[..., None], residual)
    return x.to(given["residual"].dtype).flatten(1)


def _norm(shape: Shape, state: torch.Tensor, weight: torch.Tensor, tree: Tree) -> torch.Tensor:
    """y `[N, HC * H]`: reads the rounded state; Gemma's 1 + w is an FMA and never formed."""
    x = state.float().unflatten(1, (shape.branches, shape.hidden))
    mean = quotient(dot(x, x, tree), shape.hidden)
    eps = torch.full_like(mean, shape.eps)
    scale = torch.ones_like(mean) / torch.sqrt(mean + eps)
    y = x * scale[..., None]
    return fma(y, _branched_weight(shape, weight), y).to(state.dtype).flatten(1)


def _branched_weight(shape: Shape, weight: torch.Tensor) -> torch.Tensor:
    return weight.float().reshape(-1, shape.hidden)  # [HC, H], or [1, H] where all branches share it


def _rows(a: torch.Tensor, weight: torch.Tensor, tree: Tree) -> torch.Tensor:
    """`[N, K]` times `[rows, K]` transposed, by the tree; in blocks of tokens, which changes no bit."""
    accumulators = weight.shape[0] * tree[0] * tree[1]
    at_once = max(1, BLOCK_ELEMENTS // accumulators)
    matrix = weight.float()[None]
    return torch.cat([dot(block.float()[:, None], matrix, tree) for block in a.split(at_once)])


def _mix(shape: Shape, gate: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """block_input `[N, H]`: mixes y, not x, branch by branch."""
    weights = sigmoid(gate.float()).unflatten(1, (shape.branches, shape.hidden))
    values = y.float().unflatten(1, (shape.branches, shape.hidden))
    acc = torch.zeros_like(values[:, 0])
    for branch in range(shape.branches):
        acc = fma(weights[:, branch], values[:, branch], acc)
    return quotient(acc, shape.branches).to(y.dtype)
