"""Ranks on the emulator: GEMMs that write partial sums to a channel, and the kernels that reduce them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, Object, compile_text
from kernwright.evidence.oracle import storage
from kernwright.families.all_reduce.oracle import all_reduce
from kernwright.families.linear_all_reduce.emulated import EmulatedRanks
from kernwright.families.linear_all_reduce.lowering import LinearLayout
from kernwright.generator.environment import make_environment
from kernwright.generator.sources import GeneratedCandidate, GeneratedWorkload, generate_workloads
from kernwright.specs import families, find_workspace, load_spec
from kernwright.table import Kernel

HERE = Path(__file__).parent
Edit = tuple[str, str]


def generated(path: Path) -> list[GeneratedWorkload]:
    workspace = find_workspace()
    known = families(workspace)
    file = load_spec(path, workspace)
    return list(generate_workloads(make_environment(workspace, known), file, known["linear_all_reduce"]))


@functools.cache
def miniature() -> dict[tuple[str, int, int], GeneratedWorkload]:
    workloads = generated(HERE / "miniature" / "mini.toml")
    return {(w.workload.dtype, w.workload.world_size, w.workload.m.min): w for w in workloads}


@dataclass
class Ranks:
    """Ranks of one channel; calls append launches and what they must store. One stream a rank."""

    dtype: str = "bfloat16"
    ranks: int = 2
    edits: tuple[Edit, ...] = ()
    """Changes to every text; each must fit somewhere."""
    seed: int = 1
    expected: dict[DeviceBuffer, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entry = miniature()[self.dtype, self.ranks, 16]
        self.layout = LinearLayout.of(self.entry.workload)
        self.rng = np.random.default_rng(self.seed)
        size = self.layout.size
        memory = [np.zeros(size, np.uint8) for _ in range(self.ranks)]
        self.emulated = EmulatedRanks(self.dtype, memory, self.layout.partials, self.ranks * size)
        self.launches, self.channels = self.emulated.launches, self.emulated.channels

    def candidate(self, name: str) -> GeneratedCandidate:
        return next(c for c in self.entry.candidates if c.candidate.name == name)

    def kernel(self, name: str) -> Object:
        text = self.candidate(name).sources[-1].text
        for old, new in self.edits:
            text = text.replace(old, new)
        return compile_text(text, f"{name}.cu")

    def values(self, numel: int) -> Any:
        spread = np.ldexp(
            self.rng.standard_normal((self.ranks, numel)), self.rng.integers(-3, 4, (self.ranks, numel))
        )
        return storage(self.dtype).store(spread.astype(np.float32))

    def call(
        self, name: str, slices: list[int], given: Any = None, *, skip: tuple[int, ...] = ()
    ) -> list[DeviceBuffer]:
        """One call of slices of so many elements on all ranks but `skip`; gives the ranks' results."""
        partials = self.values(sum(slices)) if given is None else given
        made = self.candidate(name)
        kernels = {
            kernel: Kernel(launch.grid, launch.block, launch.args, symbol=made.symbols[kernel])
            for kernel, launch in made.lowering.kernels.items()
        }
        results = self.emulated.call(
            self.kernel(name), kernels, made.lowering.options, partials, slices, skip=skip
        )
        answer = all_reduce(list(partials), self.dtype)
        self.expected |= {result: answer for rank, result in enumerate(results) if rank not in skip}
        return results

    def record(self, arrays: Any, rank: int) -> list[int]:
        words = arrays[self.channels[rank]].view(np.uint32)
        return words[self.layout.record // 4 :][:7].tolist()


@pytest.fixture(scope="session")
def group() -> Callable[..., Ranks]:
    """Make ranks: `group(dtype, ranks)`."""
    return Ranks


@pytest.fixture(scope="session")
def generate() -> Callable[[Path], list[GeneratedWorkload]]:
    """What is generated from a spec file."""
    return generated
