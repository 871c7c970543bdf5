"""The check before layers are routed: all ranks decide alike, and a routed call gives what the layer itself gives.

Collective: every rank of the communicator installs on the same model at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...all_reduce.distance import UNIT_ROUNDOFF
from .routed import RoutedForward

FP8_DISTANCE = 2.0**-4
"""Quantising x costs up to a unit of E4M3, which a layer that dequantises its weight doesn't pay."""
GEMM_DISTANCE = 1e-3
"""Of two GEMMs of FP32, one of which may use TF32."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a rank says of a layer; all ranks must say the same."""

    reason: str | None
    """Why it is left alone."""
    facts: str = ""
    """What is routed, and by what."""


def gather(mine: object, comm: Any) -> list[Any]:
    """What all ranks say, in rank order."""
    found: list[Any] = [None] * comm.world_size
    torch.distributed.all_gather_object(found, mine, group=comm.group)
    return found


def objections(everyone: Sequence[Mapping[str, Statement]]) -> dict[str, str]:
    """Reasons by the names of the layers that aren't routed; the same on every rank that sees these statements."""
    found: dict[str, str] = {}
    names = dict.fromkeys(name for statements in everyone for name in statements)
    for name in names:
        said = [statements.get(name, Statement("it has no such layer")) for statements in everyone]
        reasons = [(rank, one.reason) for rank, one in enumerate(said) if one.reason is not None]
        if reasons:
            rank, reason = reasons[0]
            alike = len(reasons) == len(said) and all(one == reason for _, one in reasons)
            found[name] = reason if alike else f"rank {rank}: {reason}"
        elif len({one.facts for one in said}) > 1:
            each = "; ".join(f"rank {rank}: {one.facts}" for rank, one in enumerate(said))
            found[name] = f"the ranks would route it differently: {each}"
    return found


def allowed(dtype: torch.dtype, ranks: int, scaled: bool) -> float:
    """Largest relative L2 distance of a routed result from the layer's own.

    Both round their products and up to `ranks - 1` times while they add. What this check is for lies far above:
    results that aren't reduced at 0.7 and more, transposed weights at 1.4.
    """
    rounding = 2 * ranks * UNIT_ROUNDOFF[str(dtype).removeprefix("torch.")]
    return max(rounding, GEMM_DISTANCE) + (FP8_DISTANCE if scaled else 0.0)


def objection(routed: RoutedForward, rows: int, dtype: torch.dtype, comm: Any, seed: int) -> str | None:
    """Compare one routed call with the layer's own; every rank has an x of its own."""
    weight = routed.module.weight
    generator = torch.Generator(weight.device).manual_seed(1000 * seed + comm.rank)
    x = torch.randn(rows, weight.shape[1], generator=generator, device=weight.device).to(dtype)
    scaled = weight.dtype == torch.float8_e4m3fn
    with torch.no_grad():
        own = routed.own(x.clone())
        if not routed.serves(x):
            return "its check wasn't routed: autocast is on, or it isn't what it was when it was recognised"
        ours = routed(x)
        return _difference(own, ours, allowed(dtype, comm.world_size, scaled))


def _difference(own: Any, ours: Any, most: float) -> str | None:
    if isinstance(own, tuple) != isinstance(ours, tuple):
        return f"it gives a {type(own).__name__}, and the operator a {type(ours).__name__}"
    if isinstance(own, tuple):
        if len(own) != len(ours) or own[1] is not None:
            return f"it gives {len(own)} results, and the operator (result, None)"
        own, ours = own[0], ours[0]
    if (own.shape, own.dtype, own.device) != (ours.shape, ours.dtype, ours.device):
        return (
            f"it gives {own.dtype} of shape {tuple(own.shape)}, and the operator {ours.dtype} of shape "
            f"{tuple(ours.shape)}"
        )
    norm = float(own.double().norm())
    if not 0 < norm < float("inf"):
        return "its own result of a trial call is zero or not finite, so that nothing can be compared"
    distance = float((own.double() - ours.double()).norm()) / norm
    if not distance <= most:
        return f"a routed call is {distance:.2g} away from its own result, relative L2; allowed is {most:.2g}"
    return None
