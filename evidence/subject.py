"""What the evidence commands need to know of a family, and where they find it.

A built-in family's subject is `evidence/families/<family>.py`, an external one's the module `evidence` of its
package. Both define `SUBJECT`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

from ..runtime.table import Workload
from ..specs import Family

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Call = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    """Inputs to outputs, both in the order of the op's signature, on torch's current stream."""

Scope = Literal["kernel", "boundary", "chain", "end_to_end"]
"""What a figure covers; figures of different scope are never subtracted."""


@dataclass(frozen=True)
class Case:
    """Seeded inputs for one call."""

    kind: str
    """Kind of the op."""
    inputs: str
    """Kind of values."""
    seed: int

    @property
    def name(self) -> str:
        """As `--case` takes it."""
        return f"{self.kind}:{self.inputs}:{self.seed}"


class Chain(Protocol):
    """Calls with distinct weights that are captured into one graph and timed."""

    @property
    def scope(self) -> Scope:
        """What a run of it covers."""

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
        """A function that merely reads the same bytes: the floor."""


class Subject(Protocol):
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
        """What is timed."""

    def peers(self, workload: Workload) -> Mapping[str, Callable[[Chain], Call]]:
        """What people run today, by name; each is prepared for a chain, which may take seconds."""


class NoSubject(Exception):
    """The family defines nothing that could be measured."""


def subject_of(family: Family) -> Subject:
    """The subject of a family.

    Raises:
        NoSubject: its evidence module isn't there.
    """
    try:
        module = importlib.import_module(family.evidence_module)
    except ModuleNotFoundError as error:
        if error.name != family.evidence_module:
            raise
        raise NoSubject(
            f"family {family.name} has no module {family.evidence_module}, so there are no inputs to verify or "
            f"time it with; write one that defines SUBJECT (see evidence/subject.py)"
        ) from None
    return cast(Subject, module.SUBJECT)
