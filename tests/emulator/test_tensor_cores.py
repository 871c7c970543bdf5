"""The emulator's mma: who holds what is PTX's, the order of adding is increasing k, by FMA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, TextUnsupported, check, compile_text, run
from kernwright.emulator.report import Divergence
from kernwright.emulator.text import facts
from kernwright.evidence.oracle.fma import fma

KERNEL = 'extern "C" __global__ void f(int* p) { p[0] = 1; }\n'


@pytest.mark.parametrize(("symbol", "dtype"), [("halves", torch.float16), ("brains", torch.bfloat16)])
def test_a_product_is_sixteen_fmas_in_order(kernel, symbol, dtype):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(16, 16, generator=generator).to(dtype)
    b = torch.randn(8, 16, generator=generator).to(dtype)
    c = (1000 * torch.randn(16, 8, generator=generator)).float().numpy()
    expected = c
    for k in range(16):
        rows, columns = a[:, k, None].float().numpy(), b[None, :, k].float().numpy()
        expected = fma(np.broadcast_to(rows, (16, 8)), np.broadcast_to(columns, (16, 8)), expected)
    inputs = [
        DeviceBuffer.input(n, t.view(torch.int16).numpy().view(np.uint16)) for n, t in (("a", a), ("b", b))
    ]
    out = DeviceBuffer.output("d", (16, 8), "float32")
    arguments = (*inputs, DeviceBuffer.input("c", c), out)
    launch = EmulatedLaunch(kernel("tensor_core.cu"), symbol, (1, 1, 1), (32, 1, 1), arguments)
    assert check([launch], {out: expected}).problems == ()
    exact = a.double().numpy() @ b.double().numpy().T + c.astype(np.float64)
    assert not np.array_equal(expected, exact.astype(np.float32))  # the order shows
    assert np.abs(expected - exact).max() < 1e-3


def test_half_a_warp_is_a_divergence(kernel):
    out = DeviceBuffer.output("d", (16, 8), "float32")
    zeros = [DeviceBuffer.input(n, np.zeros(size, np.uint16)) for n, size in (("a", 256), ("b", 128))]
    arguments = (*zeros, DeviceBuffer.input("c", np.zeros(128, np.float32)), out)
    fault = run([EmulatedLaunch(kernel("tensor_core.cu"), "halves", (1, 1, 1), (16, 1, 1), arguments)]).fault
    assert isinstance(fault, Divergence)


@pytest.mark.parametrize("types", ["f16.f16", "bf16.bf16"])
def test_the_one_instruction_that_is_emulated(types):
    known = f'asm("mma.sync.aligned.m16n8k16.row.col.f32.{types}.f32 ...");'
    assert facts(f"__device__ void d() {{ {known} }}\n{KERNEL}", "f.cu").symbols == ("f",)
    other = known.replace("k16", "k8")
    with pytest.raises(TextUnsupported, match=r"f\.cu uses the tensor-core instruction mma\.sync"):
        facts(f"__device__ void d() {{ {known} {other} }}\n{KERNEL}", "f.cu")


def test_a_text_without_the_emulators_branch_doesnt_compile():
    text = 'extern "C" __global__ void f(int* p) { asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 ;"); }\n'
    with pytest.raises(Exception, match=r"mma\.sync"):
        compile_text(text, "f.cu")
