"""`kernwright verify --on cuda`: does every candidate store the control's bits on the GPU at hand?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.device import current, serves
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..runtime.plan import Plan
from ..runtime.table import Candidate, Workload
from .failure import Failure, leave
from .gate import Gate, Replay, check
from .subject import Case, Subject

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

ON_CUDA = "cuda"


@dataclass(frozen=True)
class Verification:
    """What was found of one candidate."""

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

    @property
    def passed(self) -> bool:
        """Whether every value compared was right, and there were some."""
        return self.gate.exact and not self.problem

    @property
    def failure(self) -> str:
        """A sentence for people; empty if it passed."""
        if self.passed:
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
        }
        if not self.passed:
            document |= {"problem": self.problem, "artefact": str(self.artefact)}
        return document


@dataclass(frozen=True)
class Wanted:
    """What to verify; an empty filter admits everything."""

    candidates: Sequence[str] = ()
    archs: Sequence[str] = ()
    """Builds; one that the device doesn't take itself runs as PTX, if its PTX can be had."""
    cases: Sequence[str] = ()


class NothingToVerify(ValueError):
    """The filters leave nothing, or name something that isn't there."""


def verify(
    dispatch: Dispatch,
    subject: Subject,
    workload: Workload,
    device: torch.device,
    wanted: Wanted,
    failures: Path,
    on_done: Callable[[Verification], None] = lambda _result: None,
) -> list[Verification]:
    """Verify candidates of a workload on a GPU, its control always; what fails leaves an artefact below `failures`.

    Raises:
        NothingToVerify: see there.
        LoadError: a build that was named can't be loaded here.
    """
    here = current(device)
    cases = chosen_cases(subject, workload, wanted)
    results = []
    builds = chosen_builds(workload, wanted, lambda candidate: _own(candidate, here.arch))
    for arch in _own(workload.control, here.arch):
        if (workload.control, arch) not in builds:  # a candidate that equals a wrong control is wrong
            builds.insert(0, (workload.control, arch))
    for candidate, arch in builds:
        result = verify_one(dispatch, subject, workload, candidate, arch, device, cases, failures)
        on_done(result)
        results.append(result)
    return results


def chosen_cases(subject: Subject, workload: Workload, wanted: Wanted) -> list[Case]:
    """The cases that were named, or all.

    Raises:
        NothingToVerify: one isn't there.
    """
    known = {case.name: case for case in subject.cases(workload)}
    for name in wanted.cases:
        if name not in known:
            raise NothingToVerify(f'there is no case "{name}"; there are {", ".join(known)}')
    return [known[name] for name in wanted.cases or known]


def chosen_builds(
    workload: Workload, wanted: Wanted, default: Callable[[Candidate], Sequence[str]]
) -> list[tuple[Candidate, str]]:
    """Candidates with their builds, as the filters have it; without one for builds, `default` says which.

    Raises:
        NothingToVerify: nothing is left.
    """
    chosen = [
        (candidate, arch)
        for candidate in workload.candidates
        if not wanted.candidates or candidate.name in wanted.candidates
        for arch in (
            [a for a in candidate.builds if a in wanted.archs] if wanted.archs else default(candidate)
        )
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
    subject: Subject,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    device: torch.device,
    cases: Sequence[Case],
    failures: Path | None,
) -> Verification:
    """One candidate's build: the control's against the array oracle, another's against the control."""
    here = current(device)
    control = workload.control
    is_control = candidate is control
    expected = oracle(subject, workload) if is_control else _control(dispatch, workload, here, device)
    start = time.perf_counter()
    gate = check(
        lambda kind: dispatch.plan_for(workload.name, candidate.name, arch, kind, here),
        expected,
        subject,
        workload,
        cases,
        device,
    )
    result = Verification(
        workload.label,
        candidate.name,
        arch,
        "array oracle" if is_control else f"control {control.name}",
        gate,
        tuple(sorted({case.seed for case in cases})),
        time.perf_counter() - start,
    )
    if gate.first is None:
        return result
    if failures is None:
        return replace(result, problem=str(gate.first))
    problem = f"{gate.mismatches} of {gate.values} values differ; {gate.first}"
    failure = Failure(workload.label, candidate.name, arch, ON_CUDA, problem, gate.first.case)
    inputs = subject.tensors(workload, gate.first.case, device)
    return replace(result, problem=problem, artefact=leave(failures, failure, inputs))


def oracle(subject: Subject, workload: Workload) -> Callable[[Case, Tensors], Tensors]:
    """The array oracle's answer, outputs and intermediates, computed on the inputs' own device."""

    def answer(case: Case, given: Tensors) -> Tensors:
        import cupy
        import torch

        bits = {name: cupy.from_dlpack(t.view(torch.int16)).view(cupy.uint16) for name, t in given.items()}
        dtype = next(iter(given.values())).dtype
        stored = subject.expected(workload, case, bits)
        return {
            name: torch.utils.dlpack.from_dlpack(value.view(cupy.int16)).view(dtype)
            for name, value in stored.items()
        }

    return answer


def _control(
    dispatch: Dispatch, workload: Workload, here: Any, device: torch.device
) -> Callable[[Case, Tensors], Tensors]:
    """What the control stores, eagerly, in buffers of its own."""
    replays: dict[str, Replay] = {}
    own = serves(workload.control.builds, here.arch)

    def answer(case: Case, given: Tensors) -> Tensors:
        if case.kind not in replays:
            if own is None:
                raise LoadError(f"the control of {workload.label} has no build for {here}")
            plan: Plan = dispatch.plan_for(workload.name, workload.control.name, own, case.kind, here)
            replays[case.kind] = Replay(plan, device)
        return {name: tensor.clone() for name, tensor in replays[case.kind].eager(given).items()}

    return answer


def _own(candidate: Candidate, device_arch: str | None) -> list[str]:
    """The build that the device takes."""
    own = serves(candidate.builds, device_arch)
    return [own] if own else []
