"""A group of ranks on the emulator: channels, calls of generated kernels, and the oracle's answer for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.rank_group import RankGroup, spread, to_bits
from harness.workspaces import generated_workloads
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, compile_text
from kernwright.families.all_reduce.oracle import all_reduce, all_reduce_sum2
from kernwright.families.all_reduce.spec import AllReduceSpec, ChannelLayout
from kernwright.generator.sources import GeneratedWorkload

HERE = Path(__file__).parent
OPERATIONS = ("symmetric", "staged", "sum2")
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def generated(path: Path) -> tuple[AllReduceSpec, list[GeneratedWorkload]]:
    file, workloads = generated_workloads(path, "all_reduce")
    assert isinstance(file.spec, AllReduceSpec)
    return file.spec, workloads


@functools.cache
def miniature() -> tuple[AllReduceSpec, dict[tuple[str, int], GeneratedWorkload]]:
    spec, workloads = generated(HERE / "miniature" / "mini.toml")
    return spec, {(entry.workload.dtype, entry.workload.world_size): entry for entry in workloads}


@dataclass
class Group(RankGroup):
    """Ranks of one channel; `call` appends launches and what they must store."""

    dtype: str
    ranks: int
    epoch: int = 0
    """Epoch of the call before the first one, and the flags and tags that it left."""
    tag: int | None = None
    """Tags of the packets, where they aren't those of the last two calls."""
    devices: tuple[int, ...] = ()
    """The emulator's rank of each rank of the group; default the same."""
    seed: int = 1

    def __post_init__(self) -> None:
        self.spec, workloads = miniature()
        self.entry = workloads[self.dtype, self.ranks]
        self.layout = ChannelLayout.of(self.entry.workload)
        self.devices = self.devices or tuple(range(self.ranks))
        self.rng = np.random.default_rng(self.seed)
        self.channels = [DeviceBuffer.inout("channel", self.memory(), rank=device) for device in self.devices]

    def memory(self) -> Any:
        """A channel after the call of `epoch`: all zeros if there was none."""
        memory, layout = np.zeros(self.layout.size, np.uint8), self.layout
        words = memory.view(np.uint32)
        words[layout.ticket // 4 + 1] = self.epoch
        words[layout.flags // 4 + 1 : layout.packets // 4 : 2] = self.epoch
        slots = words[layout.packets // 4 : layout.staged // 4].reshape(-1, 2)
        half = len(slots) // 2
        if self.tag is not None:
            slots[:, 1] = self.tag
        elif self.epoch:
            for parity in (0, 1):
                newest = self.epoch if self.epoch % 2 == parity else (self.epoch - 1) % 2**32
                slots[parity * half : (parity + 1) * half, 1] = newest << 8 & 0xFFFFFFFF
        return memory

    def values(self, numel: int) -> Any:
        """What each rank contributes."""
        return spread(self.rng, self.dtype, (self.ranks, numel))

    def buffer(self, make: Any, name: str, bits: Any, device: int) -> DeviceBuffer:
        return DeviceBuffer(name, bits, make, device, self.dtype)

    def call(
        self,
        name: str,
        operation: str,
        numel: int,
        given: Sequence[Any] | None = None,
        *,
        skip: Sequence[int] = (),
        slot: int = 0,
        shift: int = 0,
        in_place: bool = False,
        one_grid: bool = False,
        timeout_s: int = 30,
        stream: int = 0,
        answer: Any = None,
    ) -> list[DeviceBuffer]:
        """One all-reduce on all ranks but `skip`; gives the outputs.

        Args:
            given: the ranks' tensors as bits, random unless given; `sum2` adds random ones to them.
            shift: elements by which inputs and outputs lie past the beginning of their memory; the text must
                have been edited to the same.
            in_place: the output is the input.
            one_grid: all ranks in one launch.
            stream: of every rank; calls of different streams may overlap.
            answer: the bits that are expected, instead of the oracle's.
        """
        tensors = list(self.values(numel) if given is None else given)
        addends = list(self.values(numel)) if operation == "sum2" else []
        if answer is None:
            answer = (
                all_reduce_sum2(tensors, addends, self.dtype) if addends else all_reduce(tensors, self.dtype)
            )
        pad = np.zeros(shift, answer.dtype)
        number = len(self.launches)
        inputs, others, outputs = [], [], []
        for rank, device in enumerate(self.devices):
            mine = np.concatenate([pad, tensors[rank]])
            inputs.append(self.buffer("inout" if in_place else "in", f"input{number}", mine, device))
            if addends:
                others.append(
                    self.buffer("in", f"addend{number}", np.concatenate([pad, addends[rank]]), device)
                )
            access = "inout" if shift else "out"
            output = (
                inputs[-1]
                if in_place
                else self.buffer(access, f"output{number}", np.zeros_like(mine), device)
            )
            outputs.append(output)
            if rank not in skip:
                self.expected[output] = np.concatenate([pad, answer])
        active = [rank for rank in range(self.ranks) if rank not in skip]
        if operation == "symmetric":
            for rank in active:
                self._produce(rank, inputs[rank], slot)
        for rank in [0] if one_grid else active:
            everyone = [range(self.ranks)[i] if one_grid else rank for i in range(self.ranks)]
            arguments = {
                "inputs": tuple(inputs[i] for i in everyone),
                "addends": tuple(others[i] for i in everyone) if others else None,
                "outputs": tuple(outputs[i] for i in everyone),
                "numel": np.uint32(numel),
                "input_slot": np.uint32(slot),
            }
            self.launch(
                name,
                operation,
                arguments,
                rank,
                device=self.devices[rank],
                stream=stream,
                one_grid=one_grid,
                timeout_s=timeout_s,
            )
        return outputs

    def _produce(self, rank: int, result: DeviceBuffer, slot: int) -> None:
        kernel = compile_text((HERE / "kernels" / "producer.cu").read_text(), "producer.cu")
        at = self.layout.inputs + slot * self.layout.capacity
        args = (self.channels[rank], result, np.uint64(at), np.uint32(result.array.nbytes // 2))
        self.launches.append(
            EmulatedLaunch(kernel, "produce", (1, 1, 1), (32, 1, 1), args, rank=self.devices[rank])
        )

    def delay(self, rank: int, seconds: int, stream: int = 0) -> None:
        """Let a rank come late to whatever follows."""
        kernel = compile_text((HERE / "kernels" / "delay.cu").read_text(), "delay.cu")
        once, one = (1, 1, 1), (np.uint32(seconds),)
        self.launches.append(
            EmulatedLaunch(kernel, "delay", once, once, one, rank=self.devices[rank], stream=stream)
        )

    def epoch_of(self, arrays: Any, rank: int) -> int:
        """The epoch of a rank's last call, after a run."""
        return int(self.words(arrays, rank)[self.layout.ticket // 4 + 1])


@pytest.fixture(scope="session")
def group() -> Callable[..., Group]:
    """Make a group: `group("bfloat16", 4)`."""
    return Group


@pytest.fixture(scope="session")
def generate() -> Callable[[Path], tuple[AllReduceSpec, list[GeneratedWorkload]]]:
    """The spec of a file, and what is generated from it."""
    return generated


@pytest.fixture(scope="session")
def bits() -> Callable[..., Any]:
    """Values as bits of a dtype."""
    return to_bits
