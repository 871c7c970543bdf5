"""The gate of candidates under a tolerance: FP64 instead of the control's bits, next to torch eager on equal inputs.

What stays bitwise is checked bitwise: a graph's replay gives what the eager launch gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..ledger import Closeness, Distance
from ..specs import ToleranceSpec
from ..table import Candidate, Workload
from .family_evidence import Case, FamilyEvidence, NoEvidence
from .gate import Gate, compare, differing, mismatch, poisoned
from .oracle.closeness import Bounds, distance, outside
from .tensors import as_torch, bits_of

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

AGAINST = "FP64"
EAGER = "eager"


@runtime_checkable
class ToleranceEvidence(Protocol):
    """What the evidence of a family adds whose candidates may be under a tolerance."""

    def truth(self, workload: Workload, case: Case, given: Tensors) -> Tensors:
        """FP64 with the contract's rounding points: every tensor that a candidate may store, by name, as float64."""

    def eager(self, workload: Workload, case: Case, given: Tensors) -> Tensors:
        """The results of torch's own operations and libraries, by name."""


class NearTruth:
    """The comparisons of one candidate: judges each, and keeps the largest distances."""

    def __init__(self, evidence: FamilyEvidence, workload: Workload, candidate: Candidate) -> None:
        """Read the candidate's bounds.

        Raises:
            NoEvidence: the family has no reference to compare such a candidate with.
            ValueError: the candidate states no bound.
        """
        if not isinstance(evidence, ToleranceEvidence):
            raise NoEvidence(
                f"candidate {candidate.name} of {workload.label} is under a tolerance, and family {workload.family} "
                "has no FP64 reference: define truth and eager in its EVIDENCE (see evidence/tolerance.py)"
            )
        self._family_evidence, self._workload = evidence, workload
        self._bounds = Bounds.of(candidate.tolerance)
        self._tolerance = ToleranceSpec(**candidate.tolerance)
        self._own: dict[str, float] = {}
        self._eager: dict[str, float] = {}
        self._launched: dict[str, torch.Tensor] = {}

    def expected(self, case: Case, given: Tensors) -> Tensors:
        """FP64's answer; torch eager's distance from it is noted. The oracle's, where no order of adding rounds."""
        if case.exact_sums:
            stored = self._family_evidence.expected(self._workload, case, bits_of(given))
            any_input = next(iter(given.values()))
            dtype = str(self._workload.fields["dtype"])
            return {name: as_torch(bits, dtype, any_input.device) for name, bits in stored.items()}
        truth = self._family_evidence.truth(self._workload, case, given)
        for name, tensor in self._family_evidence.eager(self._workload, case, given).items():
            _note(self._eager, name, distance(tensor, truth[name]))
        return truth

    def compare(self, case: Case, how: str, found: Tensors, truth: Tensors) -> Gate:
        """Count values outside the bounds, and, of a graph, those that aren't the eager launch's."""
        gate = Gate(1, 0, 0, None)
        for name in (name for name in found if name in truth):
            expected = truth[name].reshape(found[name].shape)
            _note(self._own, name, distance(found[name], expected))
            wrong = (
                differing(found[name], expected)
                if case.exact_sums
                else outside(found[name], expected, self._bounds) | poisoned(found[name])
            )
            first = mismatch(case, how, name, found[name], expected, wrong) if bool(wrong.any()) else None
            gate += Gate(0, wrong.numel(), int(wrong.sum()), first)
        if how == EAGER:
            self._launched = {name: found[name].clone() for name in found if name in truth}
            return gate
        again = compare(case, how, found, self._launched)
        return gate + Gate(0, 0, again.mismatches, again.first)

    @property
    def closeness(self) -> Closeness:
        return Closeness(
            tolerance=self._tolerance,
            distances={
                name: Distance(candidate=own, eager=self._eager.get(name)) for name, own in self._own.items()
            },
        )


def _note(largest: dict[str, float], name: str, found: float) -> None:
    # Inf isn't a number that a record holds; where it stands, values are outside as well.
    if found < float("inf"):
        largest[name] = max(largest.get(name, 0.0), found)


def under_tolerance(candidate: Candidate) -> bool:
    """Whether a candidate is compared with FP64 instead of the control's bits."""
    return candidate.contract != "exact"
