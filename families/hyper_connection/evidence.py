"""The hyper-connection boundary as evidence: seeded cases, a decode step's chain of 96, its cost, its baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from ...evidence.family_evidence import Case, Chain, interval_of
from ...evidence.oracle.arrays import Bits
from ...evidence.tensors import array_library, as_torch
from ...table import Workload, low_end
from .inputs import INPUT_KINDS, InputKind, layer_weights, tensors, weights
from .oracle import boundary
from .oracle_shape import OracleShape

if TYPE_CHECKING:
    import torch

    from ...evidence.family_evidence import Call

BOUNDARIES = 96
"""Of a token: 48 layers, attention and MLP."""

MANY = 16
"""Tokens beyond which fewer cases are compared with the oracle, whose answers take long."""

SEEDS = {"boundary": (1, 2), "first": (3,), "combine": (4,), "final": (5,)}


def shape_of(workload: Workload, tokens: int | None = None) -> OracleShape:
    """The oracle's view of a workload; of an interval of tokens, for a call of so many, by default the fewest."""
    fields: Mapping[str, Any] = workload.fields
    sizes = {"tokens": tokens or low_end(fields["tokens"]), "world_size": 1}
    return OracleShape(**{**fields, **sizes}, trees=workload.trees)


class HyperConnectionEvidence:
    """See `evidence.family_evidence.FamilyEvidence`."""

    def cases(self, workload: Workload) -> Iterator[Case]:
        """Every kind of values for every kind of boundary; twice for the one that 95 of 96 are.

        Of an interval of tokens both ends and the middle; the emulator gets the fewest with all values, the most with
        normal ones. Of one that goes beyond 16 tokens, whose answers take long, only the fewest get everything, and
        the emulator gets one case of each kind.
        """
        tokens = interval_of(workload)
        if tokens is not None and tokens[1] > MANY:
            yield from _cases_of_many(*tokens)
            return
        for kind, seeds in SEEDS.items():
            for seed in seeds:
                for inputs in INPUT_KINDS:
                    if tokens is None:
                        yield Case(kind, inputs, seed)
                        continue
                    low, high = tokens
                    for at in sorted({low, (low + high) // 2, high}):
                        asked = inputs == "normal" if at != low else kind == "boundary"
                        first = seed == seeds[0] and at in (low, high)
                        yield Case(kind, inputs, seed, at, on_emulator=asked and first)

    def tensors(self, workload: Workload, case: Case, device: torch.device) -> Mapping[str, torch.Tensor]:
        """Inputs by name, from Philox words; weights are distinct for every case. Ranks share all of it."""
        shape, xp = shape_of(workload, case.at), array_library(device)
        bits = tensors(shape, cast(InputKind, case.inputs), case.seed, xp)
        if case.kind != "combine":
            bits |= weights(shape, case.seed, case.kind, xp)
        return {name: as_torch(value, shape.dtype, device) for name, value in bits.items()}

    def expected(self, workload: Workload, case: Case, bits: Mapping[str, Bits]) -> Mapping[str, Bits]:
        """All that the contract stores."""
        return boundary(shape_of(workload, case.at), bits, case.kind)

    def truth(
        self, workload: Workload, case: Case, given: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """FP64 with the contract's rounding points."""
        from .truth import boundary as exact

        return exact(shape_of(workload, case.at), given, case.kind)

    def eager(
        self, workload: Workload, case: Case, given: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """torch's own sums and its GEMM library, with the same rounding points."""
        from .reference import approximate

        return approximate(shape_of(workload, case.at), case.kind, dict(given))

    def chain(self, workload: Workload, device: torch.device, seed: int) -> Chain:
        """96 boundaries with distinct weights."""
        return BoundaryChain.make(workload, device, seed)

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Chain], Call]]:
        """torch eager, torch.compile and, where it is installed, three Triton kernels at their best tile sizes."""
        from . import baselines

        return baselines.of(shape_of(workload))


def _cases_of_many(low: int, high: int) -> Iterator[Case]:
    """All values and kinds for the fewest tokens; for more, normal values, and values that aren't numbers."""
    for kind, seeds in SEEDS.items():
        for inputs in INPUT_KINDS:
            yield Case(kind, inputs, seeds[0], low, on_emulator=inputs == "normal")
    for at, inputs in (((low + high) // 2, "nonfinite"), (high, "normal")):
        yield Case("boundary", inputs, 2, at, on_emulator=False)
    yield Case("final", "normal", 5, high - 1, on_emulator=False)


EVIDENCE = HyperConnectionEvidence()


@dataclass(frozen=True)
class BoundaryChain:
    """x is the next residual, block_input the next block, injection_out the next injection."""

    shape: OracleShape
    first: Sequence[torch.Tensor]
    """Residual, block and injection of the first boundary."""
    weights: Sequence[Sequence[torch.Tensor]]
    """Norm, down and up weight of each boundary."""
    scope: Literal["chain"] = "chain"
    kind: str = "boundary"

    @classmethod
    def make(
        cls, workload: Workload, device: torch.device, seed: int, calls: int = BOUNDARIES
    ) -> BoundaryChain:
        """Make the weights on the spot."""
        shape = shape_of(workload)
        xp = array_library(device)
        sets: list[Sequence[torch.Tensor]] = []
        for index in range(calls):
            bits = layer_weights(shape, seed + index, xp)
            sets.append([as_torch(value, shape.dtype, device) for value in bits.values()])
        return cls(shape, (), sets).of_tokens(shape.tokens, device, seed)

    def of_tokens(self, tokens: int, device: torch.device, seed: int) -> BoundaryChain:
        """The same weights for calls of another number of tokens."""
        shape = replace(self.shape, tokens=tokens)
        state = tensors(shape, "normal", seed, array_library(device))
        names = ("residual", "block", "injection")
        return replace(
            self, shape=shape, first=[as_torch(state[name], shape.dtype, device) for name in names]
        )

    @property
    def calls(self) -> int:
        """Boundaries in a run."""
        return len(self.weights)

    @property
    def bytes(self) -> int:
        """The rows of both weight matrices that are used, and the norm weights; the state is small beside them."""
        width, hidden = self.shape.width, self.shape.hidden
        rows = self.shape.down_rows(self.kind)
        norm = hidden if self.shape.norm_weight == "shared" else width
        return 2 * self.calls * (rows * width + width * self.shape.low_rank + norm)

    @property
    def flops(self) -> int:
        """Two for each element of the weight matrices and each token."""
        rows = self.shape.down_rows(self.kind) + self.shape.low_rank
        return 2 * self.calls * self.shape.tokens * self.shape.width * rows

    def run(self, call: Call) -> list[Sequence[torch.Tensor]]:
        """x, block_input and injection_out of every boundary."""
        results: list[Sequence[torch.Tensor]] = []
        state: Sequence[torch.Tensor] = self.first
        for weight_set in self.weights:
            state = call([*state, *weight_set])
            results.append(state)
        return results

    def read(self) -> Callable[[], None]:
        """Reads the weights' used rows from one block of memory of the same size."""
        from ...evidence.floor import reader

        return reader(self.bytes, self.first[0].device)
