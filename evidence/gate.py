"""The exactness gate: every value that a candidate stores, bit for bit, with poisoned buffers: run, replayed, called.

The control is compared with the array oracle, every other candidate with the control, in all buffers that both
have. What a kernel didn't write shows as the poison; inputs and the memory around every buffer must be as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..table import Workload
from .calls import CALLS, GRAPH_LAUNCH, results_of_calls
from .executable import Executable
from .family_evidence import Case, FamilyEvidence, in_channel
from .rank_context import RankContext
from .tensors import words

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

BORDER = 4096
"""Bytes of poison before and behind every buffer: a kernel that writes there is detected."""

POISON = 0x7E5A
"""A NaN in FP16 and a large number in BF16, with bits that no kernel computes."""


@dataclass(frozen=True)
class CaseMismatch:
    """The first value that differed."""

    case: Case
    how: str
    """`eager`, `graph`, or which call."""
    buffer: str
    index: tuple[int, ...]
    found: float
    found_bits: int
    expected: float
    expected_bits: int
    digits: int = 4
    """Hexadecimal digits of a value."""

    def __str__(self) -> str:
        return (
            f"{self.buffer}{list(self.index)} is {self.found!r} (0x{self.found_bits:0{self.digits}x}), expected "
            f"{self.expected!r} (0x{self.expected_bits:0{self.digits}x}), case {self.case.name}, {self.how}"
        )


@dataclass(frozen=True)
class Gate:
    """What the comparison found."""

    cases: int
    values: int
    mismatches: int
    first: CaseMismatch | None
    ways: tuple[str, ...] = ()
    """How it was run."""

    @property
    def exact(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.values > 0 and self.mismatches == 0

    def __add__(self, other: Gate) -> Gate:
        return Gate(
            self.cases + other.cases,
            self.values + other.values,
            self.mismatches + other.mismatches,
            self.first or other.first,
            tuple(dict.fromkeys((*self.ways, *other.ways))),
        )


NOTHING = Gate(0, 0, 0, None)


def check(
    load: Callable[[Case], Executable],
    expected_of: Callable[[Case, Tensors], Tensors],
    evidence: FamilyEvidence,
    workload: Workload,
    cases: Iterable[Case],
    place: RankContext,
    judge: Callable[[Case, str, Tensors, Tensors], Gate] | None = None,
) -> Gate:
    """Run all cases eagerly, in a graph that is captured once a kind and size and replayed, and by calls.

    `expected_of` gives what is right, of all ranks; `judge` compares it with what was stored, by default bit for bit.
    """
    judge = judge or compare
    found = NOTHING
    replay: Replay | None = None
    last: tuple[str, int | None] | None = None
    for case in sorted(cases, key=lambda case: (case.kind, case.at or 0)):  # one graph after the other
        given = evidence.tensors(workload, case, place.device)
        if replay is None or last != (case.kind, case.at):
            replay = Replay(load(case), place, workload).capture()
            last = case.kind, case.at
        expected = replay.shares(expected_of(case, given))
        place.begin(evidence, workload, case)
        for how, stored in replay.every_way(given):
            result = judge(case, how, _as_long(stored, expected), expected)
            damage = compare(case, how, *replay.left_alone(given))
            found += Gate(
                0, result.values, result.mismatches + damage.mismatches, result.first or damage.first
            )
        found += Gate(1, 0, 0, None, replay.ways)
    return found


class Replay:
    """A candidate with buffers of its own, and, once it is captured, a graph of it."""

    def __init__(self, plan: Executable, place: RankContext, workload: Workload) -> None:
        import torch

        self._plan, self._place, self._workload = plan, place, workload
        device = place.device
        self._inputs = {buffer.name for buffer in plan.signature.inputs}
        self._slabs = {
            buffer.name: torch.empty(buffer.nbytes + 2 * BORDER, dtype=torch.uint8, device=device)
            for buffer in plan.buffers
        }
        self._buffers = {
            buffer.name: self._slabs[buffer.name][BORDER:-BORDER]
            .view(getattr(torch, buffer.dtype))
            .view(buffer.shape)
            .zero_()
            for buffer in plan.buffers
        }

    def capture(self) -> Replay:
        """Capture the graph; gives itself."""
        import torch

        device = self._place.device
        self._plan.run(self._buffers)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._plan.run(self._buffers)
        return self

    def shares(self, expected: Tensors) -> Tensors:
        """This process's part of the answer for all ranks, by buffer."""
        found = {}
        for name, buffer in self._buffers.items():
            if name in expected:
                own = self._place.share(expected[name], buffer.numel())
                found[name] = own.view_as(buffer) if own.numel() == buffer.numel() else own
        return found

    def eager(self, given: Tensors) -> Tensors:
        """Launch on new inputs; gives every buffer that the kernels may write."""
        self._prepare(given)
        self._plan.run(self._buffers)
        return self._stored()

    def graph(self, given: Tensors) -> Tensors:
        self._prepare(given)
        self._graph.replay()
        return self._stored()

    def every_way(self, given: Tensors) -> Iterator[tuple[str, Tensors]]:
        """What is stored eagerly, by the graph, and by calls."""
        yield "eager", self.eager(given)
        yield "graph", self.graph(given)
        yield from self.calls(given, remembers=True)

    def calls(self, given: Tensors, *, remembers: bool) -> Iterator[tuple[str, Tensors]]:
        """The results of calls; see `results_of_calls`."""
        inputs, outputs = (
            [self._buffers[buffer.name] for buffer in buffers]
            for buffers in (self._plan.signature.inputs, self._plan.signature.outputs)
        )
        names = [buffer.name for buffer in self._plan.signature.outputs]
        for how, results in results_of_calls(
            self._plan, inputs, outputs, lambda: self._prepare(given), remembers=remembers
        ):
            yield how, dict(zip(names, results, strict=True))

    @property
    def ways(self) -> tuple[str, ...]:
        """How it has been run, once it was in every way."""
        launched = (GRAPH_LAUNCH,) if getattr(self._plan, "graphs", 0) else ()
        return ("eager", "graph", CALLS, *launched)

    def left_alone(self, given: Tensors) -> tuple[Tensors, Tensors]:
        """What no kernel may write, as 16-bit words, found and expected: the inputs, and every buffer's borders."""
        import torch

        found: dict[str, torch.Tensor] = {}
        expected: dict[str, torch.Tensor] = {}
        for name in self._inputs:
            found[f"input {name}"] = self._buffers[name].view(torch.int16)
            expected[f"input {name}"] = self._given(name, given).view(torch.int16)
        for name, slab in self._slabs.items():
            for place, border in (("before", slab[:BORDER]), ("behind", slab[-BORDER:])):
                found[f"memory {place} {name}"] = border.view(torch.int16)
                expected[f"memory {place} {name}"] = torch.full_like(border.view(torch.int16), POISON)
        return found, expected

    def _prepare(self, given: Tensors) -> None:
        for slab in self._slabs.values():
            poison(slab[:BORDER])
            poison(slab[-BORDER:])
        for name, buffer in self._buffers.items():
            if name in self._inputs:
                buffer.copy_(self._given(name, given))
            else:
                poison(buffer)
        for name, values in in_channel(self._workload, self._inputs, given).items():
            self._place.write(self._workload, name, values)

    def _given(self, name: str, given: Tensors) -> torch.Tensor:
        buffer = self._buffers[name]
        return self._place.share(given[name], buffer.numel()).view_as(buffer)

    def _stored(self) -> Tensors:
        return {name: buffer for name, buffer in self._buffers.items() if name not in self._inputs}


