"""How near to FP64 a candidate under a tolerance stays: its bounds, and what was measured, next to torch eager."""

from __future__ import annotations

from ..specs import Model, ToleranceSpec
from ..specs.base import Bound, Slug


class Distance(Model):
    """Relative L2 from FP64 of one stored tensor, the largest of all cases."""

    candidate: Bound
    eager: Bound | None = None
    """torch eager's own, on the same inputs; None for a tensor that it doesn't give."""

    def __str__(self) -> str:
        other = "" if self.eager is None else f" (torch eager {self.eager:.2e})"
        return f"{self.candidate:.2e}{other}"


class Closeness(Model):
    """The bounds, and the distances by tensor; both sides have the contract's rounding points."""

    tolerance: ToleranceSpec
    distances: dict[Slug, Distance]

    @property
    def bounds(self) -> str:
        """`relative_l2 = 0.004`."""
        return ", ".join(
            f"{name} = {bound:g}" for name, bound in self.tolerance.model_dump(exclude_none=True).items()
        )

    @property
    def measured(self) -> str:
        """`out 2.10e-04 (torch eager 2.30e-04), ...`."""
        return ", ".join(f"{name} {distance}" for name, distance in self.distances.items())
