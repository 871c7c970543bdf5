"""Ranks on the emulator: GEMMs that write partial sums to a channel, and the kernels that reduce them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernwright.emulator import Buffer, Launch, Object, compile_text
from kernwright.evidence.oracle import storage
from kernwright.evidence.oracle.all_reduce import all_reduce
from kernwright.generator.environment import make_environment
from kernwright.generator.families.linear_all_reduce import LinearLayout
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
    launches: list[Launch] = field(default_factory=list)
    expected: dict[Buffer, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entry = miniature()[self.dtype, self.ranks, 16]
        self.layout = LinearLayout.of(self.entry.workload)
        self.rng = np.random.default_rng(self.seed)
        size = self.layout.size
        self.channels = [Buffer.inout("channel", np.zeros(size, np.uint8), rank=r) for r in range(self.ranks)]
        slots = self.ranks * size
        self.fetched = [Buffer.inout("fetched", np.zeros(slots, np.uint8), rank=r) for r in range(self.ranks)]

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

    def call(self, name: str, slices: list[int], given: Any = None, *, skip: tuple[int, ...] = ()) -> list[Buffer]:
        """One call of slices of so many elements on all ranks but `skip`; gives the ranks' results."""
        total = sum(slices)
        partials = self.values(total) if given is None else given
        answer = all_reduce(list(partials), self.dtype)
        number = len(self.launches)
        results = [
            Buffer(f"result{number}", np.zeros(total, np.uint16), "out", rank, (), self.dtype)
            for rank in range(self.ranks)
        ]
        for rank in range(self.ranks):
            if rank not in skip:
                self.expected[results[rank]] = answer
                Rank(self, name, rank).call(partials[rank], results[rank], slices)
        return results

    def record(self, arrays: Any, rank: int) -> list[int]:
        words = arrays[self.channels[rank]].view(np.uint32)
        return words[self.layout.record // 4 :][:7].tolist()


class Rank:
    """One rank's launches."""

    def __init__(self, group: Ranks, name: str, rank: int) -> None:
        self.group, self.rank, self.name = group, rank, name
        self.made = group.candidate(name)
        self.kernel = group.kernel(name)
        self.layout = group.layout

    def call(self, partial: Any, result: Buffer, slices: list[int]) -> None:
        at = begin = 0
        places = []
        for numel in slices:
            places.append((begin, at, numel))
            self.produce(partial[begin : begin + numel], at)
            begin += numel
            at += -(-numel * 2 // 16) * 16
        stages = self.made.lowering.options.get("stages")
        for begin, at, numel in places:
            if stages is None:
                self.launch("reduce", result=result, begin_at=begin, numel=numel, at=at)
            else:
                self.exchange(result, begin, at, numel, stages)
        if stages is not None:
            self.launch("close", result=result, numel=sum(slices))

    def exchange(self, result: Buffer, begin: int, at: int, numel: int, stages: int) -> None:
        ranks, mine = self.group.ranks, self.rank
        part = numel if stages == 1 else -(-numel // (8 * ranks)) * 8
        spans = [(min(r * part, numel), min((r + 1) * part, numel)) for r in range(ranks)]
        low, high = (0, numel) if stages == 1 else spans[mine]
        where = self.layout.partials + at
        self.launch("meet")
        stride, fetched = self.layout.size // 2, self.group.fetched[mine]
        for peer in range(ranks):
            if peer != mine:
                source = self.group.channels[peer]
                self.copy(source, where + 2 * low, fetched, 2 * stride * peer, high - low)
        if high > low:
            self.launch(
                "add", at=at + 2 * low, fetched=fetched, stride=stride, result=result,
                begin_at=begin + low, numel=high - low,
            )  # fmt: skip
        if stages == 2:
            self.launch("meet")
            for peer in range(ranks):
                if peer != mine:
                    low, high = spans[peer]
                    self.copy(self.group.channels[peer], where + 2 * low, result, 2 * (begin + low), high - low)

    def produce(self, bits: Any, at: int) -> None:
        source = Buffer("partial", bits, "in", self.rank, (), self.group.dtype)
        self.copy(source, 0, self.group.channels[self.rank], self.layout.partials + at, len(bits))

    def copy(self, source: Buffer, from_: int, target: Buffer, to: int, numel: int) -> None:
        """What a copy engine does."""
        if numel > 0:
            args = (source, np.uint64(from_), target, np.uint64(to), np.uint32(numel))
            self.group.launches.append(Launch(helper("copy"), "copy", (1, 1, 1), (1, 1, 1), args, rank=self.rank))

    def launch(self, kernel: str, **given: Any) -> None:
        geometry = self.made.lowering.kernels[kernel]
        arguments: dict[str, Any] = {
            "channels": tuple(self.group.channels),
            "rank_base": np.uint32(self.rank),
            "timeout_ns": np.uint64(30 * SECOND),
        }
        types = {"numel": np.uint32, "at": np.uint64, "stride": np.uint64, "begin_at": np.uint64}
        for name, value in given.items():
            arguments[name] = types[name](value) if name in types else value
        args = tuple(arguments[name] for name in geometry.args)
        symbol = self.made.symbols[kernel]
        self.group.launches.append(
            Launch(self.kernel, symbol, geometry.grid, geometry.block, args, rank=self.rank)
        )


@pytest.fixture(scope="session")
def group() -> Callable[..., Ranks]:
    """Make ranks: `group(dtype, ranks)`."""
    return Ranks


@pytest.fixture(scope="session")
def generate() -> Callable[[Path], list[GeneratedWorkload]]:
    """What is generated from a spec file."""
    return generated
