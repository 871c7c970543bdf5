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
from ..table import FieldValue, low_end


@dataclass(frozen=True)
class Question:
    """What `kernwright explain` asks; None leaves a field to the workload."""

    workload: str
    """A spec name or a short form."""
    archs: tuple[str, ...] = ()
    """Targets to explain for; by default the short form's, else all that the workload's control lists."""
    at: int | None = None
    """Value of the workload's interval; by default its low end."""
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
    dtype = question.dtype or short.fields.get("dtype")
    _check_places(question, short)
    match = _workload(question, short, dtype, specs)
    own = match.workload.fields()
    fields = {name: low_end(value) for name, value in own.items()}  # an interval stands for its lower end
    fields |= {} if dtype is None else {"dtype": dtype}
    interval = _interval(own)
    if interval is not None:
        fields[interval] = _asked_at(question, short, interval, fields[interval])
    elif question.at is not None:
        raise QuestionError(f"{match.workload.label()} has no interval; leave out --at {question.at}")
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
                kind=question.kind,
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
    kinds = {
        record.device.name: record.device for work in dispatch.table.workloads for record in work.records
    }
    if name not in kinds:
        known = listing(sorted(kinds)) or "none"
        raise QuestionError(f'the ledger has no records of a device "{name}"; it has {known}')
    kind = kinds[name]
    return Device(kind.arch, kind.sm_count, kind.name)


def _interval(fields: Mapping[str, FieldValue]) -> str | None:
    return next((name for name, value in fields.items() if isinstance(value, tuple)), None)


def _asked_at(question: Question, short: ShortForm, interval: str, default: FieldValue) -> FieldValue:
    """The value of an interval that is asked about: the question's, else the short form's."""
    return low_end(short.fields.get(interval, default)) if question.at is None else question.at


def _workload(
    question: Question, short: ShortForm, dtype: FieldValue | None, specs: Sequence[SpecFile]
) -> Match:
    """The one workload meant. Dtype and interval are what is asked about, so a spec needn't serve the values."""
    intervals = (_interval(workload.fields()) for file in specs for workload in file.spec.workloads())
    found = matching(short, specs, ignoring={"dtype", *(name for name in intervals if name is not None)})
    served = [match for match in found if dtype in (None, match.workload.dtype)]
    if not served and len({match.spec.name for match in found}) == 1:
        served = found[:1]
    if len(served) > 1 and len(holding := _that_hold(question, short, served)) == 1:
        served = holding
    if len(served) == 1:
        return served[0]
    names = listing(f"{match.workload.label()} ({match.spec.name})" for match in served) or "none"
    raise ShortFormError(
        f'"{question.workload}" fits {len(served)} workloads: {names}; give the fields, or --dtype, of exactly one'
    )


def _that_hold(question: Question, short: ShortForm, served: Sequence[Match]) -> list[Match]:
    """Of workloads that differ in their intervals: those that hold the value asked about, by default the smallest."""
    spans = [(match, match.workload.fields()) for match in served]
    (interval, *others) = {_interval(fields) for _, fields in spans}
    if interval is None or others:
        return []
    ends = [(match, *span) for match, fields in spans if isinstance(span := fields[interval], tuple)]
    at = _asked_at(question, short, interval, min(low for _, low, _ in ends))
    return [match for match, low, high in ends if low <= int(str(at)) <= high]
