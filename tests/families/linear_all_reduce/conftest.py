"""Ranks on the emulator: GEMMs that write partial sums to a channel, and the kernels that reduce them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Object, compile_text
from kernwright.evidence.oracle import storage
from kernwright.families.all_reduce.oracle import all_reduce
from kernwright.families.linear_all_reduce.lowering import LinearLayout
from kernwright.families.linear_all_reduce.overlap.pipeline import run
from kernwright.families.linear_all_reduce.overlap.reductions import CopyReduction, KernelReduction
from kernwright.families.linear_all_reduce.overlap.rows import Slice, words_of
from kernwright.generator.environment import make_environment
from kernwright.generator.sources import GeneratedCandidate, GeneratedWorkload, generate_workloads
from kernwright.specs import families, find_workspace, load_spec

HERE = Path(__file__).parent
SECOND = 1_000_000_000
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


def helper(name: str) -> Object:
    return compile_text((HERE / "kernels" / f"{name}.cu").read_text(), f"{name}.cu")


@dataclass
class Ranks:
    """Ranks of one channel; calls append launches and what they must store. One stream a rank."""

    dtype: str = "bfloat16"
    ranks: int = 2
    edits: tuple[Edit, ...] = ()
    """Changes to every text; each must fit somewhere."""
    seed: int = 1
    launches: list[EmulatedLaunch] = field(default_factory=list)
    expected: dict[DeviceBuffer, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entry = miniature()[self.dtype, self.ranks, 16]
        self.layout = LinearLayout.of(self.entry.workload)
        self.rng = np.random.default_rng(self.seed)
        size = self.layout.size
        self.channels = [
            DeviceBuffer.inout("channel", np.zeros(size, np.uint8), rank=r) for r in range(self.ranks)
        ]
        slots = np.zeros(self.ranks * size, np.uint8)
        self.fetched = [
            [DeviceBuffer.inout("fetched", slots, rank=r) for _ in range(2)] for r in range(self.ranks)
        ]
        """For the two slices that take turns."""

    def candidate(self, name: str) -> GeneratedCandidate:
        return next(c for c in self.entry.candidates if c.candidate.name == name)

    def kernel(self, name: str) -> Object:
        text = self.candidate(name).sources[-1].text
        for old, new in self.edits:
            assert old in text, f"{old!r} isn't in the text of {name}"
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
        total = sum(slices)
        partials = self.values(total) if given is None else given
        answer = all_reduce(list(partials), self.dtype)
        number = len(self.launches)
        results = [
            DeviceBuffer(f"result{number}", np.zeros(total, np.uint16), "out", rank, (), self.dtype)
            for rank in range(self.ranks)
        ]
        for rank in range(self.ranks):
            if rank not in skip:
                self.expected[results[rank]] = answer
                Rank(self, name, rank, results[rank]).call(partials[rank], slices)
        return results

    def record(self, arrays: Any, rank: int) -> list[int]:
        words = arrays[self.channels[rank]].view(np.uint32)
        return words[self.layout.record // 4 :][:7].tolist()


class OneStream:
    """The emulator knows no events: streams of a rank are one, in the order in which things are enqueued."""

    def record(self, _event: object) -> None: ...

    def wait(self, _event: object) -> None: ...

    def enqueue(self) -> AbstractContextManager[None]:
        return nullcontext()


class OneLane:
    def __init__(self) -> None:
        self.main, self.side = OneStream(), OneStream()

    def events(self, count: int) -> list[None]:
        return [None] * count


class Rank:
    """One rank's launches, as the runtime's own reductions ask for them; memory is known by addresses."""

    def __init__(self, group: Ranks, name: str, rank: int, result: DeviceBuffer) -> None:
        self.group, self.rank = group, rank
        self.made = group.candidate(name)
        self.kernel = group.kernel(name)
        self.addresses = tuple((peer + 1) << 40 for peer in range(group.ranks))
        self.fetched = torch.empty(2 * group.ranks * group.layout.size, dtype=torch.uint8)
        self.result = torch.empty((result.array.size, 1), dtype=getattr(torch, group.dtype))
        self.places = [(address, group.channels[peer]) for peer, address in enumerate(self.addresses)]
        self.places.append((self.result.data_ptr(), result))
        self.memory = torch.empty(0)

    def call(self, partial: Any, numels: list[int]) -> None:
        begins = np.cumsum([0, *numels]).tolist()
        at, slices = 0, []
        for begin, end in pairwise(begins):
            slices.append(Slice(len(slices), begin, end, at))
            self.produce(partial[begin:end], at)
            at += words_of(2 * (end - begin)) * 16
        additions = self.made.lowering.options.get("additions", "side")
        run(slices, OneLane(), lambda _: None, self.reduction(tuple(slices)), additions)

    def reduction(self, slices: tuple[Slice, ...]) -> KernelReduction | CopyReduction:
        stages = self.made.lowering.options.get("stages")
        partials_at = self.group.layout.partials
        if stages is None:
            return KernelReduction(self, partials_at, self.result, self.launch)
        size = CopyReduction.fetched_bytes(slices, 1, 2, self.group.ranks, stages)
        fetched = self.fetched[:size]
        turns = [fetched.data_ptr(), fetched.data_ptr() + size // 2]
        self.places += zip(turns, self.group.fetched[self.rank], strict=True)
        return CopyReduction(self, partials_at, self.result, stages, fetched, self.launch, self.copy)

    def produce(self, bits: Any, at: int) -> None:
        """The GEMM of a slice."""
        source = DeviceBuffer("partial", bits, "in", self.rank, (), self.group.dtype)
        self.helper(source, 0, self.group.channels[self.rank], self.group.layout.partials + at, bits.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        """What a copy engine does."""
        self.helper(*self.place(source), *self.place(target), size)

    def place(self, address: int) -> tuple[DeviceBuffer, int]:
        """The buffer that an address lies in, and where."""
        begin, buffer = max(place for place in self.places if place[0] <= address)
        assert address - begin < buffer.array.nbytes
        return buffer, address - begin

    def helper(self, source: DeviceBuffer, from_: int, target: DeviceBuffer, to: int, size: int) -> None:
        args = (source, np.uint64(from_), target, np.uint64(to), np.uint32(size // 2))
        one = (1, 1, 1)
        self.group.launches.append(EmulatedLaunch(helper("copy"), "copy", one, one, args, rank=self.rank))

    def launch(self, kernel: str, **given: int) -> None:
        geometry = self.made.lowering.kernels[kernel]
        types = {"numel": np.uint32, "at": np.uint64, "stride": np.uint64, "begin_at": np.uint64}
        arguments: dict[str, Any] = {
            "channels": tuple(self.group.channels),
            "rank_base": np.uint32(self.rank),
            "timeout_ns": np.uint64(30 * SECOND),
        }
        for name, value in given.items():
            arguments[name] = types[name](value) if name in types else self.place(value)[0]
        args = tuple(arguments[name] for name in geometry.args)
        symbol = self.made.symbols[kernel]
        self.group.launches.append(
            EmulatedLaunch(self.kernel, symbol, geometry.grid, geometry.block, args, rank=self.rank)
        )


@pytest.fixture(scope="session")
def group() -> Callable[..., Ranks]:
    """Make ranks: `group(dtype, ranks)`."""
    return Ranks


@pytest.fixture(scope="session")
def generate() -> Callable[[Path], list[GeneratedWorkload]]:
    """What is generated from a spec file."""
    return generated
