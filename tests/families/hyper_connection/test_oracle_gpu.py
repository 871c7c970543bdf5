"""The oracle's one text gives NumPy's bits on CuPy, too."""

from __future__ import annotations

import numpy as np
import pytest
from harness.bits import mismatches
from kernwright.evidence.oracle.dtypes import digest, on_host
from kernwright.evidence.oracle.fma import fma
from kernwright.evidence.oracle.functions import exp
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape

pytestmark = pytest.mark.gpu

TREES = {"norm": (1, 32, 8), "down": (4, 32, 8), "up": (1, 32, 2)}


@pytest.fixture(scope="module")
def cupy():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("CuPy finds no GPU here")
    return cupy


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_boundary(cupy, dtype, kind):
    s = OracleShape(dtype, branches=4, hidden=256, low_rank=32, tokens=2, trees=TREES)
    here = tensors(s, kind, 5) | weights(s, 5)
    there = tensors(s, kind, 5, cupy) | weights(s, 5, xp=cupy)
    assert all(isinstance(bits, cupy.ndarray) for bits in there.values())
    assert digest(there, s.storage) == digest(here, s.storage)
    expected, found = boundary(s, here), boundary(s, there)
    for name, bits in found.items():
        comparison = mismatches(on_host(bits), expected[name], s.storage)
        assert comparison.count == 0, f"{name} {comparison.first}"


def test_fma_and_exp_of_any_bits(cupy):
    words = np.random.default_rng(0).integers(0, 1 << 32, (3, 1 << 18), dtype=np.uint32).view(np.float32)
    for found, expected in (
        (fma(*map(cupy.asarray, words)), fma(*words)),
        (exp(cupy.asarray(words[0])), exp(words[0])),
    ):
        same = (cupy.asnumpy(found).view(np.uint32) == expected.view(np.uint32)) | np.isnan(expected)
        assert same.all()
        assert np.array_equal(np.isnan(cupy.asnumpy(found)), np.isnan(expected))
