"""Ranks on the emulator: GEMMs that write partial sums to a channel, and the kernels that reduce them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.rank_group import RankGroup, spread
from harness.workspaces import generated_workloads
from kernwright.emulator import DeviceBuffer
from kernwright.families.all_reduce.oracle import all_reduce
from kernwright.families.linear_all_reduce.emulated import EmulatedRanks
from kernwright.families.linear_all_reduce.lowering import channel_layout
from kernwright.generator.sources import GeneratedWorkload
from kernwright.table import Kernel

HERE = Path(__file__).parent


def generated(path: Path) -> list[GeneratedWorkload]:
    return generated_workloads(path, "linear_all_reduce")[1]


@functools.cache
def miniature() -> dict[tuple[str, int, int], GeneratedWorkload]:
    workloads = generated(HERE / "miniature" / "mini.toml")
    return {(w.workload.dtype, w.workload.world_size, w.workload.m.min): w for w in workloads}


@dataclass
class Ranks(RankGroup):
    """Ranks of one channel; calls append launches and what they must store. One stream a rank."""

    dtype: str = "bfloat16"
    ranks: int = 2
    seed: int = 1

    def __post_init__(self) -> None:
        self.entry = miniature()[self.dtype, self.ranks, 16]
        self.layout = SimpleNamespace(**channel_layout(self.entry.workload))
        self.rng = np.random.default_rng(self.seed)
        size = self.layout.size
        memory = [np.zeros(size, np.uint8) for _ in range(self.ranks)]
        self.emulated = EmulatedRanks(self.dtype, memory, self.layout.partials)
        self.launches, self.channels = self.emulated.launches, self.emulated.channels

    def values(self, numel: int) -> Any:
        return spread(self.rng, self.dtype, (self.ranks, numel))

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


@pytest.fixture(scope="session")
def group() -> Callable[..., Ranks]:
    """Make ranks: `group(dtype, ranks)`."""
    return Ranks


@pytest.fixture(scope="session")
def generate() -> Callable[[Path], list[GeneratedWorkload]]:
    """What is generated from a spec file."""
    return generated
