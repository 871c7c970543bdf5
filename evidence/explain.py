"""Explaining a shape that nobody holds tensors of: from a short form to the dispatch module's own decision."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..runtime.explanation import Explanation
from ..specs import ShortForm, ShortFormError, Spec, SpecFile, Workload, Workspace, parse
from ..specs.shortform import matches


@dataclass(frozen=True)
class Question:
    """What `kernwright explain` asks; None leaves a field to the workload."""

    workload: str
    """A spec name or a short form."""
    archs: tuple[str, ...] = ()
    """Targets to explain for; by default the short form's, else all that the workload's control lists."""
    tokens: int | None = None
    dtype: str | None = None
    kind: str = "boundary"
    policy: str | None = None


class QuestionError(ValueError):
    """The question names something that dispatch doesn't know."""


def load_dispatch(workspace: Workspace) -> ModuleType:
    """The generated dispatch module of a workspace.

    Raises:
        QuestionError: nothing was generated yet.
    """
    path = workspace.generated / "dispatch.py"
    if not path.is_file():
        raise QuestionError(f"{path} doesn't exist; run `kernwright generate` first")
    if workspace.is_library:
        return importlib.import_module("..generated.dispatch", __package__)
    name = f"kernwright_workspace_{workspace.root.name}_dispatch"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def answer(question: Question, workspace: Workspace, specs: Sequence[SpecFile]) -> list[Explanation]:
    """One explanation an architecture, by the dispatch module's own selection.

    Raises:
        ShortFormError: no workload, or several, fit.
        QuestionError: an unknown architecture, dtype, kind or policy.
    """
    dispatch = load_dispatch(workspace).DISPATCH
    short = ShortForm(None, None, {}) if _named(question, specs) else parse(question.workload)
    spec, workload = _workload(question, short, specs)
    fields: dict[str, Any] = {
        name: value[0] if isinstance(value, tuple) else value for name, value in workload.fields().items()
    }
    asked = {workload.SHORT_FORM.get(prefix): wanted[0] for prefix, wanted in short.fields.items()}
    for name, value in (
        ("tokens", question.tokens or asked.get("tokens")),
        ("dtype", question.dtype or short.dtype),
    ):
        fields[name] = fields[name] if value is None else value
    archs = question.archs or ((short.arch,) if short.arch else spec.control.arch)
    try:
        return [
            dispatch.explain_request(spec.family, fields, arch, kind=question.kind, policy=question.policy)
            for arch in archs
        ]
    except (ValueError, TypeError) as error:
        raise QuestionError(str(error)) from error


def _named(question: Question, specs: Sequence[SpecFile]) -> list[SpecFile]:
    return [file for file in specs if file.spec.name == question.workload]


def _workload(question: Question, short: ShortForm, specs: Sequence[SpecFile]) -> tuple[Spec, Workload]:
    """The one workload meant. Tokens and dtype are what is asked about, so they needn't match."""
    found = [
        (file.spec, workload)
        for file in (_named(question, specs) or specs)
        for workload in file.spec.workloads()
        if matches(_without_tokens(short, workload), workload)
    ]
    wanted = question.dtype or short.dtype
    same_dtype = [entry for entry in found if wanted in (None, entry[1].dtype)]
    if len({spec.name for spec, _ in found}) == 1:
        found = same_dtype or found[:1]
    else:
        found = same_dtype
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{workload.label()} ({spec.name})" for spec, workload in found) or "none"
    raise ShortFormError(
        f'"{question.workload}" fits {len(found)} workloads: {names}; give the fields, or --dtype, of exactly one'
    )


def _without_tokens(short: ShortForm, workload: Workload) -> ShortForm:
    fields = {
        prefix: wanted
        for prefix, wanted in short.fields.items()
        if workload.SHORT_FORM.get(prefix) != "tokens"
    }
    return ShortForm(short.arch, None, fields)
