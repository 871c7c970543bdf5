"""The GEMMs: rows of x times the transposed weight, into memory that is given. The pipeline treats all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Gemm = Callable[[int, int, Tensor], None]
"""Multiplies rows `begin` to `end` of a call's x into `out` [end - begin, N], on the current stream."""


def torch_gemm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Gemm:
    """cuBLAS, or torch's own GEMM on a CPU: x [M, K] and the weight [N, K] of one dtype, in any layout."""
    transposed = weight.t()

    def multiply(begin: int, end: int, out: Tensor) -> None:
        if bias is None:
            torch.mm(x[begin:end], transposed, out=out)
        else:
            torch.addmm(bias, x[begin:end], transposed, out=out)

    return multiply


def scaled_gemm(
    codes: Tensor, scales: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Gemm:
    """FP8 by `torch._scaled_mm`; the scales are applied in FP32, before the one rounding.

    Args:
        codes, weight: E4M3, [M, K] and [N, K].
        scales, weight_scale: float32, [M, 1], and N or one for all.
        bias: [N], of the result's dtype.
    """
    transposed, scale_b = weight.t(), _per_row(weight_scale, weight).t()

    def multiply(begin: int, end: int, out: Tensor) -> None:
        torch._scaled_mm(
            codes[begin:end],
            transposed,
            scale_a=scales[begin:end],
            scale_b=scale_b,
            bias=bias,
            out_dtype=out.dtype,
            out=out,
        )

    return multiply


def dequantised_gemm(
    codes: Tensor, scales: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Gemm:
    """`scaled_gemm` in float32, for devices whose torch has no FP8 GEMM by rows: the same results, slower."""
    x = codes.float() * scales
    transposed = (weight.float() * _per_row(weight_scale, weight)).t()

    def multiply(begin: int, end: int, out: Tensor) -> None:
        product = x[begin:end] @ transposed
        out.copy_(product if bias is None else product + bias.float())

    return multiply


def _per_row(weight_scale: Tensor, weight: Tensor) -> Tensor:
    """Scales [N, 1], whatever shape they were kept in."""
    flat = weight_scale.reshape(-1, 1)
    return flat if flat.shape[0] == weight.shape[0] else flat.expand(weight.shape[0], 1).contiguous()


@contextmanager
def leaving_free(sms: int) -> Iterator[None]:
    """Ask cuBLASLt for GEMMs that leave so many SMs to others; the setting is torch's, for the whole process.

    Only cuBLASLt has such a target, so it also serves plain products inside. A CPU has no SMs to leave free.
    """
    if not sms or not torch.cuda.is_available():
        yield
        return
    library = torch.backends.cuda.preferred_blas_library()
    before = torch._C._get_sm_carveout_experimental()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch._C._set_sm_carveout_experimental(sms)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(before)
        torch.backends.cuda.preferred_blas_library(library)
