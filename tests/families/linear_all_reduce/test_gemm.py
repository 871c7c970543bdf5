"""The GEMMs of a call, and the setting that asks one to leave SMs free."""

from __future__ import annotations

import pytest
import torch
from kernwright.families.linear_all_reduce.overlap.gemm import (
    dequantised_gemm,
    leaving_free,
    scaled_gemm,
    torch_gemm,
)
from kernwright.families.linear_all_reduce.overlap.quantise import quantise_rows


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [None, torch.arange(6.0)])
def test_rows_of_a_product(bias):
    x, weight = drawn(9, 4), drawn(6, 4, seed=1)
    out = torch.full((3, 6), 7.0)
    torch_gemm(x, weight, bias)(2, 5, out)
    assert torch.allclose(out, torch.nn.functional.linear(x, weight, bias)[2:5])


@pytest.mark.parametrize("scales", [1, 32])
def test_fp8_scales_are_applied_by_row(scales):
    codes, row_scales = quantise_rows(drawn(5, 48))
    weight = quantise_rows(drawn(32, 48, seed=1))[0]
    weight_scale = drawn(scales, seed=2).abs()
    out = torch.empty(3, 32, dtype=torch.bfloat16)
    dequantised_gemm(codes, row_scales, weight, weight_scale, None)(1, 4, out)
    truth = (codes.double() * row_scales) @ (weight.double() * weight_scale.reshape(-1, 1)).t()
    assert torch.allclose(out.double(), truth[1:4], rtol=2**-8)


def test_what_the_library_is_given(monkeypatch):
    """Row slices of codes and scales, the weight's transpose, scales [1, N], the caller's memory."""
    seen = {}
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **kwargs: seen.update(kwargs, args=args))
    codes, scales = quantise_rows(drawn(5, 48))
    weight = quantise_rows(drawn(32, 48, seed=1))[0]
    out = torch.empty(3, 32, dtype=torch.bfloat16)
    scaled_gemm(codes, scales, weight, torch.tensor([2.0]), None)(1, 4, out)
    assert torch.equal(seen["args"][0].view(torch.uint8), codes[1:4].view(torch.uint8))
    assert seen["args"][1].shape == (48, 32)
    assert torch.equal(seen["scale_a"], scales[1:4])
    assert seen["scale_b"].shape == (1, 32)
    assert seen["scale_b"].is_contiguous()
    assert seen["scale_b"].unique().tolist() == [2.0]
    assert seen["out"] is out
    assert seen["out_dtype"] is torch.bfloat16


def test_sms_are_left_free_for_the_block_alone(monkeypatch):
    settings = {"sms": None, "library": "cublas"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_get_sm_carveout_experimental", lambda: settings["sms"])
    monkeypatch.setattr(torch._C, "_set_sm_carveout_experimental", lambda sms: settings.update(sms=sms))

    def library(name=None):
        settings.update(library=name or settings["library"])
        return settings["library"]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", library)
    with leaving_free(0):
        assert settings == {"sms": None, "library": "cublas"}

    def fails() -> None:
        with leaving_free(8):
            assert settings == {"sms": 8, "library": "cublaslt"}
            raise RuntimeError("a GEMM that fails")

    with pytest.raises(RuntimeError, match="a GEMM that fails"):
        fails()
    assert settings == {"sms": None, "library": "cublas"}
