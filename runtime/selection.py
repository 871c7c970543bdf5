"""The one function that decides which candidate serves a request; `explain` prints its decisions."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ..table import Build, Candidate, Contract, Table, Workload
from .communicator import Communicator
from .device import Device
from .eligibility import (
    CompilerOf,
    Conditions,
    Eligible,
    Rejected,
    Stage,
    Unusable,
    judge,
    part_for,
    unknown_compiler,
)
from .policy import Policy
from .request import Request


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided on one candidate, and why."""

    workload: str
    """The workload's label."""
    candidate: str
    accepted: bool
    """Whether it could serve this request here under this policy."""
    reason: str
    cause: str
    """What a rejection is counted under; empty where the candidate was accepted."""
    stage: Stage
    is_control: bool
    mismatches: int = 0
    """Fields of the request that the workload doesn't have so."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that serves, and the build that the device takes."""

    workload: Workload
    candidate: Candidate
    arch: str
    build: Build


@dataclass(frozen=True, slots=True)
class Selection:
    """The outcome: a candidate, or the torch reference where `chosen` is None."""

    request: Request
    device: Device
    policy: Policy
    chosen: Choice | None
    contract: Contract
    """What the chosen route promises."""
    decisions: tuple[Decision, ...]
    """One for each candidate of the family, in the table's order."""

    @property
    def fallback(self) -> Decision | None:
        """The rejection that explains the fallback best: of the control that came furthest.

        Every other candidate may be out for want of a record; what keeps the control out is the obstacle. Of
        several workloads that don't have the shape it is the one that is nearest.
        None where a candidate was chosen, where the family has none, and where the reference was asked for.
        """
        if self.chosen is not None or self.policy == "reference" or not self.decisions:
            return None
        controls = [decision for decision in self.decisions if decision.is_control]
        return max(controls, key=lambda decision: (decision.stage, -decision.mismatches))


def select(
    table: Table,
    request: Request,
    device: Device,
    policy: Policy,
    comm: Communicator | None = None,
    exact: bool = False,
    unusable: Unusable = MappingProxyType({}),
    compiler_of: CompilerOf = unknown_compiler,
) -> Selection:
    """Decide which candidate serves `request`; pure, so devices may be imagined.

    Order: candidates admitted on this kind of device by measured gain, be it for another compiler's machine code of
    the same source (a prior, and said to be one), those last that aren't confirmed against the winner; under policy
    `verified` the other verified ones in file order; the control; the torch reference. `exact` rules out candidates
    under a tolerance; `unusable` are builds that were found not to load on a device of this machine; `compiler_of`
    says which NVRTC's machine code would run.
    """
    given = Conditions(device, policy, comm, exact, unusable, compiler_of)
    judged = [
        (workload, candidate, judge(workload, candidate, request, given))
        for workload in table.workloads
        if workload.family == request.family
        for candidate in workload.candidates
    ]
    eligible = [(w, c, verdict) for w, c, verdict in judged if isinstance(verdict, Eligible)]
    # `min` keeps the first of equals, and `judged` is in file order.
    best = min(eligible, key=lambda entry: (entry[2].rank, -entry[2].gain), default=None)
    chosen = None if best is None else Choice(best[0], best[1], best[2].arch, best[2].build)
    return Selection(
        request=request,
        device=device,
        policy=policy,
        chosen=chosen,
        contract=chosen.candidate.contract if chosen else request.reference_contract,
        decisions=tuple(
            _decision(w, c, verdict, best, w.control_of(part_for(w, request, device)))
            for w, c, verdict in judged
        ),
    )


def _decision(
    workload: Workload,
    candidate: Candidate,
    verdict: Rejected | Eligible,
    best: tuple[Workload, Candidate, Eligible] | None,
    control: Candidate,
) -> Decision:
    label, name, is_control = workload.label, candidate.name, candidate is control
    if isinstance(verdict, Rejected):
        return Decision(
            label, name, False, verdict.reason, verdict.cause, verdict.stage, is_control, verdict.mismatches
        )
    assert best is not None
    if verdict is best[2]:
        reason = f"chosen: {verdict.standing}"
    else:
        reason = f"eligible: {verdict.standing}; {best[1].name} is preferred: {best[2].standing}"
    return Decision(label, name, True, reason, "", Stage.ELIGIBLE, is_control)
