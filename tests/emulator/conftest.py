"""Kernels of the tests, compiled; the toy all-reduce."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.boundaries import library, odd  # noqa: F401  (fixtures)
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Object, compile_text
from kernwright.emulator.plugin import check_kernels  # noqa: F401  (a fixture)

KERNELS = Path(__file__).parent / "kernels"


def kernel_text(name: str, *edits: tuple[str, str]) -> str:
    """The text of a test kernel; every edit must fit exactly once."""
    text = (KERNELS / name).read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="session")
def kernel() -> Callable[..., Object]:
    """Compile a test kernel: `kernel("copies.cu", (old, new), ...)`."""
    return lambda name, *edits: compile_text(kernel_text(name, *edits), name)


@pytest.fixture(scope="session")
def toy() -> Callable[..., tuple[list[EmulatedLaunch], dict[DeviceBuffer, Any]]]:
    """The toy all-reduce: launches and what they must store."""
    return toy_all_reduce


def toy_all_reduce(
    *edits: tuple[str, str], ranks: int = 2, ctas: int = 2, threads: int = 32, calls: int = 3, epoch: int = 1
) -> tuple[list[EmulatedLaunch], dict[DeviceBuffer, Any]]:
    count = 2 * ctas * threads
    text = kernel_text("toy_all_reduce.cu", ("#define RANKS 2", f"#define RANKS {ranks}"), *edits)
    kernel = compile_text(text, "toy_all_reduce.cu")
    inputs = np.random.default_rng(1).standard_normal((calls, ranks, count)).astype(np.float32)
    data = [DeviceBuffer.output("data", (count,), "float32", rank=rank) for rank in range(ranks)]
    before = np.full(2 * ctas * ranks, (epoch - 1) % 2**32, np.uint32)
    flags = [DeviceBuffer.inout("flags", before, rank=rank) for rank in range(ranks)]
    launches, expected = [], {}
    for call in range(calls):
        total = functools.reduce(np.add, inputs[call])  # float32, in rank order
        for rank in range(ranks):
            output = DeviceBuffer.output(f"output{call}", (count,), "float32", rank=rank)
            given = DeviceBuffer.input(f"input{call}", inputs[call, rank], rank=rank)
            scalars = (np.uint32((epoch + call) % 2**32), np.int32(rank), np.int32(count))
            args = ((*data, *flags), given, output, *scalars)
            launches.append(
                EmulatedLaunch(kernel, "toy_all_reduce", (ctas, 1, 1), (threads, 1, 1), args, rank=rank)
            )
            expected[output] = total
    return launches, expected
