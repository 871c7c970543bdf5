"""One hyper-connection boundary in torch (docs/hyper_connection.md).

`exact` follows the workload's reduction trees and gives the kernels' bits. `approximate` keeps the rounding
points and leaves the sums to torch and its GEMM library: contract "tolerance", for many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as functional

from ...runtime.exact import dot, fma, quotient, sigmoid, silu, sqrt
from ...table import Tree
from .shape import EXACT_TOKENS, KINDS, BoundaryShape

BoundaryTensors = dict[str, torch.Tensor]

BLOCK_ELEMENTS = 1 << 22
"""Accumulators of a reduction that are worked on at once: bounds its temporaries to a few 100 MB."""


def reference(
    shape: BoundaryShape, kind: str, trees: Mapping[str, Tree]
) -> Callable[..., Sequence[torch.Tensor]]:
    """A kind of the op as a function of its inputs, in order, that gives its outputs; exact up to 16 tokens."""
    declared = KINDS[kind]

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        given = dict(zip(declared.inputs, inputs, strict=True))
        few = shape.tokens <= EXACT_TOKENS
        named = exact(shape, kind, given, trees) if few else approximate(shape, kind, given)
        return [named[name] for name in declared.outputs]

    return run


def exact(
    shape: BoundaryShape, kind: str, given: BoundaryTensors, trees: Mapping[str, Tree]
) -> BoundaryTensors:
    """The outputs of one kind, tree-exact, by name; `given` holds its inputs, `trees` norm, down and up.

    Every tensor of the storage dtype is rounded where the contract says: x, y, d, lora, injection_out, g,
    block_input.
    """
    outputs: BoundaryTensors = {}
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
        outputs["injection_out"] = d[:, shape.low_rank :].clone(memory_format=torch.contiguous_format)
    gate = _rows(lora, given["up_weight"], trees["up"]).to(state.dtype)
    outputs["block_input"] = _mix(shape, gate, y)
    return outputs


def approximate(shape: BoundaryShape, kind: str, given: BoundaryTensors) -> BoundaryTensors:
    """As `exact`, with torch's own sums, exponentials and GEMMs."""
    outputs: BoundaryTensors = {}
    state = given["residual"]
    dtype = state.dtype
    if kind != "first":
        scale = 2 * torch.sigmoid(given["injection"].float() / shape.branches)
        combined = _by_branch(shape, state) + given["block"].float()[:, None] * scale[..., None]
        state = outputs["x"] = combined.to(dtype).flatten(1)
    if kind == "combine":
        return outputs
    x = _by_branch(shape, state)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + shape.eps)
    y = (normed + normed * _branched_weight(shape, given["norm_weight"])).to(dtype)
    d = y.flatten(1) @ given["down_weight"][: shape.down_rows(kind)].T
    lora = functional.silu(d[:, : shape.low_rank].float() / shape.branches).to(dtype)
    if kind != "final":
        outputs["injection_out"] = d[:, shape.low_rank :].clone(memory_format=torch.contiguous_format)
    gate = torch.sigmoid(_by_branch(shape, lora @ given["up_weight"].T))
    outputs["block_input"] = ((gate * y.float()).sum(1) / shape.branches).to(dtype)
    return outputs


def _combine(shape: BoundaryShape, given: BoundaryTensors) -> torch.Tensor:
    """x `[N, HC * H]`: one FMA for each element, then one rounding."""
    residual = _by_branch(shape, given["residual"])
    scale = 2 * sigmoid(quotient(given["injection"].float(), shape.branches))
    x = fma(given["block"].float()[:, None], scale[..., None], residual)
    return x.to(given["residual"].dtype).flatten(1)


def _norm(shape: BoundaryShape, state: torch.Tensor, weight: torch.Tensor, tree: Tree) -> torch.Tensor:
    """y `[N, HC * H]`: reads the rounded state; Gemma's 1 + w is an FMA and never formed."""
    x = _by_branch(shape, state)
    mean = quotient(dot(x, x, tree), shape.hidden)
    eps = torch.full_like(mean, shape.eps)
    scale = torch.ones_like(mean) / sqrt(mean + eps)
    y = x * scale[..., None]
    return fma(y, _branched_weight(shape, weight), y).to(state.dtype).flatten(1)


def _by_branch(shape: BoundaryShape, state: torch.Tensor) -> torch.Tensor:
    """`[N, HC * H]` in storage dtype to `[N, HC, H]` in float32."""
    return state.float().reshape(-1 if state.numel() else 0, shape.branches, shape.hidden)


def _branched_weight(shape: BoundaryShape, weight: torch.Tensor) -> torch.Tensor:
    return weight.float().reshape(-1, shape.hidden)  # [HC, H], or [1, H] where all branches share it


def _rows(a: torch.Tensor, weight: torch.Tensor, tree: Tree) -> torch.Tensor:
    """`[N, K]` times `[rows, K]` transposed, by the tree; in blocks of tokens, which changes no bit."""
    accumulators = weight.shape[0] * tree[0] * tree[1]
    at_once = max(1, BLOCK_ELEMENTS // accumulators)
    matrix = weight.float()[None]
    rows = a.float()[:, None]
    blocks = [dot(rows[first : first + at_once], matrix, tree) for first in range(0, len(a), at_once)]
    return torch.cat(blocks) if blocks else a.new_empty((0, weight.shape[0]))


def _mix(shape: BoundaryShape, gate: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """block_input `[N, H]`: mixes y, not x, branch by branch."""
    weights, values = sigmoid(_by_branch(shape, gate)), _by_branch(shape, y)
    acc = torch.zeros_like(values[:, 0])
    for branch in range(shape.branches):
        acc = fma(weights[:, branch], values[:, branch], acc)
    return quotient(acc, shape.branches).to(y.dtype)
