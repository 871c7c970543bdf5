"""How far a library's sum over ranks may lie from the exact sum: what a reference under a tolerance states."""

from __future__ import annotations

from math import expm1, log1p

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Largest relative error of one rounding; integers have none."""


def library_distance(dtype: str, ranks: int) -> float:
    """Largest distance of a library's sum, as a part of the sum of the contributions' absolute values.

    A library adds in the storage dtype, in any order: `ranks - 1` additions, each rounded. One that adds in a wider
    type is nearer. Sums that overflow aren't covered.
    """
    return expm1((ranks - 1) * log1p(UNIT_ROUNDOFF.get(dtype, 0.0)))


def stated(dtype: str, ranks: int) -> str:
    """The distance in words."""
    part = f"{library_distance(dtype, ranks):.1e}"
    return f"at most {part} of the sum of absolute values away from the exact sum ({dtype}, {ranks} ranks)"
