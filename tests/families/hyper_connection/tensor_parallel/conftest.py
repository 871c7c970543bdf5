"""A group of ranks on the emulator: a channel each, calls of generated routes, and the oracle's answer for each."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.rank_group import Edit, RankGroup
from harness.workspaces import generated_workloads
from kernwright.emulator import DeviceBuffer, EmulatedLaunch
from kernwright.families.hyper_connection.channel_layout import HyperConnectionChannel
from kernwright.families.hyper_connection.inputs import tensors, weights
from kernwright.families.hyper_connection.oracle import boundary, mix, up
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.generator.sources import GeneratedWorkload
from kernwright.specs import find_workspace

HERE = Path(__file__).parent
WEIGHTS = ("norm_weight", "down_weight", "up_weight")
"""What local ranks share."""
PRODUCTS = {
    "combine_norm": ("x", "y"),
    "norm": ("y",),
    "combine": ("x",),
    "down": ("x", "y", "shard", "segment_sums", "lora", "injection_out"),
    "down_first": ("y", "shard", "segment_sums"),
    "down_final": ("x", "y", "shard", "final_segment_sums", "lora"),
    "gather_down": ("lora", "injection_out"),
    "gather_down_final": ("lora",),
    "up": ("gates",),
    "mix": ("block_input",),
    "up_mix": ("mixed", "block_input"),
    "gather": ("block_input",),
}
"""What a kernel stores, on one route or another."""


@functools.cache
def generated(path: Path) -> dict[str, GeneratedWorkload]:
    """What a spec file gives, by workload label."""
    _, entries = generated_workloads(path, "hyper_connection")
    return {entry.workload.label(): entry for entry in entries}


def shape_of(entry: GeneratedWorkload, tokens: int = 1) -> OracleShape:
    work: Any = entry.workload
    trees = {name: (tree.segments, tree.lanes, tree.chunk) for name, tree in work.trees().items()}
    sizes = (work.branches, work.hidden, work.low_rank, tokens)
    return OracleShape(work.dtype, *sizes, work.norm_weight, work.eps, trees=trees)


_ANSWERS: dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, Any]]] = {}


def answer(
    entry: GeneratedWorkload, kind: Any, inputs: Any, seed: int, tokens: int = 1
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seeded inputs with weights of their own, and all that the contract stores for them; computed once."""
    key = (entry.spec, entry.workload.label(), kind, inputs, seed, tokens)
    if key not in _ANSWERS:
        shape = shape_of(entry, tokens)
        if inputs == "cancelling":
            _ANSWERS[key] = cancelling(shape, seed)
            return _ANSWERS[key]
        given = tensors(shape, inputs, seed) | (weights(shape, seed, kind) if kind != "combine" else {})
        _ANSWERS[key] = given, boundary(shape, given, kind)
    return _ANSWERS[key]


