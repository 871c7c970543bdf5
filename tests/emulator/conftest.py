"""Kernels of the tests, compiled; boundaries of the library and of the odd specs, with the oracle's answer."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Object, Program, candidate_program, compile_text
from kernwright.emulator.plugin import check_kernels  # noqa: F401  (a fixture)
from kernwright.evidence.explain import load_dispatch
from kernwright.families.hyper_connection.inputs import tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.generator import plan_generation, write_generation
from kernwright.specs import find_workspace
from kernwright.table import Candidate, Workload

KERNELS = Path(__file__).parent / "kernels"
ODD = Path(__file__).resolve().parents[1] / "families" / "hyper_connection" / "odd"


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


@dataclass(frozen=True)
class Boundaries:
    """A dispatch module, and the boundaries that its candidates compute."""

    dispatch: ModuleType

    @property
    def workloads(self) -> Mapping[str, Workload]:
        return {workload.label: workload for workload in self.dispatch.TABLE.workloads}

    def candidate(self, label: str, name: str) -> Candidate:
        return next(c for c in self.workloads[label].candidates if c.name == name)

    def shape(self, label: str) -> OracleShape:
        workload = self.workloads[label]
        f: Any = workload.fields
        sizes = (f["branches"], f["hidden"], f["low_rank"], 1)
        return OracleShape(f["dtype"], *sizes, workload.trees, f["norm_weight"], f["eps"])

    def program(
        self, label: str, name: str, kind: str, inputs: str = "normal", seed: int = 3, arch: str | None = None
    ) -> tuple[Program, dict[DeviceBuffer, Any]]:
        """A candidate's launches on seeded inputs, and the oracle's answer for all that they store."""
        candidate = self.candidate(label, name)
        request = self.dispatch.hyper_connection.request_for(
            {**self.workloads[label].fields, "tokens": 1}, kind
        )
        given, answer = self.answer(label, kind, inputs, seed)
        program = candidate_program(
            self.dispatch.TABLE.root,
            candidate,
            arch or next(iter(candidate.builds)),
            kind,
            request.signature,
            given,
        )
        return program, program.expect(answer)

    @functools.cache  # noqa: B019  (one object a session)
    def answer(self, label: str, kind: Any, inputs: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        shape = self.shape(label)
        given = tensors(shape, inputs, seed) | weights(shape, seed, kind)
        return given, boundary(shape, given, kind)


@pytest.fixture(scope="session")
def library() -> Boundaries:
    """The shipped library."""
    from kernwright.generated import dispatch

    return Boundaries(dispatch)


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Boundaries:
    """Small workloads that take the templates' rarer branches."""
    root = tmp_path_factory.mktemp("emulator") / "odd"
    shutil.copytree(ODD, root)
    workspace = find_workspace(root)
    write_generation(plan_generation(workspace))
    return Boundaries(load_dispatch(workspace))
