"""Warpgroups on the emulator: near FP64, a token's bits whatever is around it, and what a changed text does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernwright.emulator import check, fuzz
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.oracle.closeness import Bounds

from .test_tensor_core import KINDS, bits, broken

FP16, BF16 = "fp16-hc4-h256-n1to150-r64-tp1", "bf16-hc4-h256-n1to150-r64-tp1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("label", "name", "tokens"),
    [(FP16, "wgmma", 1), (FP16, "wgmma", 130), (BF16, "wgmma_wide", 70), (BF16, "wgmma_wide", 150)],
)
def test_near_fp64(small: Any, label: str, name: str, tokens: int, kind: str) -> None:
    """Within a tenth of what the spec allows; nothing is read that wasn't written, nothing left unwritten."""
    called = small.call(label, name, Case(kind, "normal", 3, tokens))
    checked = check(called.launches)
    assert checked.problems == ()
    assert broken(called, checked.arrays, Bounds(relative_l2=8e-4)) == {}
