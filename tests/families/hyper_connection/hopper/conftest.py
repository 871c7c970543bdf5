"""Chains of boundaries on the emulator: generated kernels, launched to overlap, and the oracle's answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.paths import LIBRARY
from harness.rank_group import SECOND, Edit, edited
from harness.workspaces import generated_workloads
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Object, compile_text
from kernwright.families.hyper_connection.inputs import tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.generator.sources import GeneratedWorkload

HERE = Path(__file__).parent
BITS = {
    "float16": np.uint16,
    "bfloat16": np.uint16,
    "float32": np.uint32,
    "int32": np.uint32,
    "int64": np.uint64,
}
STATE = {"residual": "x", "block": "block_input", "injection": "injection_out"}
"""Where the next boundary finds its inputs among the outputs of this one."""


@functools.cache
def generated(spec: str) -> Mapping[str, GeneratedWorkload]:
    """What is generated from `specs/<spec>.toml`, by dtype."""
    path = HERE / "specs" / f"{spec}.toml"
    _, made = generated_workloads(path if path.is_file() else LIBRARY / path.name, "hyper_connection")
    return {entry.workload.dtype: entry for entry in made}


@dataclass
class Chain:
    """Boundaries on one stream; `add` appends a boundary of a kind and what it must store."""

    candidate: str
    dtype: str = "float16"
    spec: str = "mini"
    edits: tuple[Edit, ...] = ()
    """Changes to the text; each must fit somewhere."""
    generation: int = 0
    """Of the call before the first one, with the tags that it left."""
    programmatic: bool = True
    timeout_s: int = 30
    launches: list[EmulatedLaunch] = field(default_factory=list)
    expected: dict[DeviceBuffer, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workload = generated(self.spec)[self.dtype]
        self.entry = next(c for c in self.workload.candidates if c.candidate.name == self.candidate)
        workload: Any = self.workload.workload
        trees = {name: (t.segments, t.lanes, t.chunk) for name, t in workload.trees().items()}
        self.shape = OracleShape(
            dtype=self.dtype,
            branches=workload.branches,
            hidden=workload.hidden,
            low_rank=workload.low_rank,
            tokens=1,
            trees=trees,
            norm_weight=workload.norm_weight,
            eps=workload.eps,
        )
        text = edited(self.entry.sources[-1].text, self.edits, self.candidate)
        self.kernel: Object = compile_text(text, f"{self.candidate}.cu")
        self.state = {
            name: DeviceBuffer.inout(name, self._left(name, shape, dtype))
            for name, (shape, dtype) in self.entry.lowering.state.items()
        }
        self.scratch = {
            name: self._buffer(name, shape, dtype)
            for name, (shape, dtype) in self.entry.lowering.scratch.items()
        }
        self.bits: dict[str, Any] = {}
        self.given: dict[str, DeviceBuffer] = {}

    def _left(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        array = np.zeros(shape, BITS[dtype])
        if name == "generations":
            array[:] = self.generation
        if name == "exchange" and self.generation:
            array[:] = (np.uint64(self.generation) << np.uint64(32)) | np.uint64(0x3F800000)
        return array

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: str) -> DeviceBuffer:
        return DeviceBuffer(name, np.zeros(shape, BITS[dtype]), "out", 0, dtype)

    def start(self, inputs: str = "normal", seed: int = 1) -> Chain:
        """Give the first boundary its residual, block and injection."""
        self.bits = {
            name: array for name, array in tensors(self.shape, inputs, seed).items() if name in STATE
        }  # type: ignore[arg-type]
        self.given = {name: self._input(name, array) for name, array in self.bits.items()}
        return self

    def _input(self, name: str, array: Any) -> DeviceBuffer:
        return DeviceBuffer(name, array, "in", 0, self.dtype)

    def add(self, kind: str = "boundary", seed: int = 1, *, fewer_ctas: int = 0) -> dict[str, DeviceBuffer]:
        """Append a boundary on the state that the last one left, with weights of its own; gives the outputs.

        Args:
            fewer_ctas: CTAs that are missing from the grid: whoever waits for them waits in vain.
        """
        shape = self.shape
        bits = dict(self.bits)
        if kind != "combine":
            bits |= weights(shape, seed, kind) | {
                "norm_weight": tensors(shape, "normal", seed)["norm_weight"]
            }  # type: ignore[arg-type]
        answer = self.answer = boundary(shape, bits, kind)  # type: ignore[arg-type]
        inputs = {name: self.given.get(name) or self._input(name, array) for name, array in bits.items()}
        made: dict[str, DeviceBuffer] = {}
        for name in self.entry.lowering.steps[kind]:
            step = self.entry.lowering.kernels[name]
            args: list[Any] = []
            for argument in step.args:
                if argument == "timeout_ns":
                    args.append(np.uint64(self.timeout_s * SECOND))
                    continue
                found = (
                    inputs.get(argument)
                    or made.get(argument)
                    or self.state.get(argument)
                    or self.scratch.get(argument)
                )
                if found is None:
                    found = made[argument] = self._buffer(
                        f"{argument}{len(self.launches)}", answer[argument].shape, self.dtype
                    )
                    self.expected[found] = answer[argument]
                args.append(found)
            grid = (step.grid[0] - fewer_ctas, 1, 1)
            self.launches.append(
                EmulatedLaunch(
                    self.kernel,
                    self.entry.symbols[name],
                    grid,
                    step.block,
                    tuple(args),
                    step.shared_bytes,
                    programmatic=step.programmatic and self.programmatic,
                )
            )
        self.bits |= {name: answer[output] for name, output in STATE.items() if output in answer}
        self.given |= {name: made[output] for name, output in STATE.items() if output in made}
        return made


@pytest.fixture(scope="session")
def chain() -> Callable[..., Chain]:
    """Make a chain: `chain("one", "bfloat16").start("normal")`."""
    return Chain
