"""The contract's distance from the FP64 truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernwright.evidence.oracle.closeness import relative_l2
from kernwright.families.hyper_connection import truth
from kernwright.families.hyper_connection.inputs import tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape

TREES = {"norm": (1, 32, 8), "down": (4, 32, 8), "up": (1, 32, 2)}


def as_torch(shape: OracleShape, bits: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, shape.dtype)
    return {name: torch.from_numpy(array.view(np.int16)).view(dtype) for name, array in bits.items()}


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("norm_weight", ["per_branch", "shared"])
def test_the_contract_is_as_far_from_the_truth_as_its_rounding_points(kind, dtype, unit, norm_weight):
    shape = OracleShape(dtype, 4, 256, 32, tokens=2, trees=TREES, norm_weight=norm_weight)
    given = tensors(shape, "normal", 9) | weights(shape, 9, kind)
    found = as_torch(shape, boundary(shape, given, kind))
    rounded = truth.boundary(shape, as_torch(shape, given), kind)
    exact = truth.boundary(shape, as_torch(shape, given), kind, rounded=False)
    assert set(found) == set(rounded) == set(exact)
    for name, tensor in found.items():
        assert tensor.shape == rounded[name].shape == exact[name].shape
        # Nearly all elements round alike, the rest differ by a unit; the rounding points make the distance.
        assert relative_l2(tensor, rounded[name]) < unit / 4, name
        assert unit / 10 < relative_l2(tensor, exact[name]) < 3 * unit, name


def test_unrounded_truth_of_one_element():
    """HC1, H1, R1: the formulas by hand."""
    shape = OracleShape("float16", 1, 1, 1, tokens=1, trees=dict.fromkeys(TREES, (1, 1, 1)), eps=1.0)
    one = torch.ones(1, 1, dtype=torch.float16)
    given = {"residual": one, "block": one, "injection": 0 * one, "norm_weight": one[0]}
    given |= {"down_weight": torch.ones(2, 1, dtype=torch.float16), "up_weight": one}
    stored = truth.boundary(shape, given, rounded=False)
    y = 2 * 2 / 5**0.5
    lora = y / (1 + np.exp(-y))
    assert stored["x"].item() == 2
    assert stored["y"].item() == pytest.approx(y, rel=1e-15)
    assert stored["injection_out"].item() == pytest.approx(y, rel=1e-15)
    assert stored["block_input"].item() == pytest.approx(y / (1 + np.exp(-lora)), rel=1e-15)


def test_relative_l2():
    truth_ = torch.tensor([3.0, 4.0])
    assert relative_l2(torch.tensor([3.0, 4.5]), truth_) == pytest.approx(0.1)
    assert relative_l2(0 * truth_, 0 * truth_) == 0.0
    assert relative_l2(truth_, 0 * truth_) == float("inf")
