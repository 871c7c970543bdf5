"""What the evidence commands need of a family, and where they find it.

It is the module `evidence` of the family's package, and defines `EVIDENCE`. Beside `FamilyEvidence` it may have what
`ChannelEvidence`, `IntervalEvidence`, `tolerance.ToleranceEvidence` and `executable.ExecutableEvidence` ask for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..specs import Family
from ..table import Candidate, Part, Scope, Workload

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Call = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    """Inputs to outputs, both in the order of the op's signature, on torch's current stream."""


@dataclass(frozen=True)
class Case:
    """Seeded inputs for one call."""

    kind: str
    """Kind of the op."""
    inputs: str
    """Kind of values."""
    seed: int
    at: int | None = None
    """Value of the workload's interval; None where it has none, or its low end is meant."""
    on_emulator: bool | None = None
    """Whether the emulator runs it unasked; None leaves that to the rule of `verify_emulated.essential`."""
    exact_sums: bool = False
    """Whether no order of adding rounds: a candidate under a tolerance, too, must store the oracle's bits."""

    @property
    def name(self) -> str:
        """As `--case` takes it."""
        size = "" if self.at is None else f":{self.at}"
        return f"{self.kind}:{self.inputs}:{self.seed}{size}"


class Chain(Protocol):
    """Calls with distinct weights that are captured into one graph and timed."""

    @property
    def scope(self) -> Scope:
        """What a run of it covers."""

    @property
    def kind(self) -> str:
        """Kind of the op that its calls are."""

    @property
    def calls(self) -> int:
        """Calls in one run."""

    @property
    def bytes(self) -> int:
        """Fewest bytes that a run must move through device memory."""

    @property
    def flops(self) -> int:
        """Floating-point operations of a run; a fused multiply-add counts two."""

    def run(self, call: Call) -> list[Sequence[torch.Tensor]]:
        """The outputs of every call, in order."""

    def read(self) -> Callable[[], None]:
        """A function that only reads the same bytes: the floor."""


class FamilyEvidence(Protocol):
    """A family as the evidence commands see it."""

    def cases(self, workload: Workload, /) -> Iterator[Case]:
        """Inputs that a candidate must get right: zeros, tiny, huge, signed zeros, Inf and NaN, normal, ..."""

    def tensors(self, workload: Workload, case: Case, device: torch.device) -> Mapping[str, torch.Tensor]:
        """The inputs of a case by name."""

    def expected(
        self, workload: Workload, case: Case, bits: Mapping[str, NDArray[np.uint16]]
    ) -> Mapping[str, NDArray[np.uint16]]:
        """The array oracle's answer, outputs and intermediates, as bits, for inputs as bits."""

    def chain(self, workload: Workload, device: torch.device, seed: int) -> Chain:
        """What is timed; for a workload of several ranks it is `ChannelEvidence.chain_of_rank` instead."""

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Chain], Call]]:
        """What users run without us, by name; each is prepared for a chain, which may take seconds."""


@runtime_checkable
class ChannelEvidence(Protocol):
    """What the evidence of a family adds whose ranks talk over a channel.

    Its cases hold the tensors of all ranks, the rank as the first dimension; a tensor that all share has none. A
    tensor that no kernel takes and that has the name of a part of the channel's layout is in that part.
    """

    def call_before(self, case: Case) -> int | None:
        """Number of the call that a case's is to follow; None where it may follow any."""

    def after_call(self, workload: Workload, call: int, words: Any) -> None:
        """Make new channels look as after that call.

        `words` is int32 `[ranks, size / 4]`, all zeros, NumPy's or torch's, of all ranks or those of this process.
        """

    def most(self, workload: Workload, candidate: Candidate) -> int:
        """Largest value of the interval that a candidate could serve, whatever the thresholds say."""

    def chain_of_rank(self, workload: Workload, device: torch.device, seed: int, rank: int, at: int) -> Chain:
        """What a rank times for the value `at` of the workload's interval."""


@runtime_checkable
class ThresholdEvidence(ChannelEvidence, Protocol):
    """What the evidence of a family adds whose thresholds `kernwright tune` measures."""

    def sizes(self, workload: Workload) -> Sequence[int]:
        """Values of the workload's interval to measure all routes at, increasing."""


@runtime_checkable
class IntervalEvidence(Protocol):
    """What the evidence of a family adds that says itself where an interval is timed."""

    def timed_at(self, workload: Workload) -> Sequence[int]:
        """Values of the workload's interval that it is used with; a record is of the one with the least gain."""


class NoEvidence(Exception):
    """The family defines nothing that could be measured."""


def evidence_of(family: Family) -> FamilyEvidence:
    """The evidence of a family.

    Raises:
        NoEvidence: its evidence module isn't there.
    """
    try:
        module = importlib.import_module(family.evidence_module)
    except ModuleNotFoundError as error:
        if error.name != family.evidence_module:
            raise
        raise NoEvidence(
            f"family {family.name} has no module {family.evidence_module}, so there are no inputs to verify or "
            f"time it with; write one that defines EVIDENCE (see evidence/family_evidence.py)"
        ) from None
    return cast(FamilyEvidence, module.EVIDENCE)


def serves(workload: Workload, candidate: Candidate, case: Case) -> bool:
    """Whether a candidate may serve a case: on some device, the case's size lies in a part of its route."""
    if case.at is None or not workload.parts:
        return True
    return any(part.route == candidate.route and part.low <= case.at <= part.high for part in workload.parts)


def interval_of(workload: Workload) -> tuple[int, int] | None:
    """The workload's interval, if it holds more than one value."""
    found = workload.fields.get(workload.interval or "")
    return found if isinstance(found, tuple) and found[0] < found[1] else None


def parts_on(workload: Workload, device: str | None) -> tuple[Part, ...]:
    """The parts of a workload's interval on a device by its name; empty where all of it is one cell."""
    own = tuple(part for part in workload.parts if part.device == device)
    return own or tuple(part for part in workload.parts if part.device is None)


def in_channel(workload: Workload, taken: set[str], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a case that no kernel takes and that lie in a part of the channel of their name."""
    return {name: value for name, value in tensors.items() if name not in taken and name in workload.channel}
