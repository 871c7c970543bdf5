"""The GEMMs: rows of x times the transposed weight, into memory that is given. The pipeline treats all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

FP8_MULTIPLE = 16
"""Of N, K and addresses, as `torch._scaled_mm` takes them on CUDA."""

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

    On CUDA it takes N and K in multiples of 16, rows that lie one after the other from an aligned address, and
    results in BF16. What lies otherwise is copied to such a form at each call: K and N are padded with zeros, which
    no sum sees, and the columns behind N are cut. Results in another dtype are for `dequantised_gemm`.

    Args:
        codes, weight: E4M3, [M, K] and [N, K].
        scales, weight_scale: float32, [M, 1], and N or one for all.
        bias: [N], of the result's dtype.
    """
    n, k = weight.shape
    scale = _per_row(weight_scale, weight)
    columns, depth = _multiple(n), _multiple(k)
    codes, weight = _padded(codes, codes.shape[0], depth), _padded(weight, columns, depth)
    if columns != n:
        scale = torch.nn.functional.pad(scale, (0, 0, 0, columns - n), value=1.0)
        bias = None if bias is None else torch.nn.functional.pad(bias, (0, columns - n))
    transposed, scale_b = weight.t(), scale.t()

    def multiply(begin: int, end: int, out: Tensor) -> None:
        whole = out if columns == n else out.new_empty((end - begin, columns))
        torch._scaled_mm(
            codes[begin:end],
            transposed,
            scale_a=scales[begin:end],
            scale_b=scale_b,
            bias=bias,
            out_dtype=out.dtype,
            out=whole,
        )
        if whole is not out:
            out.copy_(whole[:, :n])

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


def _multiple(size: int) -> int:
    """The next multiple of what `torch._scaled_mm` takes."""
    return -(-size // FP8_MULTIPLE) * FP8_MULTIPLE


def _padded(codes: Tensor, rows: int, columns: int) -> Tensor:
    """E4M3 [rows, columns], dense and aligned, zeros behind what is given; the tensor itself if it is so already."""
    if codes.shape == (rows, columns) and codes.is_contiguous() and codes.data_ptr() % FP8_MULTIPLE == 0:
        return codes
    padded = codes.new_zeros((rows, columns), dtype=torch.uint8)
    padded[: codes.shape[0], : codes.shape[1]] = codes.view(torch.uint8)
    return padded.view(codes.dtype)


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
