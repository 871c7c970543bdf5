"""Evidence of the all-reduce: payloads around every threshold, values of every kind, channels that wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...evidence.family_evidence import Case, Chain
from ...evidence.oracle.arrays import namespace
from ...evidence.tensors import array_library, as_torch
from ...table import ITEM_BYTES, Candidate, Workload
from .oracle import AnyBits, all_reduce, all_reduce_sum2
from .payloads import VALUE_KINDS, payloads

if TYPE_CHECKING:
    import torch

    from ...evidence.family_evidence import Call

SEEDS = {"staged": 1, "sum2": 2, "symmetric": 3}
LAST_EPOCH = 2**32 - 1
"""Epoch of the last call before epochs begin again; 0 is left out, and parity goes on alternating."""
WRAPS = "wrap"
"""Values of `mixed`, on a channel whose next call, or the one after it, is the first with a small epoch."""
EMULATED_BYTES = 128 * 1024
"""Largest payload that the emulator gets unasked, unless a part begins above it: a run stays within seconds."""
SMALLEST_TUNED = 1024
"""Bytes; what is smaller takes as long."""
VALUES_BYTES = 16 * 1024
"""About how large the payloads are that hold one kind of values alone."""


class AllReduceEvidence:
    """See `evidence.family_evidence.FamilyEvidence` and `ThresholdEvidence`."""

    def cases(self, workload: Workload) -> Iterator[Case]:
        """Of every part and operation: payloads at its ends, next to them and odd ones; then every kind of values.

        The emulator gets one of each operation unasked, one of which wraps: what is wrong at all shows at any
        size, and eight ranks of 64 CTAs take it seconds a call. Devices whose parts begin or end alike share cases.
        """
        return iter(dict.fromkeys(self._cases_of_parts(workload)))

    def _cases_of_parts(self, workload: Workload) -> Iterator[Case]:
        item = _item(workload)
        for low, high in _spans(workload):
            first, last = -(-low // item) * item, high // item * item
            small = max(first, min(last, EMULATED_BYTES) // item * item)
            odd = min(last, first + 3 * item)
            middle = max(first, min(last, VALUES_BYTES)) // item * item
            for kind in SEEDS:
                copied = kind == "staged"
                for size in sorted(
                    {first, min(last, first + item), odd, small, max(first, last - item), last}
                ):
                    yield Case(kind, "mixed", SEEDS[kind], size, on_emulator=size == odd and not copied)
                yield Case(kind, WRAPS, SEEDS[kind], small, on_emulator=copied)
                for values in VALUE_KINDS:
                    yield Case(kind, values, SEEDS[kind] + 10, middle, on_emulator=False)

    def tensors(self, workload: Workload, case: Case, device: torch.device) -> Mapping[str, torch.Tensor]:
        """`inputs` `[ranks, elements]`, for `sum2` also `addends`; without a copy-in they lie in the channel."""
        assert case.at is not None
        dtype, numel = str(workload.fields["dtype"]), case.at // _item(workload)
        xp, values = array_library(device), "mixed" if case.inputs == WRAPS else case.inputs
        roles: tuple[Any, ...] = ("inputs", "addends") if case.kind == "sum2" else ("inputs",)
        return {
            role: as_torch(
                payloads(dtype, values, case.seed, _ranks(workload), numel, role, xp), dtype, device
            )
            for role in roles
        }

    def expected(self, workload: Workload, case: Case, bits: Mapping[str, AnyBits]) -> Mapping[str, AnyBits]:
        """`outputs` `[ranks, elements]`: the same for every rank."""
        dtype, inputs = str(workload.fields["dtype"]), list(bits["inputs"])
        if case.kind == "sum2":
            total = all_reduce_sum2(inputs, list(bits["addends"]), dtype)
        else:
            total = all_reduce(inputs, dtype)
        return {"outputs": namespace(total).stack([total] * len(inputs))}

    def call_before(self, case: Case) -> int | None:
        """`LAST_EPOCH` for `wrap`."""
        return LAST_EPOCH if case.inputs == WRAPS else None

    def after_call(self, workload: Workload, call: int, words: Any) -> None:
        """The epoch and flags of that call, and in the packets of either parity the tags of its newest call."""
        offsets, ranks = workload.channel, _ranks(workload)
        words[:, offsets["ticket"] // 4 + 1] = _signed(call)
        words[:, offsets["flags"] // 4 + 1 : offsets["packets"] // 4 : 2] = _signed(call)
        begin, half = offsets["packets"] // 4, ranks * offsets["packet"] // 4
        for parity in (0, 1):
            newest = call if call % 2 == parity else call - 1
            tags = slice(begin + parity * half + 1, begin + (parity + 1) * half, 2)
            words[:, tags] = _signed(newest << 8 & 0xFFFFFFFF)

    def chain(self, workload: Workload, device: torch.device, seed: int) -> Chain:
        """What rank 0 times of the smallest payload."""
        return self.chain_of_rank(workload, device, seed, 0, _spans(workload)[0][0])

    def most(self, workload: Workload, candidate: Candidate) -> int:
        """The packets' payload for tagged words, else the channel's."""
        packets = candidate.route == "tagged_words"
        return int(str(workload.fields["packet_bytes"])) if packets else _interval(workload)[1]

    def sizes(self, workload: Workload) -> tuple[int, ...]:
        """See `grid`."""
        return grid(*_interval(workload))

    def chain_of_rank(self, workload: Workload, device: torch.device, seed: int, rank: int, at: int) -> Chain:
        """Twenty calls in a row, as a decode step makes them, on inputs of their own."""
        return Calls.make(workload, device, seed, rank, at)

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Chain], Call]]:
        """NCCL; for BF16 and FP32 also PyTorch's two all-reduces in symmetric memory."""
        from . import baselines

        return baselines.of(str(workload.fields["dtype"]))