def _as_long(found: Tensors, expected: Tensors) -> Tensors:
    """Buffers as far as an answer goes: scratch has room for the largest call."""
    return {
        name: tensor
        if name not in expected or tensor.numel() <= expected[name].numel()
        else tensor.reshape(-1)[: expected[name].numel()]
        for name, tensor in found.items()
    }


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a tensor of a 16-bit or wider dtype with the poison's bits."""
    import torch

    tensor.view(torch.int16).fill_(POISON)


def compare(case: Case, how: str, found: Tensors, expected: Tensors) -> Gate:
    """Count differing values over the buffers that both sides have."""
    values, count, first = 0, 0, None
    for name in (name for name in found if name in expected):  # in a fixed order: the first is reported
        wrong = differing(found[name], expected[name])
        values += wrong.numel()
        here = int(wrong.sum())
        if here and first is None:
            first = mismatch(case, how, name, found[name], expected[name], wrong)
        count += here
    return Gate(1, values, count, first)


def differing(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where bits differ; a NaN equals any NaN, unless it is the poison; -0.0 isn't +0.0."""
    expected = expected.reshape(found.shape)
    return (words(found) != words(expected)) & ~(found.isnan() & expected.isnan() & ~poisoned(found))


def poisoned(found: torch.Tensor) -> torch.Tensor:
    return words(found) == int.from_bytes(
        POISON.to_bytes(2, "little") * (found.element_size() // 2), "little"
    )


def mismatch(
    case: Case, how: str, name: str, found: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor
) -> CaseMismatch:
    """The first value that is wrong, with both sides' bits."""
    index = tuple(int(place) for place in wrong.nonzero()[0])
    expected = expected.reshape(found.shape)
    mask = (1 << (8 * found.element_size())) - 1
    return CaseMismatch(
        case,
        how,
        name,
        index,
        float(found[index]),
        int(words(found)[index]) & mask,
        float(expected[index]),
        int(words(expected)[index]) & mask,
        2 * found.element_size(),
    )
