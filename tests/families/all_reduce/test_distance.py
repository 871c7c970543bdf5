"""What is stated of a library's sums: a bound that no order exceeds, and the distance that documents derive."""

from __future__ import annotations

import math

import pytest
import torch
from kernwright.families.all_reduce.distance import UNIT_ROUNDOFF, library_distance, stated

ORDERS = ("chain", "tree")


def added(parts: list[torch.Tensor], order: str) -> torch.Tensor:
    """Sums in the storage dtype, each rounded."""
    parts = list(parts)
    while len(parts) > 1:
        if order == "chain":
            parts = [parts[0] + parts[1], *parts[2:]]
        else:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_no_order_of_adding_exceeds_the_bound(dtype: str, ranks: int) -> None:
    generator = torch.Generator().manual_seed(ranks)
    parts = [torch.randn(100000, generator=generator).to(getattr(torch, dtype)) for _ in range(ranks)]
    truth, size = sum(part.double() for part in parts), sum(part.double().abs() for part in parts)
    for order in ORDERS:
        worst = float(((added(parts, order).double() - truth).abs() / size).max())
        assert library_distance(dtype, ranks) / 4 < worst <= library_distance(dtype, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("products", [False, True])
def test_the_documents_relative_l2(ranks: int, products: bool) -> None:
    """`0.45 u sqrt((W (W + 1) / 2 - 1) / W)`, and one more rounding of each product in a linear."""
    generator = torch.Generator().manual_seed(ranks)
    exact = [torch.randn(200000, generator=generator, dtype=torch.float64) for _ in range(ranks)]
    parts = [part.bfloat16() for part in exact]
    truth = sum(exact) if products else sum(part.double() for part in parts)
    found = float((added(parts, "chain").double() - truth).norm() / truth.norm())
    share = products + (ranks * (ranks + 1) / 2 - 1) / ranks
    assert found == pytest.approx(0.45 * UNIT_ROUNDOFF["bfloat16"] * math.sqrt(share), rel=0.1)


def test_what_is_stated() -> None:
    assert stated("bfloat16", 4) == (
        "at most 1.2e-02 of the sum of absolute values away from the exact sum (bfloat16, 4 ranks)"
    )
    assert library_distance("int64", 8) == 0
    assert library_distance("float64", 2) == 2.0**-53
