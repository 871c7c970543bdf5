"""The mathematical function in FP64 with torch, with or without rounding (docs/numerics.md#oracles).

It shows how far the contract is from the truth.

Works on CPU and CUDA tensors. torch is imported only when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .oracle_shape import OracleShape

if TYPE_CHECKING:
    import torch

Round = Callable[["torch.Tensor"], "torch.Tensor"]


def boundary(
    shape: OracleShape, tensors: Mapping[str, torch.Tensor], kind: str = "boundary", *, rounded: bool = True
) -> dict[str, torch.Tensor]:
    """The tensors of `oracle.boundary` in FP64, by FP64 arithmetic.

    Args:
        shape: sizes, dtype and eps; the trees don't matter.
        tensors: as there, in the storage dtype (or any other that float64 holds exactly).
        kind: as there.
        rounded: round x, y, d, lora, injection_out, g and block_input to the storage dtype, as the contract
            does (torch rounds float64 by way of float32: a result next to a tie may fall to the other side).
            Without it nothing is rounded between the inputs and the outputs.

    Returns:
        float64 tensors of the same names and shapes.
    """
    import torch

    storage = getattr(torch, shape.dtype)

    def keep(value: torch.Tensor) -> torch.Tensor:
        return value.to(storage).double() if rounded else value

    wide = {name: tensor.double() for name, tensor in tensors.items()}
    stored: dict[str, torch.Tensor] = {}
    state = wide["residual"]
    if kind != "first":
        state = stored["x"] = _combine(shape, wide, keep)
    if kind == "combine":
        return stored
    y = stored["y"] = _norm(shape, state, wide["norm_weight"], keep)
    d = stored["d"] = keep(y @ wide["down_weight"][: shape.down_rows(kind)].T)
    t = d[:, : shape.low_rank] / shape.branches
    stored["lora"] = keep(t * torch.sigmoid(t))
    if kind != "final":
        stored["injection_out"] = d[:, shape.low_rank :].clone()
    stored["g"] = keep(stored["lora"] @ wide["up_weight"].T)
    gated = torch.sigmoid(stored["g"]) * y
    stored["block_input"] = keep(gated.view(-1, shape.branches, shape.hidden).mean(dim=1))
    return stored


def _combine(shape: OracleShape, wide: Mapping[str, torch.Tensor], keep: Round) -> torch.Tensor:
    import torch

    gate = 2 * torch.sigmoid(wide["injection"] / shape.branches)
    residual = wide["residual"].view(-1, shape.branches, shape.hidden)
    return keep(residual + wide["block"][:, None, :] * gate[:, :, None]).flatten(1)


def _norm(shape: OracleShape, state: torch.Tensor, weight: torch.Tensor, keep: Round) -> torch.Tensor:
    x = state.view(-1, shape.branches, shape.hidden)
    normal = x / (x.square().mean(dim=-1, keepdim=True) + shape.eps).sqrt()
    return keep(normal * (1 + weight.view(-1, shape.hidden))).flatten(1)
