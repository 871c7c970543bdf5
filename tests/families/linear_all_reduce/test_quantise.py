"""FP8 per-token quantisation: the kernel's text gives the oracle's codes and scales, for every rounding case."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.compiler.compile import compile_source
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, check, compile_text
from kernwright.evidence.oracle.dtypes import storage
from kernwright.families.linear_all_reduce.oracle import E4M3, from_e4m3, quantise_rows, to_e4m3
from kernwright.specs import SpecError

SPEC = """
family = "linear_all_reduce"
name = "rows"
[workload]
dtype = ["float16", "bfloat16"]
world_size = 2
width = 16
k = {k}
m = {{ min = 1, max = 64 }}
quantisation = "fp8_per_token"
nonfinite = "{nonfinite}"
[[candidate]]
name = "serial"
arch = ["{arch}"]
route = "serial"
gemm = "scaled_mm"
budget.quantise = {{ registers = 64, spill_bytes = 0, stack_bytes = 0 }}
"""
K = 144
"""Eighteen words: a warp has lanes without any."""


@pytest.fixture(scope="module")
def quantisers(generate, tmp_path_factory):
    """What is generated, by dtype, treatment of Inf and NaN, and K."""

    def make(nonfinite="nan", k=K, arch="sm_90"):
        path = tmp_path_factory.mktemp("specs") / "rows.toml"
        path.write_text(SPEC.format(nonfinite=nonfinite, k=k, arch=arch))
        return {entry.workload.dtype: entry.candidates[0] for entry in generate(path)}

    return make


def launch_of(made, bits, ctas=None, edit=("", "")):
    rows, k = bits.shape
    codes = DeviceBuffer.output("codes", (rows, k), "uint8")
    scales = DeviceBuffer.output("scales", (rows,), "float32")
    x = DeviceBuffer.input("x", bits)
    geometry = made.lowering.kernels["quantise"]
    kernel = compile_text(made.sources[0].text.replace(*edit), "quantise.cu")
    args = (x, codes, scales, np.uint32(rows))
    grid = geometry.grid if ctas is None else (ctas, 1, 1)
    return EmulatedLaunch(kernel, made.symbols["quantise"], grid, geometry.block, args), codes, scales


def problems(made, bits, dtype, nonfinite="nan", **options):
    launch, codes, scales = launch_of(made, bits, options.pop("ctas", 2), **options)
    wanted = quantise_rows(bits, dtype, nonfinite)
    return check([launch], {codes: wanted[0], scales: wanted[1]}).problems


def rounding_rows(dtype):
    """Rows whose scale is a power of two, with every value near every boundary between two codes.

    The largest is 448 times the scale; then come all codes, the halves between them, and the values of the
    storage dtype next to those, with both signs.
    """
    halves = (E4M3[1:] + E4M3[:-1]) / 2
    near = storage(dtype).store(np.concatenate([E4M3, halves]).astype(np.float32))
    neighbours = np.concatenate([near, near + 1, np.maximum(near, 1) - 1])
    values = storage(dtype).load(neighbours)
    values = values[values <= 448]
    values = np.concatenate([values, -values]).astype(np.float32)
    rows = -(-len(values) // (K - 1))
    padded = np.zeros(rows * (K - 1), np.float32)
    padded[: len(values)] = values
    return np.concatenate([np.full((rows, 1), 448, np.float32), padded.reshape(rows, K - 1)], axis=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("exponent", [0, -3, 5])
def test_every_rounding_case(quantisers, dtype, exponent):
    values = np.ldexp(rounding_rows(dtype), exponent)
    bits = storage(dtype).store(values.astype(np.float32))
    assert not problems(quantisers()[dtype], bits, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("nonfinite", ["nan", "clean"])
def test_any_bits(quantisers, dtype, nonfinite):
    """Subnormals, huge values, Inf and NaN; rows of zeros, of -0, and with one bad element."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**16, (12, K)).astype(np.uint16)
    finite = storage(dtype).store(rng.standard_normal((8, K)).astype(np.float32))
    infinity = storage(dtype).infinity
    finite[0], finite[1] = 0, 0x8000
    finite[2, 7], finite[3, K - 1], finite[4, 0] = infinity, infinity | 0x8000, infinity | 1
    finite[5] = infinity
    finite[6], finite[6, 3] = 1, 0x8001  # the smallest subnormals
    bits = np.concatenate([bits, finite])
    assert not problems(quantisers(nonfinite)[dtype], bits, dtype, nonfinite)


