"""From a spec file to the text of its kernels: one `.cu` a candidate, shared by all that lower to the same.

Architectures share a text always, since the compiler alone tells them apart; cells do where a candidate is lowered
to the same template, numbers and launches for them. A candidate without a kernel of ours has no text.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from jinja2 import Environment

from ..compiler.nvrtc import FLAGS
from ..specs import CandidateSpec, External, Family, Spec, SpecFile, WorkloadSpec
from ..table import Part
from .environment import render
from .header import describe, describe_launches
from .identity import code_digest
from .lowering import Lowering, LoweringModule, NotGenerated, ScheduleError
from .tokens import token_digest


@dataclass(frozen=True)
class Source:
    """The code of one candidate on one architecture."""

    arch: str
    code: str
    """Digest of all that decides what runs (`identity`): records go by it."""
    path: str = ""
    """Relative to the generated folder, with forward slashes; empty where there is no kernel of ours."""
    text: str = ""
    sha256: str = ""
    """Digest of the text, by which the cubin cache, bundles and the loader know it."""


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
        NotGenerated: the family has no lowering.
        ScheduleError: a schedule of a family that its spec should have refused.
    """
    schedule = _schedule(family)
    spec = spec_file.spec
    workloads = spec.workloads()
    made: dict[str, list[GeneratedCandidate]] = {workload.label(): [] for workload in workloads}
    for candidate in spec.candidates:
        if isinstance(candidate, External):  # a team's own kernel: measured against, never generated
            continue
        served = [workload for workload in workloads if candidate.serves(workload)]
        for workload, generated in _generate_candidate(environment, schedule, spec, served, candidate):
            made[workload.label()].append(generated)
    split = getattr(schedule, "parts", lambda *_: ())
    functions = getattr(schedule, "FUNCTIONS", {})
    for workload in workloads:
        candidates, parts = tuple(made[workload.label()]), tuple(split(spec, workload))
        yield GeneratedWorkload(spec.name, workload, family, candidates, parts, functions)


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
    workloads: Sequence[WorkloadSpec],
    candidate: CandidateSpec,
) -> Iterator[tuple[WorkloadSpec, GeneratedCandidate]]:
    """Lower a candidate for each workload that it serves; those that share a text get the same one."""
    shared: list[tuple[Lowering, list[WorkloadSpec]]] = []
    for workload in workloads:
        try:
            lowering = schedule.lower(workload, candidate)
        except ScheduleError as error:
            raise ScheduleError(f"spec {spec.name}, {workload.label()}: {error}") from error
        for known, theirs in shared:
            if known == lowering and theirs[0].trees() == workload.trees():
                theirs.append(workload)
                break
        else:
            shared.append((lowering, [workload]))
    names = _file_names(candidate.name, workloads, [theirs for _, theirs in shared])
    for (lowering, theirs), name in zip(shared, names, strict=True):
        # The candidate's name is in the symbol: a profiler then shows which one runs.
        symbols = {kernel: f"{spec.family}_{kernel}_{candidate.name}" for kernel in lowering.kernels}
        text = _text(environment, spec, theirs, candidate, lowering, symbols) if symbols else ""
        tokens, sha256 = token_digest(text), hashlib.sha256(text.encode()).hexdigest()
        for workload in theirs:
            sources = []
            for arch in candidate.arch:
                code = code_digest(workload, candidate, lowering, symbols, tokens, arch)
                path = f"{spec.family}/{spec.name}/{name}.cu"
                sources.append(Source(arch, code, path, text, sha256) if text else Source(arch, code))
            yield workload, GeneratedCandidate(candidate, lowering, symbols, tuple(sources))


def _text(
    environment: Environment,
    spec: Spec,
    workloads: Sequence[WorkloadSpec],
    candidate: CandidateSpec,
    lowering: Lowering,
    symbols: Mapping[str, str],
) -> str:
    context = {
        **lowering.constants,
        "symbols": symbols,
        "family": spec.family,
        "candidate": candidate.name,
        "route": candidate.route,
        "spec": spec.name,
        "description": [*describe(workloads, candidate), *describe_launches(lowering)],
        "flags": " ".join(FLAGS),
    }
    return render(environment, lowering.template, context)


def _file_names(
    candidate: str, workloads: Sequence[WorkloadSpec], groups: Sequence[Sequence[WorkloadSpec]]
) -> list[str]:
    """A file name without suffix for each group of workloads: `wide`, or `wide.bf16-tp2`.

    Where a candidate has several texts, a name adds what a group's labels share and the others' don't all.
    """
    if len(groups) == 1:
        return [candidate]
    everywhere = set.intersection(*(set(workload.label().split("-")) for workload in workloads))
    own = []
    for theirs in groups:
        common = set.intersection(*(set(workload.label().split("-")) for workload in theirs))
        parts = theirs[0].label().split("-")
        own.append("-".join(part for part in parts if part in common - everywhere))
    if len(set(own)) < len(own) or not all(own):
        own = [theirs[0].label() for theirs in groups]
    return [f"{candidate}.{name}" for name in own]
