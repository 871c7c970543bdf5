"""`kernwright verify --on cuda`: whether every candidate stores the control's bits on this machine's GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ledger import Closeness
from ..runtime.device import serves as served_by
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..table import Candidate, Workload
from .executable import Executable, ExecutableEvidence, executable, splits_tensors
from .failure import Failure, leave
from .family_evidence import Case, FamilyEvidence, serves
from .gate import NOTHING, Gate, Replay, check
from .rank_context import RankContext
from .ranks import agreed, total
from .tensors import as_torch, bits_of
from .tolerance import AGAINST as TRUTH
from .tolerance import NearTruth, under_tolerance

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

ON_CUDA = "cuda"


@dataclass(frozen=True)
class Verification:
    workload: str
    candidate: str
    arch: str
    against: str
    gate: Gate
    seeds: tuple[int, ...]
    seconds: float
    problem: str = ""
    """What is wrong, in words; empty if nothing is."""
    artefact: Path | None = None
    on: str = ON_CUDA
    cached: bool = False
    """Whether it was remembered from an earlier run on the same sources."""
    skipped: str = ""
    """Why nothing was run, in a sentence; empty if something was."""
    closeness: Closeness | None = None
    """How near to FP64 a candidate under a tolerance was found; None of an exact one."""

    @property
    def passed(self) -> bool:
        """Whether every value compared was right, and there were some."""
        return self.gate.exact and not self.problem

    @property
    def failure(self) -> str:
        """A sentence for users; empty if it passed, or wasn't run."""
        if self.passed or self.skipped:
            return ""
        where = f"{self.workload}, candidate {self.candidate}, {self.arch}"
        left = f"; inputs and the command that repeats it are in {self.artefact}" if self.artefact else ""
        return f"{where}: {self.problem or 'nothing was compared'}{left}"

    def to_json(self) -> dict[str, Any]:
        """`{workload, candidate, arch, on, cases, outputs, mismatches, seeds, seconds}` and, if it failed, more."""
        document: dict[str, Any] = {
            "workload": self.workload,
            "candidate": self.candidate,
            "arch": self.arch,
            "on": self.on,
            "against": self.against,
            "cases": self.gate.cases,
            "outputs": self.gate.values,
            "mismatches": self.gate.mismatches,
            "seeds": list(self.seeds),
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
            "ways": list(self.gate.ways),
        }
        if self.closeness is not None:
            document |= {"contract": "tolerance", **self.closeness.model_dump(mode="json", exclude_none=True)}
        if self.skipped:
            document["skipped"] = self.skipped
        elif not self.passed:
            document |= {"problem": self.problem, "artefact": str(self.artefact)}
        return document


@dataclass(frozen=True)
class Wanted:
    """What to verify; an empty filter admits everything."""

    candidates: Sequence[str] = ()
    archs: Sequence[str] = ()
    """Builds; one that the device doesn't take itself runs as PTX, if PTX can be made."""
    cases: Sequence[str] = ()


class NothingToVerify(ValueError):
    """The filters leave nothing, or name something that isn't there."""


def verify(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    place: RankContext,
    wanted: Wanted,
    failures: Path,
    on_done: Callable[[Verification], None] = lambda _result: None,
) -> list[Verification]:
    """Verify candidates of a workload on a GPU, its control always; what fails leaves an artefact below `failures`.

    Raises:
        NothingToVerify: see there.
        LoadError: a build that was named can't be loaded here.
    """
    here = place.here
    cases = chosen_cases(evidence, workload, wanted)
    results = []
    builds = chosen_builds(workload, wanted, lambda candidate: served_by(candidate.builds, here.arch))
    arch = served_by(workload.control.builds, here.arch)
    if arch is not None and (workload.control, arch) not in builds:
        builds.insert(0, (workload.control, arch))  # a candidate that equals a wrong control is wrong
    for candidate, arch in builds:
        result = verify_one(dispatch, evidence, workload, candidate, arch, place, cases, failures)
        on_done(result)
        results.append(result)
    return results


def skipped(workload: Workload, reason: str, on: str = ON_CUDA) -> Verification:
    """The result for a workload of which nothing is run."""
    return Verification(workload.label, "", "", "", NOTHING, (), 0.0, on=on, skipped=reason)


def unasked(workload: Workload, candidate: Candidate) -> str:
    """Why a candidate gets no case."""
    return (
        f"no {workload.interval} of {workload.label} takes route {candidate.route}, by the thresholds of spec "
        f"{workload.spec}; candidate {candidate.name} has nothing to show"
    )


def chosen_cases(evidence: FamilyEvidence, workload: Workload, wanted: Wanted) -> list[Case]:
    """The cases that were named, or all.

    Raises:
        NothingToVerify: one isn't there.
    """
    known = {case.name: case for case in evidence.cases(workload)}
    for name in wanted.cases:
        if name not in known:
            raise NothingToVerify(f'there is no case "{name}"; there are {", ".join(known)}')
    return [known[name] for name in wanted.cases or known]


