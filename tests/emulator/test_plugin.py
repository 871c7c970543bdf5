"""The fixture, from the point of view of somebody who has a family of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, TooLarge, compile_text, find_races, plugin

TEXT = """\
extern "C" __global__ void twice(const float* __restrict__ x, float* __restrict__ out) {
  __shared__ float turned[64];
  turned[63 - threadIdx.x] = 2.0f * x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = turned[63 - threadIdx.x] + 0.0f * turned[threadIdx.x];
}
"""
X = np.linspace(1, 2, 64, dtype=np.float32)


def launches(text: str = TEXT, ctas: int = 1):
    kernel = compile_text(text, "twice.cu")
    out = DeviceBuffer.output("out", (64,), "float32")
    return [EmulatedLaunch(kernel, "twice", (ctas, 1, 1), (64, 1, 1), (DeviceBuffer.input("x", X), out))], {
        out: 2 * X
    }


def test_three_lines(check_kernels):
    check_kernels(*launches())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("2.0f * x", "3.0f * x"), "Mismatch: 64 of 64 elements of out of rank 0"),
        (TEXT.replace("  __syncthreads();\n", ""), "Uninitialised: 32 elements of out"),
        (TEXT.replace("x[threadIdx.x]", "x[threadIdx.x + 1]"), "Out of bounds: twice"),
    ],
)
def test_a_problem_fails_the_test(check_kernels, text, message):
    with pytest.raises(pytest.fail.Exception, match=message):
        check_kernels(*launches(text))


def test_a_failing_schedule_is_printed(check_kernels):
    """Right as long as lower threads go first, as they do in the schedule that is checked first."""
    text = TEXT.replace("  __syncthreads();\n", "").replace(
        "turned[63 - threadIdx.x]", "turned[threadIdx.x]", 1
    )
    text = text.replace(
        "turned[63 - threadIdx.x] + 0.0f * turned[threadIdx.x]", "turned[threadIdx.x / 2 * 2]"
    )
    given, _ = launches(text)
    expected = {given[0].args[1]: np.repeat(2 * X[::2], 2)}
    with pytest.raises(
        pytest.fail.Exception, match=r"Interleaving\(seed=\d+, policy='\w+'\) fails; it replays exactly"
    ):
        check_kernels(given, expected)


def test_a_race_fails_the_test(check_kernels):
    """Every thread writes the same value, so no schedule changes the result."""
    text = TEXT.replace("  __shared__", "  out[0] = 2.0f * x[0];\n  __shared__")
    with pytest.raises(pytest.fail.Exception, match=r"Race: write of 4 bytes by .* at twice\.cu:2"):
        check_kernels(*launches(text))


def test_races_are_looked_for_on_small_workloads():
    with pytest.raises(TooLarge, match="The launches have 6400 threads; ThreadSanitizer takes up to 2000"):
        find_races(launches(ctas=100)[0])


def test_the_docstring_shows_the_fixture():
    assert "def test_mine(check_kernels):" in str(plugin.__doc__)
    assert Path(str(plugin.__file__)).name == "plugin.py"
