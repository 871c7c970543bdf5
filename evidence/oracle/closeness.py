"""How near a stored tensor is to FP64 (docs/numerics.md), and which of its values lie outside the bounds.

FP64 has the contract's rounding points, so that a rounding that both sides make isn't counted as a distance: what is
left is what the order and the width of sums change, and what that changes behind the next rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bounds:
    """The bounds of a tolerance. At least one is stated; all that are stated must hold."""

    atol: float | None = None
    """Largest absolute error of an element."""
    rtol: float | None = None
    """Largest relative error of an element; with `atol` their sum."""
    relative_l2: float | None = None
    """Largest L2 norm of the error over that of the truth, of the finite elements of a tensor."""

    @classmethod
    def of(cls, tolerance: Mapping[str, float]) -> Bounds:
        """Read bounds as a dispatch table states them.

        Raises:
            ValueError: none is stated.
        """
        if not tolerance:
            raise ValueError(
                "the candidate is under a tolerance that states no bound; run `kernwright generate`"
            )
        return cls(**tolerance)


def distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2 over the elements that are finite on both sides; Inf where only the truth is zero throughout."""
    both = found.isfinite() & truth.isfinite()
    return relative_l2(found.double()[both], truth[both])


def relative_l2(found: torch.Tensor, truth: torch.Tensor) -> float:
    """|found - truth| / |truth| in FP64; 0 where both are zero, Inf where only the truth is."""
    truth = truth.double()
    distance = float((found.double() - truth).norm())
    size = float(truth.norm())
    if size == 0.0:
        return 0.0 if distance == 0.0 else float("inf")
    return distance / size


def outside(found: torch.Tensor, truth: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Where a tensor breaks its bounds, all of its finite elements if its L2 norm does.

    Inf equals Inf of the same sign, a NaN any NaN; any of them beside something else is outside.
    """
    wide = found.double()
    finite = wide.isfinite() & truth.isfinite()
    wrong = ~finite & ~(wide.isnan() & truth.isnan()) & (wide != truth)
    if bounds.atol is not None or bounds.rtol is not None:
        allowed = (bounds.atol or 0.0) + (bounds.rtol or 0.0) * truth.abs()
        wrong |= finite & ((wide - truth).abs() > allowed)
    if bounds.relative_l2 is not None and not distance(found, truth) <= bounds.relative_l2:
        wrong |= finite
    return wrong
