"""The GEMMs: rows of x times the transposed weight, into memory that is given. The pipeline treats all alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Gemm(Protocol):
    """A call's activations, ready to be multiplied."""

    def __call__(self, begin: int, end: int, out: torch.Tensor) -> None:
        """Multiply rows `begin` to `end` into `out` [end - begin, N], on the current stream."""


class TorchGemm:
    """cuBLAS, or torch's own GEMM on a CPU; the weight has the dtype of x."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Take x [M, K] and the weight [N, K] in any layout, and what is added to every row."""
        self._x, self._weight, self._bias = x, weight.t(), bias

    def __call__(self, begin: int, end: int, out: torch.Tensor) -> None:
        """As the protocol says."""
        if self._bias is None:
            torch.mm(self._x[begin:end], self._weight, out=out)
        else:
            torch.addmm(self._bias, self._x[begin:end], self._weight, out=out)


class ScaledGemm:
    """FP8 by `torch._scaled_mm`: a scale for each row of x, and for each row of the weight."""

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """Take E4M3 codes [M, K] and [N, K] with their float32 scales [M, 1] and [N] or one for all."""
        self._codes, self._scales, self._bias = codes, scales, bias
        self._weight, self._weight_scale = weight.t(), _per_row(weight_scale, weight).t()

    def __call__(self, begin: int, end: int, out: torch.Tensor) -> None:
        """As the protocol says; the scales are applied in FP32, before the one rounding."""
        torch._scaled_mm(
            self._codes[begin:end],
            self._weight,
            scale_a=self._scales[begin:end],
            scale_b=self._weight_scale,
            bias=self._bias,
            out_dtype=out.dtype,
            out=out,
        )


class DequantisedGemm:
    """The same in float32, for devices whose torch has no FP8 GEMM by rows: the same results, slower."""

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """As `ScaledGemm`."""
        self._x = codes.float() * scales
        self._weight = (weight.float() * _per_row(weight_scale, weight)).t()
        self._bias = None if bias is None else bias.float()

    def __call__(self, begin: int, end: int, out: torch.Tensor) -> None:
        """As the protocol says."""
        product = self._x[begin:end] @ self._weight
        out.copy_(product if self._bias is None else product + self._bias)


def _per_row(weight_scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
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
