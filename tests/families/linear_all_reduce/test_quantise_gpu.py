"""The quantisation kernel on a real GPU: the oracle's codes and scales, in every rounding case."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.compiler.compile import compile_source
from kernwright.evidence.oracle.dtypes import storage
from kernwright.families.linear_all_reduce.oracle import E4M3, quantise_rows

pytestmark = pytest.mark.gpu
K = 5120
SPEC = """
family = "linear_all_reduce"
name = "rows"
[workload]
dtype = ["float16", "bfloat16"]
world_size = 2
width = 16
k = 5120
m = { min = 1, max = 16384 }
quantisation = "fp8_per_token"
nonfinite = "NONFINITE"
[[candidate]]
name = "serial"
arch = ["sm_80", "sm_90"]
route = "serial"
gemm = "scaled_mm"
"""


def cases(dtype: str) -> np.ndarray:
    """Every bit pattern of the dtype, in rows of finite ones and of all; every boundary between codes at scale 1."""
    halves = (E4M3[1:] + E4M3[:-1]) / 2
    exact = np.concatenate([E4M3, halves]).astype(np.float32)
    near = storage(dtype).store(exact)
    boundaries = np.concatenate([near, near + 1, np.maximum(near, 1) - 1]).astype(np.uint16)
    values = storage(dtype).load(boundaries)
    row = np.zeros(K, np.uint16)
    row[: len(boundaries)] = np.where(values <= 448, boundaries, 0)
    row[-1] = storage(dtype).store(np.array([448], np.float32))[0]
    every = np.arange(2**16, dtype=np.uint16)
    finite = every[np.isfinite(storage(dtype).load(every))]
    rows = [row, row | 0x8000]
    for patterns in (every, finite, np.sort(finite & 0x7FFF)):
        padded = np.resize(patterns, (-(-len(patterns) // K), K))
        rows += list(padded)
    random = np.random.default_rng(1).standard_normal((64, K)).astype(np.float32)
    return np.concatenate([np.stack(rows), storage(dtype).store(random)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("nonfinite", ["nan", "clean"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_codes_and_scales(generate, tmp_path, arch, nonfinite, dtype):
    """sm_90 has an instruction for it; the text of sm_80 goes there as PTX, and works with integers."""
    cupy = pytest.importorskip("cupy")
    path = tmp_path / "rows.toml"
    path.write_text(SPEC.replace("NONFINITE", nonfinite))
    (entry,) = [entry for entry in generate(path) if entry.workload.dtype == dtype]
    made = entry.candidates[0]
    source = next(source for source in made.sources if source.arch == arch)
    kind = "cubin" if arch == "sm_90" else "ptx"
    artifact = compile_source(source.text, file_name=source.path, arch=arch, kind=kind)
    binary = tmp_path / f"quantise.{kind}"
    binary.write_bytes(artifact.data)
    kernel = cupy.RawModule(path=str(binary)).get_function(made.symbols["quantise"])
    bits = cases(dtype)
    x = cupy.asarray(bits)
    codes = cupy.full(bits.shape, 0x55, cupy.uint8)
    scales = cupy.full(len(bits), -1, cupy.float32)
    geometry = made.lowering.kernels["quantise"]
    kernel(geometry.grid, geometry.block, (x, codes, scales, np.uint32(len(bits))))
    wanted, wanted_scales = quantise_rows(bits, dtype, nonfinite)
    assert (cupy.asnumpy(codes) == wanted).all()
    found = cupy.asnumpy(scales)
    assert ((found == wanted_scales) | (np.isnan(found) & np.isnan(wanted_scales))).all()