def test_a_long_row_and_more_rows_than_ctas(quantisers):
    rng = np.random.default_rng(6)
    bits = storage("bfloat16").store(rng.standard_normal((5, 5120)).astype(np.float32))
    assert not problems(quantisers(k=5120)["bfloat16"], bits, "bfloat16")


MUTANTS = [
    ("0x7ffffu + (size >> 20 & 1u)", "0x80000u"),  # ties away from zero
    ("0x7ffffu + (size >> 20 & 1u)", "0u"),  # truncates
    ("size < 0x3c800000u ? subnormal : normal", "normal"),
    ("(bits >> 24 & 0x80u) | ", ""),
    ("wanted > LEAST_SCALE ? wanted : LEAST_SCALE", "wanted"),
    ("lost ? uint2{0x7f7f7f7fu, 0x7f7f7f7fu} : converted", "converted"),
    ("lost ? __uint_as_float(0x7fffffffu) : scale", "scale"),
    ("max(most, largest[warp])", "most"),
    ("max(most, __shfl_xor_sync(0xffffffffu, most, distance))", "most"),
    ("divide(to_float(value), scale)", "to_float(value) * divide(1.0f, scale)"),
]


@pytest.mark.parametrize("edit", MUTANTS)
def test_a_changed_computation_is_found(quantisers, edit):
    made = quantisers(k=1040)["float16"]  # two warps, and lanes without a word
    assert edit[0] in made.sources[0].text
    rng = np.random.default_rng(7)
    rounding = np.zeros((11, 1040), np.float32)
    rounding[:, -K:] = rounding_rows("float16")
    ordinary = rng.standard_normal((40, 1040))
    values = np.concatenate([rounding, ordinary, np.zeros((1, 1040))]).astype(np.float32)
    anything = rng.integers(0, 2**16, (6, 1040)).astype(np.uint16)
    assert problems(made, np.concatenate([storage("float16").store(values), anything]), "float16", edit=edit)


def test_no_quotient_needs_a_clamp():
    """The largest element over its scale exceeds 448 by one unit at most; the code is that of 448 all the same."""
    largest = np.arange(0x3F800000, 0x40000000, dtype=np.uint32).view(np.float32)  # one octave stands for all
    quotients = largest / (largest / np.float32(448))
    assert quotients.max() == np.nextafter(np.float32(448), np.float32(np.inf))
    exceeding = np.unique(quotients[quotients > 448])
    assert (torch.from_numpy(exceeding).to(torch.float8_e4m3fn).float() == 448).all()


@settings(max_examples=200, deadline=None)
@given(st.floats(-448, 448, width=32))
def test_the_oracles_codes_are_the_nearest(value):
    """Against torch, which rounds in its own way."""
    single = np.array([value], np.float32)
    wanted = torch.from_numpy(single).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (to_e4m3(single) == wanted).all()


def test_all_codes_come_back():
    codes = np.arange(256, dtype=np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    assert ((from_e4m3(codes) == values) | np.isnan(values)).all()
    finite = codes[(codes & 0x7F) != 0x7F]
    assert (to_e4m3(from_e4m3(finite)) == finite).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("k", [4096, 12800, 32768])
def test_a_row_stays_in_registers(quantisers, arch, k):
    """Four words of a row a thread; on sm_90 E4M3 has an instruction."""
    for made in quantisers(k=k, arch=arch).values():
        (source,) = made.sources
        artifact = compile_source(source.text, file_name=source.path, arch=arch)
        used = artifact.kernels[made.symbols["quantise"]]
        assert (used.spill_bytes, used.stack_bytes) == (0, 0)
        assert used.registers <= 64
        steps = made.lowering.constants["row_steps"]
        assert steps == 4
        assert made.lowering.kernels["quantise"].block[0] * steps * 8 >= k


def test_a_row_that_no_cta_holds_is_refused(quantisers):
    with pytest.raises(SpecError, match="k is 32784, and a row is quantised out of the registers of one CTA"):
        quantisers(k=32784)
