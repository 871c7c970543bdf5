"""The GEMMs of a call, and the setting that asks one to leave SMs free."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kernwright.families.linear_all_reduce.overlap.gemm import (
    dequantised_gemm,
    leaving_free,
    scaled_gemm,
    torch_gemm,
)
from kernwright.families.linear_all_reduce.overlap.group import LayerGroup
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


def as_on_cuda(monkeypatch):
    """`torch._scaled_mm` with the conditions that it has on CUDA; calls that meet them are computed."""
    computed = torch._scaled_mm

    def checked(a, b, *, out_dtype, out, bias=None, scale_a, scale_b):
        (m, k), n = a.shape, b.shape[1]
        assert k % 16 == 0
        assert n % 16 == 0
        assert a.stride() == (k, 1)
        assert b.stride() == (1, k)
        assert a.data_ptr() % 16 == b.data_ptr() % 16 == 0
        assert out_dtype == out.dtype == torch.bfloat16
        assert out.shape == (m, n)
        assert out.is_contiguous()
        assert (scale_a.shape, scale_b.shape) == ((m, 1), (1, n))
        assert scale_a.is_contiguous()
        assert scale_b.is_contiguous()
        assert bias is None or bias.shape == (n,)
        return computed(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out_dtype, out=out)

    monkeypatch.setattr(torch, "_scaled_mm", checked)


@pytest.mark.parametrize(("n", "k"), [(32, 48), (24, 48), (32, 40), (5, 7), (1, 1)])
@pytest.mark.parametrize("layout", ["dense", "transposed", "misaligned", "wide"])
@pytest.mark.parametrize("biased", [False, True])
def test_fp8_of_any_shape_and_layout_is_what_cuda_takes(monkeypatch, n, k, layout, biased):
    """K and N that are no multiples of 16 are padded: the numbers of the dequantised product, as on a CPU."""
    as_on_cuda(monkeypatch)
    codes, row_scales = quantise_rows(drawn(9, k))
    weight, scale = quantise_rows(drawn(n, k, seed=1))
    given = {
        "dense": lambda w: w,
        "transposed": lambda w: w.t().contiguous().t(),
        "misaligned": lambda w: torch.cat([w.flatten()[:1], w.flatten()])[1:].view(n, k),
        "wide": lambda w: torch.cat([w, w], dim=1)[:, :k],
    }[layout](weight.view(torch.uint8)).view(torch.float8_e4m3fn)
    bias = drawn(n, seed=2).bfloat16() if biased else None
    out, plain = (torch.full((4, n), 7.0, dtype=torch.bfloat16) for _ in range(2))
    scaled_gemm(codes, row_scales, given, scale, bias)(3, 7, out)
    dequantised_gemm(codes, row_scales, given, scale, bias)(3, 7, plain)
    assert torch.allclose(out.float(), plain.float(), rtol=2**-7, atol=2**-9)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), [(32, 48), (24, 48), (32, 40), (5, 7)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
def test_fp8_on_cuda_is_what_it_is_on_a_cpu(n, k, dtype, biased):
    """The same numbers within one rounding, for every shape and dtype of x."""
    x = drawn(9, k).to(dtype)
    weight, scale = quantise_rows(drawn(n, k, seed=1))
    bias = drawn(n, seed=2).to(dtype) if biased else None
    found = []
    for device in ("cpu", "cuda"):
        group = LayerGroup(SimpleNamespace(), None, None, quantisation="fp8_per_token")
        moved = [None if tensor is None else tensor.to(device) for tensor in (x, weight, scale, bias)]
        out = torch.full((4, n), 7.0, dtype=dtype, device=device)
        group.gemm(*moved, None)(3, 7, out)
        found.append(out.float().cpu())
    assert torch.allclose(
        *found, rtol=2 * torch.finfo(dtype).eps, atol=1e-2 if dtype is not torch.float32 else 1e-4
    )


def test_fp8_to_another_dtype_than_bf16_is_dequantised():
    """CUDA's product by rows gives BF16 alone; rounding to it in between would be another contract."""
    chosen = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = SimpleNamespace(is_cuda=True, dtype=dtype)
        group = SimpleNamespace(
            quantisation="fp8_per_token", _quantised=lambda *_: (drawn(2, 16), drawn(2, 1))
        )
        multiply = LayerGroup.gemm(group, x, drawn(16, 16), torch.ones(1), None, None)
        chosen.append(multiply.__qualname__.split(".")[0])
    assert chosen == ["scaled_gemm", "dequantised_gemm", "dequantised_gemm"]


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
