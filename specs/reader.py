"""From spec files to checked specs: all problems of all files at once, never a traceback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .errors import Finding, Problem, SpecError, shown
from .family import families, spec_model
from .messages import findings_of, models_in, tagged, unknown_family
from .spec import CandidateSpec, Spec, WorkloadSpec
from .toml import Document, read_document
from .workspace import Workspace, find_workspace


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec and where it was read."""

    path: Path
    spec: Spec


def load_spec(path: Path, workspace: Workspace | None = None) -> SpecFile:
    """Read one spec file; by default the families are those of the workspace of its folder.

    Raises:
        SpecError: with every problem of the file.
    """
    return SpecFile(path, check_document(read_document(path), path, workspace or find_workspace(path.parent)))


def load_specs(workspace: Workspace, paths: Iterable[Path] | None = None) -> list[SpecFile]:
    """Read spec files, by default all of a workspace, sorted by path.

    Raises:
        SpecError: with every problem of every file.
    """
    files: list[SpecFile] = []
    problems: list[Problem] = []
    if paths is None and not workspace.specs.is_dir():
        message = "there is no such folder of spec files; create it, or correct `specs` in kernwright.toml."
        raise SpecError([Problem(str(workspace.specs), None, "", message)])
    chosen = (
        workspace.specs.rglob("*.toml")
        if paths is None
        else {path.resolve(): path for path in paths}.values()
    )
    for path in sorted(chosen):
        try:
            files.append(load_spec(path, workspace))
        except SpecError as error:
            problems += error.problems
    first: dict[str, SpecFile] = {}
    for file in files:
        other = first.setdefault(file.spec.name, file)
        if other is not file:
            message = f'"{file.spec.name}" is already the name of {other.path}; rename one of the specs.'
            problems.append(Problem(str(file.path), None, "name", message))
    if problems:
        raise SpecError(problems)
    return files


def check_document(document: Document, path: Path, workspace: Workspace) -> Spec:
    """Check a parsed file against its family's model and all rules.

    Raises:
        SpecError: with every problem of the file.
    """
    known = families(workspace)
    name = document.data.get("family")
    if not isinstance(name, str) or name not in known:
        missing = Finding(("family",), f'"family" is missing; the families are {", ".join(known)}.')
        finding = missing if name is None else Finding(("family",), unknown_family(name, known))
        raise SpecError(document.problems([finding]))
    model = spec_model(known[name])
    context = {"folder": path.parent}
    findings = list(_name_findings(document.data, path))
    try:
        spec = model.model_validate(document.data, context=context)
    except ValidationError as error:
        findings += findings_of(error, model, document.data)
        findings += _partial_findings(model, document.data, context)
    if findings:
        raise SpecError(document.problems(findings))
    return spec


def _name_findings(data: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    name = data.get("name")
    if isinstance(name, str) and path.name != f"{name}.toml":
        message = f'the file is called "{path.name}", but name is {shown(name)}; they must agree, rename one.'
        yield Finding(("name",), message)


def _partial_findings(
    model: type[Spec], data: Mapping[str, Any], context: Mapping[str, Any]
) -> list[Finding]:
    """Apply the rules to those parts of a broken file that are valid by themselves."""
    (workload_model,) = models_in(model.model_fields["workload"].annotation)
    routes = tagged(models_in(model.model_fields["candidate"].annotation))
    candidates: dict[int, CandidateSpec] = {}
    written = data.get("candidate")
    for index, part in enumerate(written if isinstance(written, list) else []):
        route = part.get("route") if isinstance(part, dict) else None
        if not isinstance(route, str) or route not in routes:
            continue
        try:
            candidate = routes[route].model_validate(part, context=context)
        except ValidationError:
            continue
        if isinstance(candidate, CandidateSpec):
            candidates[index] = candidate
    try:
        workload = workload_model.model_validate(data.get("workload"), context=context)
    except ValidationError:
        workload = None
    return list(model.findings(workload if isinstance(workload, WorkloadSpec) else None, candidates))