def chosen_builds(
    workload: Workload, wanted: Wanted, default: Callable[[Candidate], str | None]
) -> list[tuple[Candidate, str]]:
    """Candidates with their builds, as the filters have it; without one for builds, the `default` of each.

    Raises:
        NothingToVerify: nothing is left.
    """
    chosen = [
        (candidate, arch)
        for candidate in workload.candidates
        if not wanted.candidates or candidate.name in wanted.candidates
        for arch in candidate.builds
        if arch in (wanted.archs or (default(candidate),))
    ]
    if not chosen:
        names = ", ".join(candidate.name for candidate in workload.candidates)
        archs = ", ".join(workload.control.builds)
        raise NothingToVerify(
            f"nothing of {workload.label} is left to verify: its candidates are {names}, built for {archs}"
        )
    return chosen


def verify_one(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    place: RankContext,
    cases: Sequence[Case],
    failures: Path | None,
) -> Verification:
    """One candidate's build: the control's against the array oracle, another's against the control, or against FP64.

    If thresholds split the workload, every candidate is compared with the oracle, in its own part. Ranks in several
    processes check their own output each, and all come to the same conclusion.

    Raises:
        LoadError: the build doesn't load; where the ranks share a GPU that doesn't hold them, that is said instead.
    """
    own = [case for case in cases if serves(workload, candidate, case)]
    told = Verification(workload.label, candidate.name, arch, "", NOTHING, (), 0.0)
    if not own:
        return replace(told, skipped=unasked(workload, candidate))
    alone = place.is_local and not isinstance(evidence, ExecutableEvidence)
    if alone and candidate.capabilities and not splits_tensors(candidate):
        return replace(
            told,
            skipped=f"{candidate.name} of {workload.label} takes one tensor of each kind, so its ranks can't share a "
            "process here: verify it under torchrun, with a GPU a rank",
        )
    by_oracle = candidate is workload.control or bool(workload.parts)
    near = NearTruth(evidence, workload, candidate) if under_tolerance(candidate) else None
    against = "array oracle" if by_oracle else f"control {workload.control.name}"
    against = TRUTH if near else against
    told = replace(told, against=against, seeds=tuple(sorted({case.seed for case in own})))
    here = place.here
    expected: Callable[[Case, Tensors], Tensors]
    if near is not None:
        expected = near.expected
    elif by_oracle:
        expected = oracle(evidence, workload)
    else:
        expected = _control(dispatch, workload, here, place)
    start = time.perf_counter()

    def load(case: Case) -> Executable:
        return executable(dispatch, evidence, workload, candidate, arch, case.kind, case.at, here, place)

    broken = None
    try:
        load(own[0])
    except LoadError as error:
        broken = str(error)
    broken = agreed(broken)  # a rank that left alone would leave the others in the first case
    if broken is not None:
        if not place.is_local:
            raise LoadError(broken)
        return replace(
            told, skipped=f"{candidate.name} of {workload.label} can't run as local ranks: {broken}"
        )
    judge = None if near is None else near.compare
    gate = check(load, expected, evidence, workload, own, place, judge)
    problem, artefact = "", None
    if gate.first is not None:
        differ = "differ" if near is None else f"lie outside {near.closeness.bounds}"
        problem = f"{gate.mismatches} of {gate.values} values {differ}; {gate.first}"
        if failures is not None:
            failure = Failure(workload.label, candidate.name, arch, ON_CUDA, problem, gate.first.case)
            artefact = leave(failures, failure, evidence.tensors(workload, gate.first.case, place.device))
    broken = agreed(place.problem())
    if broken and place.comm is not None:
        place.comm.reset()
    problem = agreed(problem or None) or broken or ""
    whole = replace(gate, values=total(gate.values), mismatches=total(gate.mismatches))
    seconds = time.perf_counter() - start
    closeness = None if near is None else near.closeness
    return replace(told, gate=whole, seconds=seconds, problem=problem, artefact=artefact, closeness=closeness)


def oracle(evidence: FamilyEvidence, workload: Workload) -> Callable[[Case, Tensors], Tensors]:
    """The array oracle's answer, outputs and intermediates, computed on the inputs' own device."""

    def answer(case: Case, given: Tensors) -> Tensors:
        tensor = next(iter(given.values()))
        dtype = str(tensor.dtype).removeprefix("torch.")
        stored = evidence.expected(workload, case, bits_of(given))
        return {name: as_torch(value, dtype, tensor.device) for name, value in stored.items()}

    return answer


def _control(
    dispatch: Dispatch, workload: Workload, here: Any, place: RankContext
) -> Callable[[Case, Tensors], Tensors]:
    """What the control stores, eagerly, in buffers of its own."""
    replays: dict[tuple[str, int | None], Replay] = {}
    own = served_by(workload.control.builds, here.arch)

    def answer(case: Case, given: Tensors) -> Tensors:
        key = case.kind, case.at
        if key not in replays:
            if own is None:
                raise LoadError(f"the control of {workload.label} has no build for {here}")
            name = workload.control.name
            plan = dispatch.plan_named(workload.name, name, own, case.kind, here, comm=place.comm, at=case.at)
            replays.clear()  # cases of a key follow each other
            replays[key] = Replay(plan, place, workload)
        return {name: tensor.clone() for name, tensor in replays[key].eager(given).items()}

    return answer
