"""exp and sigmoid as the kernels have them, on every FP16 input: the oracle's bits, and near the truth."""

from __future__ import annotations

import numpy as np
import pytest
from jinja2 import Environment, FileSystemLoader
from kernwright.compiler.compile import compile_source
from kernwright.evidence.oracle.functions import exp, sigmoid
from kernwright.generator.environment import TEMPLATES

pytestmark = pytest.mark.gpu

KERNEL = """
{% include "prelude/arithmetic.cuh.j2" %}

extern "C" __global__ void functions(const float* input, float* exponentials, float* sigmoids) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  exponentials[i] = exponential(input[i]);
  sigmoids[i] = sigmoid(input[i]);
}
"""


def on_gpu(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp and sigmoid of float32 `values`, whose number is a multiple of 256, by the prelude's text."""
    cupy = pytest.importorskip("cupy")
    source = Environment(loader=FileSystemLoader(TEMPLATES)).from_string(KERNEL).render()
    capability = cupy.cuda.Device().compute_capability
    artifact = compile_source(source, file_name="functions.cu", arch=f"sm_{capability}")
    module = cupy.cuda.function.Module()
    module.load(artifact.data)
    given = cupy.asarray(values)
    found = cupy.empty_like(given), cupy.empty_like(given)
    module.get_function("functions")((values.size // 256, 1, 1), (256, 1, 1), (given, *found))
    return cupy.asnumpy(found[0]), cupy.asnumpy(found[1])


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    nan = np.isnan(expected)
    return np.array_equal(np.isnan(found), nan) and np.array_equal(
        found[~nan].view(np.uint32), expected[~nan].view(np.uint32)
    )


def ulps(found: np.ndarray, values: np.ndarray, truth: np.ndarray) -> float:
    """Largest distance from the truth, in units in the last place of float32, where the result is normal."""
    usual = np.isfinite(values) & (truth > np.finfo(np.float32).tiny) & (truth < np.finfo(np.float32).max)
    unit = np.spacing(truth[usual].astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(found[usual].astype(np.float64) - truth[usual]) / unit))


def test_every_fp16_input(figures):
    values = np.arange(65_536, dtype=np.uint32).astype(np.uint16).view(np.float16).astype(np.float32)
    exponentials, sigmoids = on_gpu(values)
    assert same_bits(exponentials, exp(values))
    assert same_bits(sigmoids, sigmoid(values))
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        errors = ulps(exponentials, values, np.exp(wide)), ulps(sigmoids, values, 1 / (1 + np.exp(-wide)))
    figures["ulps_over_all_fp16"] = {"exp": errors[0], "sigmoid": errors[1]}
    assert errors[0] <= 1.0
    assert errors[1] <= 2.5


def test_random_float32_patterns():
    values = np.random.default_rng(5).integers(0, 1 << 32, 1 << 22, dtype=np.uint32).view(np.float32)
    exponentials, sigmoids = on_gpu(values)
    assert same_bits(exponentials, exp(values))
    assert same_bits(sigmoids, sigmoid(values))
