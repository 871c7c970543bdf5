"""From a spec file to the text of its kernels: one `.cu` a candidate and architecture."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from jinja2 import Environment

from ..compiler.nvrtc import FLAGS
from ..specs import CandidateSpec, External, Family, Spec, SpecFile, WorkloadSpec, digest
from ..table import Part
from .environment import render
from .lowering import Lowering, LoweringModule, NotGenerated, ScheduleError


@dataclass(frozen=True)
class Source:
    """The generated text of one candidate on one architecture."""

    path: str
    """Relative to the generated folder, with forward slashes."""
    text: str
    arch: str
    identity: str
    """Digest of canonical (workload, candidate, target)."""

    @property
    def sha256(self) -> str:
        """Digest of the text: the source's identity in the ledger and in the cubin cache."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class GeneratedCandidate:
    """A candidate with its kernels, launches and sources by architecture."""

    candidate: CandidateSpec
    lowering: Lowering
    symbols: Mapping[str, str]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class GeneratedWorkload:
    """One concrete workload with all its candidates, the control first."""

    spec: str
    workload: WorkloadSpec
    family: Family
    candidates: tuple[GeneratedCandidate, ...]
    parts: tuple[Part, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)
    """Functions of the dispatch module beside the op itself, by the op's methods."""

    @property
    def channel(self) -> Mapping[str, int]:
        """Layout of the memory in which ranks talk; the candidates' own, all of which are the same."""
        return self.candidates[0].lowering.channel


def generate_workloads(
    environment: Environment, spec_file: SpecFile, family: Family
) -> Iterator[GeneratedWorkload]:
    """Render every candidate of a spec file on every architecture it lists.

    Raises:
        NotGenerated: a route or option that this version has no templates for, or an external control.
        ScheduleError: a schedule that can't be built as asked.
    """
    schedule = _schedule(family)
    spec = spec_file.spec
    if isinstance(spec.control, External):
        raise NotGenerated(
            f"the control of spec {spec.name} is external ({spec.control.name}); this version dispatches only "
            f"where it generates the control: put a generated candidate first, and compare with your own kernel "
            f"by `kernwright bench --against`"
        )
    for workload in spec.workloads():
        candidates = tuple(
            _generate_candidate(environment, schedule, spec, workload, candidate)
            for candidate in spec.candidates
            if not isinstance(candidate, External)  # a team's own kernel: measured against, never generated
            and candidate.serves(workload)
        )
        split = getattr(schedule, "parts", lambda *_: ())
        functions = getattr(schedule, "FUNCTIONS", {})
        yield GeneratedWorkload(
            spec.name, workload, family, candidates, tuple(split(spec, workload)), functions
        )


def _schedule(family: Family) -> LoweringModule:
    try:
        return cast(LoweringModule, importlib.import_module(family.lowering_module))
    except ModuleNotFoundError as error:
        if error.name != family.lowering_module:
            raise
        raise NotGenerated(
            f"family {family.name} has no module {family.lowering_module}, which maps a schedule to kernels; add it"
        ) from None


def _generate_candidate(
    environment: Environment,
    schedule: LoweringModule,
    spec: Spec,
    workload: WorkloadSpec,
    candidate: CandidateSpec,
) -> GeneratedCandidate:
    try:
        lowering = schedule.lower(workload, candidate)
    except ScheduleError as error:
        raise ScheduleError(f"spec {spec.name}, {workload.label()}: {error}") from error
    # The candidate's name is in the symbol: a profiler then shows which one runs.
    symbols = {kernel: f"{spec.family}_{kernel}_{candidate.name}" for kernel in lowering.kernels}
    sources = []
    for arch in candidate.arch:
        identity = digest(spec.family, workload, candidate, arch)
        context = {
            **lowering.constants,
            "symbols": symbols,
            "family": spec.family,
            "workload_label": workload.label(),
            "candidate": candidate.name,
            "route": candidate.route,
            "arch": arch,
            "spec": spec.name,
            "digest": identity,
            "description": [*describe(workload, candidate), *describe_launches(lowering)],
            "flags": " ".join(FLAGS),
        }
        text = render(environment, lowering.template, context)
        path = f"{spec.family}/{spec.name}/{workload.label()}/{candidate.name}.{arch}.cu"
        sources.append(Source(path, text, arch, identity))
    return GeneratedCandidate(candidate, lowering, symbols, tuple(sources))


def describe(workload: WorkloadSpec, candidate: CandidateSpec) -> list[str]:
    """Comment lines that say what is computed and how, from typed fields only."""
    trees = ", ".join(
        f"{name} [{tree.segments}, {tree.lanes}, {tree.chunk}]" for name, tree in workload.trees().items()
    )
    schedule = ", ".join(
        f"{option} = {_plain(value)}"
        for option, value in candidate.schedule().items()
        if option not in ("name", "route")
    )
    fields = ", ".join(f"{name} = {_plain(value)}" for name, value in workload.fields().items())
    lines = [f"workload: {fields}", f"trees (segments, lanes, chunk): {trees}", f"schedule: {schedule}"]
    return lines if trees else [lines[0], lines[2]]  # a family may reduce without trees


def describe_launches(lowering: Lowering) -> list[str]:
    """Comment lines that say how the kernels are launched: a source's digest covers what runs, not the text alone."""
    lines = [f"scratch: {name} {list(shape)} {dtype}" for name, (shape, dtype) in lowering.scratch.items()]
    lines += [f"state: {name} {list(shape)} {dtype}" for name, (shape, dtype) in lowering.state.items()]
    lines += [f"argument: {kind} {name}" for name, kind in lowering.arguments.items()]
    for kind, kernels in lowering.steps.items():
        lines.append(f"{kind}: {' -> '.join(kernels)}")
    for name, launch in lowering.kernels.items():
        geometry = (
            f"grid {list(launch.grid)}, block {list(launch.block)}, dynamic shared {launch.shared_bytes}"
            f"{', programmatic' if launch.programmatic else ''}{', resident' if launch.resident else ''}"
        )
        lines.append(f"{name}({', '.join(launch.args)}): {geometry}")
    return lines


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        stated = [f"{key} = {_plain(item)}" for key, item in value.items() if item is not None]
        return "{ " + ", ".join(stated) + " }" if stated else "defaults"
    if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1]:
        return str(value[0])
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
