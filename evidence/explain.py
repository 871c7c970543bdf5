"""Explaining a shape without tensors: the dispatch module's own decision for a short form."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..runtime.communicator import imagined
from ..runtime.device import Device
from ..runtime.dispatch import Dispatch
from ..runtime.errors import FormatMismatch
from ..runtime.explanation import Explanation
from ..specs import SHORT_DTYPE, ShortForm, ShortFormError, SpecFile, Workspace, matching, parse
from ..specs.errors import listing
from ..specs.shortform import Match
from ..table import FieldValue

LONG_DTYPE = {short: dtype for dtype, short in SHORT_DTYPE.items()}

ASKED = ("dtype", "tokens")
"""Fields that a question may state although no spec serves the value."""


@dataclass(frozen=True)
class Question:
    """What `kernwright explain` asks; None leaves a field to the workload."""

    workload: str
    """A spec name or a short form."""
    archs: tuple[str, ...] = ()
    """Targets to explain for; by default the short form's, else all that the workload's control lists."""
    tokens: int | None = None
    dtype: str | None = None
    kind: str | None = None
    policy: str | None = None
    device: str | None = None
    """Name of a GPU that the ledger has records of, for its SM count and architecture."""


class QuestionError(ValueError):
    """The question names something that the dispatch table doesn't have."""


def load_dispatch(workspace: Workspace) -> ModuleType:
    """The generated dispatch module of a workspace.

    Raises:
        QuestionError: nothing was generated yet, or by another version, or it was damaged since.
    """
    path = workspace.generated / "dispatch.py"
    if not path.is_file():
        raise QuestionError(f"{path} doesn't exist; run `kernwright generate` first")
    try:
        return _import_dispatch(workspace, path)
    except FormatMismatch as error:
        raise QuestionError(f"{path}: {error}") from error
    except SyntaxError as error:
        raise QuestionError(f"{path} is damaged ({error}); run `kernwright generate`") from error


def _import_dispatch(workspace: Workspace, path: Path) -> ModuleType:
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
    if question.dtype not in (None, *SHORT_DTYPE):
        raise QuestionError(f'the dtype is "{question.dtype}"; allowed are {listing(SHORT_DTYPE)}')
    dispatch: Dispatch = load_dispatch(workspace).DISPATCH
    short = parse(question.workload, specs)
    asked = {name: value for name, value in short.fields.items() if name in ASKED}
    asked |= {name: value for name in ASKED if (value := getattr(question, name)) is not None}
    if "dtype" in asked:
        asked["dtype"] = LONG_DTYPE.get(str(asked["dtype"]), asked["dtype"])
    _check_places(question, short)
    match = _workload(question.workload, short, asked, specs)
    own = match.workload.fields()
    asked |= {name: value for name, value in short.fields.items() if isinstance(own.get(name), tuple)}
    fields = {**_plain(own), **_plain(asked)}
    work = next(w for w in dispatch.table.workloads if w.spec == match.spec.name)
    kind = question.kind or next(iter(work.control.steps))
    ranks = match.workload.world_size
    archs = question.archs or ((short.arch,) if short.arch else match.spec.control.arch)
    places: Sequence[Device | str] = archs
    if question.device is not None:
        places = [_recorded(dispatch, question.device)]
    try:
        return [
            dispatch.explain_request(
                match.spec.family,
                fields,
                place,
                kind=kind,
                policy=question.policy,
                comm=imagined(dispatch.table, match.spec.name, ranks) if ranks > 1 else None,
            )
            for place in places
        ]
    except (ValueError, TypeError) as error:
        raise QuestionError(str(error)) from error


def _check_places(question: Question, short: ShortForm) -> None:
    """Refuse a question that names several places to answer for."""
    places = [f"--arch {arch}" for arch in question.archs]
    places += [f"{short.arch} in {short.text}"] if short.arch and [short.arch] != list(question.archs) else []
    if question.device is not None and places:
        raise QuestionError(
            f"--device {question.device} and {places[0]} contradict each other; give one of them"
        )
    if question.archs and len(places) > len(question.archs):
        raise QuestionError(f"{places[0]} and {places[-1]} contradict each other; give one of them")


def recorded_devices(workspace: Workspace) -> dict[str, list[str]]:
    """Names of the GPUs that the dispatch module has records of, by architecture."""
    dispatch: Dispatch = load_dispatch(workspace).DISPATCH
    kinds = {record.device for work in dispatch.table.workloads for record in work.records}
    found: dict[str, list[str]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.name):
        found.setdefault(kind.arch, []).append(kind.name)
    return found


def _recorded(dispatch: Dispatch, name: str) -> Device:
    """The device of that name, as records describe it."""
    kinds = {
        record.device.name: record.device for work in dispatch.table.workloads for record in work.records
    }
    if name not in kinds:
        known = listing(sorted(kinds)) or "none"
        raise QuestionError(f'the ledger has no records of a device "{name}"; it has {known}')
    kind = kinds[name]
    return Device(kind.arch, kind.sm_count, kind.name)


def _holds(interval: FieldValue | None, value: FieldValue) -> bool:
    """Whether a workload's interval contains the number of the question."""
    return isinstance(interval, tuple) and isinstance(value, int) and interval[0] <= value <= interval[1]


def _workload(
    text: str, short: ShortForm, asked: Mapping[str, FieldValue], specs: Sequence[SpecFile]
) -> Match:
    """The one workload meant. The question states tokens and dtype, so a spec needn't serve them."""
    found = matching(short, specs, ignoring=ASKED)
    served = [match for match in found if asked.get("dtype") in (None, match.workload.dtype)]
    if not served and len({match.spec.name for match in found}) == 1:
        served = found[:1]
    # Several specs may have the shape for different numbers of tokens: who serves those asked about is meant.
    tokens = asked.get("tokens", 1)
    exact = [match for match in served if _holds(match.workload.fields().get("tokens"), tokens)]
    if len(served) > 1 and len(exact) == 1:
        served = exact
    if len(served) == 1:
        return served[0]
    names = listing(f"{match.workload.label()} ({match.spec.name})" for match in served) or "none"
    raise ShortFormError(
        f'"{text}" fits {len(served)} workloads: {names}; give the fields, or --dtype, of exactly one'
    )


def _plain(fields: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """Fields of one call: an interval stands for its lower end."""
    return {name: value[0] if isinstance(value, tuple) else value for name, value in fields.items()}
