"""FP8 per-token quantisation in torch, with the kernel's bits: serves without a kernel."""

from __future__ import annotations

from typing import Literal

import torch

NonfinitePolicy = Literal["nan", "clean"]

LARGEST = 448.0
LEAST_SCALE = 1 / (448 * 512)
NAN_CODE = 0x7F


def quantise_rows(x: torch.Tensor, nonfinite: NonfinitePolicy = "nan") -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (float8_e4m3fn [M, K]) and scales (float32 [M, 1]) of x [M, K].

    Args:
        x: of any floating-point dtype.
        nonfinite: a row with Inf or NaN becomes NaN, its scale too; or such elements count as zero.
    """
    values = x.float()
    finite = values.isfinite()
    values = values.where(finite, 0.0)
    largest = values.abs().amax(dim=1, keepdim=True)
    scales = (largest / LARGEST).clamp_min(torch.tensor(LEAST_SCALE, dtype=torch.float32, device=x.device))
    codes = (values / scales).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    if nonfinite == "nan":
        lost = ~finite.all(dim=1, keepdim=True)
        scales = scales.masked_fill(lost, float("nan"))
        codes = codes.view(torch.uint8).masked_fill(lost, NAN_CODE).view(torch.float8_e4m3fn)
    return codes, scales


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [N, K] as it travels: codes as bytes, and scales [N, 1]."""
    codes, scales = quantise_rows(weight)
    return codes.view(torch.uint8), scales