def cancelling(shape: OracleShape, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """For up and what follows alone: products of +-2**24 and of 1, so that every order of adding them shows."""
    rng = np.random.default_rng(seed)
    rows = rng.permuted(
        np.tile(np.float16([4096, -4096, 2**-12, 2**-12]), (shape.width, shape.low_rank // 4)), axis=1
    )
    given = {"up_weight": rows.view(np.uint16)}
    lora = np.full((shape.tokens, shape.low_rank), 4096, np.float16).view(np.uint16)
    y = rng.standard_normal((shape.tokens, shape.width)).astype(np.float16).view(np.uint16)
    g = up(shape, lora, given["up_weight"])
    return given, {"lora": lora, "y": y, "g": g, "block_input": mix(shape, g, y)}


@dataclass
class Group(RankGroup):
    """Ranks that share a channel; `call` appends a boundary's launches and what each rank must store."""

    entry: GeneratedWorkload
    generation: int = 2
    """Of the first call; 2 is a new channel's."""
    calls: int = 0

    def __post_init__(self) -> None:
        self.shape = shape_of(self.entry)
        work: Any = self.entry.workload
        self.ranks = work.world_size
        self.layout = HyperConnectionChannel.of(work)
        self.channels = [
            DeviceBuffer.inout("channel", self.memory(), rank=rank) for rank in range(self.ranks)
        ]
        self.state: dict[tuple[str, str, int], DeviceBuffer] = {}

    def memory(self) -> Any:
        """A channel before its first call: slots have the tag of the generation two before."""
        memory = np.zeros(self.layout.size, np.uint8)
        words = memory.view(np.uint32)
        for exchange in self.layout.exchanges:
            words[exchange.at // 4 :][: exchange.counters] = (self.generation - 2) % 2**32
            slots = words[exchange.words_at // 4 :][: 2 * self.ranks * exchange.words]
            slots[:] = (self.generation - 2) % 2**16 << 16
        words[self.layout.more_counters // 4 :][:160] = (self.generation - 2) % 2**32
        return memory

    def call(
        self,
        name: str,
        kind: str = "boundary",
        inputs: str = "normal",
        seed: int = 1,
        *,
        skip: Sequence[int] = (),
        one_grid: bool = False,
        only: Sequence[str] = (),
        timeout_s: int = 30,
    ) -> list[dict[str, DeviceBuffer]]:
        """One boundary on all ranks but `skip`; gives each rank's buffers (local ranks: those of all, once).

        With `only`, just these kernels are launched, on what the others would have stored.
        """
        given, stored = answer(self.entry, kind, inputs, seed)
        everyone = [rank for rank in range(self.ranks) if rank not in skip]
        made = []
        for rank in [0] if one_grid else everyone:
            lowering = self.candidate(name).lowering
            steps = [step for step in lowering.steps[kind] if not only or step in only]
            buffers = self._buffers(name, steps, given, stored, rank, self.ranks if one_grid else 1)
            for step in steps:
                self.launch(name, step, buffers, rank, one_grid=one_grid, timeout_s=timeout_s)
            made.append(buffers)
        self.calls += 1
        return made

    def _buffers(
        self, name: str, steps: Sequence[str], given: Any, stored: Any, rank: int, ranks: int
    ) -> dict[str, DeviceBuffer]:
        dtype, number = self.shape.dtype, self.calls
        lowering = self.candidate(name).lowering
        produced = {tensor for step in steps for tensor in PRODUCTS[step]}
        buffers = {
            tensor: DeviceBuffer(
                tensor, bits if tensor in WEIGHTS else np.repeat(bits, ranks, 0), "in", rank, dtype
            )
            for tensor, bits in given.items()
        }
        used = {arg for step in steps for arg in lowering.kernels[step].args}
        for tensor in sorted(used - set(buffers) - set(lowering.arguments)):
            label = f"{tensor} of call {number}"
            if tensor in lowering.state:
                size = (ranks * int(np.prod(lowering.state[tensor][0])),)
                key = (name, tensor, rank)
                if key not in self.state:
                    self.state[key] = DeviceBuffer(tensor, np.zeros(size, np.int32), "inout", rank, "")
                buffers[tensor] = self.state[key]
                continue
            right = self._right(tensor, stored, range(ranks) if ranks > 1 else [rank])
            if right is not None and tensor not in produced:
                buffers[tensor] = DeviceBuffer(label, right, "in", rank, dtype)
            elif right is not None:
                buffers[tensor] = DeviceBuffer(label, np.empty_like(right), "out", rank, dtype)
                self.expected[buffers[tensor]] = right
            else:
                shape, kept_as = lowering.scratch[tensor]
                bits = np.empty((ranks, *shape), np.uint32 if kept_as == "float32" else np.uint16)
                buffers[tensor] = DeviceBuffer(label, bits, "out", rank, kept_as)
        return buffers

    def _right(self, tensor: str, stored: Any, ranks: Sequence[int]) -> Any:
        """What ranks must have stored in a buffer, one after the other; None for what isn't compared."""
        lora = stored.get("lora")
        if tensor in ("x", "y", "lora", "block_input", "injection_out"):
            parts = [stored[tensor][0] for _ in ranks]
        elif tensor == "shard":
            low, own = self.shape.low_rank // self.ranks, self.shape.branches // self.ranks
            injection = stored.get("injection_out", np.zeros((1, self.shape.branches), np.uint16))
            parts = [np.concatenate([lora[0, r * low :][:low], injection[0, r * own :][:own]]) for r in ranks]
        elif tensor == "gates":
            own = self.shape.width // self.ranks
            parts = [stored["g"][0, r * own :][:own] for r in ranks]
        elif tensor == "mixed":
            own = self.shape.hidden // self.ranks
            parts = [stored["block_input"][0, r * own :][:own] for r in ranks]
        else:
            return None
        return np.stack(parts)

    def counters(self, arrays: Any, rank: int) -> Iterator[set[int]]:
        """The generations that come next, by the counters of each exchange."""
        words = self.words(arrays, rank)
        for exchange in self.layout.exchanges:
            yield set((words[exchange.at // 4 :][: exchange.counters] + np.uint32(2)).tolist())
        yield set((words[self.layout.more_counters // 4 :][:160] + np.uint32(2)).tolist())


class SmallExchanges:
    """Kernels that only exchange, with 32 threads instead of 256, so that ThreadSanitizer holds several calls."""

    edits: tuple[Edit, ...] = (("constexpr int THREADS = 256;\n}", "constexpr int THREADS = 32;\n}"),)
    _SYMBOL = re.compile(r"hyper_connection_(gather|gather_down|gather_down_final|mix)_[a-z]")

    def launches(self, launches: Sequence[EmulatedLaunch]) -> list[EmulatedLaunch]:
        """The launches of the edited text."""
        return [
            replace(launch, block=(32, 1, 1)) if self._SYMBOL.match(launch.symbol) else launch
            for launch in launches
        ]


def mini(label: str, file: str = "mini4") -> GeneratedWorkload:
    return generated(HERE / "miniature" / f"{file}.toml")[label]


@pytest.fixture(scope="session")
def group() -> Callable[..., Group]:
    """Make a group of a miniature: `group("fp16-hc4-h256-n1-r320-tp4")`."""
    return lambda label, file="mini4", **options: Group(mini(label, file), **options)


@pytest.fixture(scope="session")
def library_group() -> Callable[..., Group]:
    """Make a group of a library workload: `library_group(label, spec)`."""
    specs = find_workspace().specs
    return lambda label, spec, **options: Group(generated(specs / f"{spec}.toml")[label], **options)


class Rows:
    """Workloads of several tokens, and the oracle's answer for them."""

    entry = staticmethod(mini)
    answer = staticmethod(answer)


@pytest.fixture(scope="session")
def rows() -> Rows:
    """For the tests of several tokens."""
    return Rows()


@pytest.fixture(scope="session")
def small_exchanges() -> SmallExchanges:
    """For race searches on the tiny miniature."""
    return SmallExchanges()


@pytest.fixture(scope="session")
def generate() -> Callable[[Path], dict[str, GeneratedWorkload]]:
    """What is generated from a spec file, by label."""
    return generated
