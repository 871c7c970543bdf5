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
from ..specs import SpecFile, Workload, Workspace
from ..specs.shortform import ShortFormError, matching, parse


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


def load_dispatch(workspace: Workspace) -> ModuleType:
    """The generated dispatch module of a workspace.

    Raises:
        FileNotFoundError: nothing was generated yet.
    """
    path = workspace.generated / "dispatch.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path} doesn't exist; run `kernwright generate` first")
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
        ValueError: an unknown architecture, kind or policy.
    """
    dispatch = load_dispatch(workspace).DISPATCH
    workload, archs = _workload(question, specs)
    fields: dict[str, Any] = {
        name: value[0] if isinstance(value, tuple) else value for name, value in workload.fields().items()
    }
    short = parse(question.workload, specs).fields
    fields |= {name: value for name, value in short.items() if name in ("dtype", "tokens")}
    if question.tokens is not None:
        fields["tokens"] = question.tokens
    if question.dtype is not None:
        fields["dtype"] = question.dtype
    return [
        dispatch.explain_request(
            workload.family, fields, arch, kind=question.kind, policy=question.policy
        )
        for arch in archs
    ]


def _workload(question: Question, specs: Sequence[SpecFile]) -> tuple[Workload, tuple[str, ...]]:
    """The one workload meant, and the targets. Tokens and dtype are asked about, so they needn't match."""
    short = parse(question.workload, specs)
    found = matching(short, specs, ignoring=("dtype", "tokens"))
    wanted = question.dtype or short.fields.get("dtype")
    exact = [entry for entry in found if wanted in (None, entry.workload.dtype)]
    found = exact or found[:1]
    if len(found) != 1:
        names = ", ".join(f"{entry.spec.name} ({entry.workload.label()})" for entry in found)
        raise ShortFormError(
            f"{question.workload} fits {len(found)} workloads: {names}; add fields or --dtype until one is left"
        )
    archs = question.archs or ((short.arch,) if short.arch else found[0].spec.control.arch)
    return found[0].workload, archs