EVIDENCE = AllReduceEvidence()


def grid(low: int, high: int) -> tuple[int, ...]:
    """Powers of two and the multiples of 3 between them, from `SMALLEST_TUNED` on, and the largest payload."""
    powers = [2**exponent for exponent in range(4, high.bit_length())]
    sizes = {
        size
        for power in powers
        for size in (power, power // 2 * 3)
        if max(low, SMALLEST_TUNED) <= size <= high
    }
    return tuple(sorted(sizes | {high // 16 * 16 or high}))


CALLS = 20
INPUT_BYTES = 256 * 1024 * 1024
"""All inputs of a chain together; beyond it calls share them."""


@dataclass(frozen=True)
class Calls:
    """All-reduces one after the other, none of which reads what another wrote."""

    inputs: tuple[torch.Tensor, ...]
    """A payload of this rank for each call, some of them the same tensor."""
    scope: Any = "chain"
    kind: str = "staged"

    @classmethod
    def make(cls, workload: Workload, device: torch.device, seed: int, rank: int, at: int) -> Calls:
        """Make the payloads; each rank makes those of all ranks and keeps its own."""
        dtype, numel = str(workload.fields["dtype"]), at // _item(workload)
        xp, count = array_library(device), max(2, min(CALLS, INPUT_BYTES // at))
        made = [
            as_torch(
                payloads(dtype, "normal", seed + index, _ranks(workload), numel, "inputs", xp)[rank],
                dtype,
                device,
            )
            for index in range(count)
        ]
        return cls(tuple(made[index % count] for index in range(CALLS)))

    @property
    def calls(self) -> int:
        """All-reduces in a run."""
        return len(self.inputs)

    @property
    def bytes(self) -> int:
        """Every payload is read and every sum written."""
        return 2 * sum(tensor.numel() * tensor.element_size() for tensor in self.inputs)

    @property
    def flops(self) -> int:
        """One addition for each peer's value isn't what costs time; none are counted."""
        return 0

    def run(self, call: Call) -> list[Any]:
        """The sums, in order."""
        return [call([tensor]) for tensor in self.inputs]

    def read(self) -> Callable[[], None]:
        """Reads as many bytes from memory of this rank."""
        from ...evidence.floor import reader

        return reader(max(self.bytes, 16), self.inputs[0].device)


def _item(workload: Workload) -> int:
    return ITEM_BYTES[str(workload.fields["dtype"])]


def _ranks(workload: Workload) -> int:
    return int(str(workload.fields["world_size"]))


def _spans(workload: Workload) -> list[tuple[int, int]]:
    """The parts of the payload interval, on every device that has some; all of it where there are none."""
    return list(dict.fromkeys(part.span for part in workload.parts)) or [_interval(workload)]


def _interval(workload: Workload) -> tuple[int, int]:
    interval = workload.fields["payload_bytes"]
    assert isinstance(interval, tuple)
    return interval


def _signed(word: int) -> int:
    """A 32-bit word as the signed integer of the same bits."""
    return word - 2**32 if word >= 2**31 else word
