"""The short form, such as `sm70-fp16-tp4`: a workload and a target by a few of its fields.

One word may name a target, one the dtype; the rest are prefixes (`tp`, ...) with a number. What isn't
given matches anything, so `tp8` is enough where one workload has eight ranks. A spec's name stands for all
workloads of that spec.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..table import FieldValue
from .base import SHORT_DTYPE
from .errors import listing, nearest
from .reader import SpecFile
from .spec import Spec, WorkloadSpec

FEW = 6
"""Workloads that a message lists by their labels."""

_ARCH = re.compile(r"sm_?(\d{2,3}a?)")
_FIELD = re.compile(r"([a-z]+)(\d{1,9})(?:to(\d{1,9}))?")
_DTYPES = {short: dtype for dtype, short in SHORT_DTYPE.items()}


class ShortFormError(ValueError):
    """The text isn't a short form, or doesn't select exactly one workload."""


@dataclass(frozen=True, slots=True)
class ShortForm:
    """What a short form states."""

    text: str
    spec: str | None
    """Name of a spec, if the text is one; then nothing else is stated."""
    arch: str | None
    """Target, as in a spec file (`sm_70`); it needn't be one that a candidate lists."""
    fields: Mapping[str, FieldValue]
    """Workload fields by name: the dtype, numbers, and intervals (`n1to16`) as pairs."""


@dataclass(frozen=True, slots=True)
class Match:
    """A concrete workload and the spec that it belongs to."""

    file: SpecFile
    workload: WorkloadSpec

    @property
    def spec(self) -> Spec:
        """The spec of the file."""
        return self.file.spec


@dataclass(frozen=True, slots=True)
class Selector:
    """The workloads that a text selects: one for a short form, all of a spec for a spec's name."""

    file: SpecFile
    workloads: tuple[WorkloadSpec, ...]
    arch: str | None

    @property
    def spec(self) -> Spec:
        """The spec of the file."""
        return self.file.spec


def parse(text: str, specs: Sequence[SpecFile]) -> ShortForm:
    """Read a spec's name or a short form; the specs tell which names and prefixes there are.

    Raises:
        ShortFormError: it is no name, and a word is neither target, dtype nor field, or one is given twice.
    """
    names = [file.spec.name for file in specs]
    if text in names:
        return ShortForm(text, text, None, {})
    prefixes = {p: field for file in specs for p, field in file.spec.workload.SHORT_FORM.items()}
    arch: str | None = None
    fields: dict[str, FieldValue] = {}
    for word in text.lower().split("-"):
        match = _FIELD.fullmatch(word)
        if (target := _ARCH.fullmatch(word)) and arch is None:
            arch = f"sm_{target[1]}"
        elif word in _DTYPES and "dtype" not in fields:
            fields["dtype"] = _DTYPES[word]
        elif match and match[1] in prefixes and prefixes[match[1]] not in fields:
            low, high = int(match[2]), int(match[3] or match[2])
            fields[prefixes[match[1]]] = low if low == high else (low, high)
        elif "-" not in text and not match:
            raise ShortFormError(
                f'there is no spec "{text}"; there are {listing(names)}{nearest(text, names)}'
            )
        else:
            means = listing(f"{prefix} ({field})" for prefix, field in prefixes.items())
            raise ShortFormError(
                f'"{word}" in "{text}" can\'t be read; a short form is one target (sm70), one dtype '
                f"({listing(_DTYPES, 'or')}) and numbers after the prefixes {means}, each once."
            )
    return ShortForm(text, None, arch, fields)


def matching(short: ShortForm, specs: Sequence[SpecFile], *, ignoring: Collection[str] = ()) -> list[Match]:
    """Find the concrete workloads that have the fields given, in the order of the specs.

    Args:
        short: what is wanted.
        specs: where to look.
        ignoring: fields that needn't match.
    """
    wanted = {name: value for name, value in short.fields.items() if name not in ignoring}
    found = [
        Match(file, workload)
        for file in specs
        if short.spec in (None, file.spec.name)
        for workload in file.spec.workloads()
        if _has(workload.fields(), wanted)
    ]
    if short.spec is None and "world_size" not in short.fields:
        # Who says nothing of ranks means one, where there is such a workload.
        return [match for match in found if match.workload.world_size == 1] or found
    return found


def select(text: str, specs: Sequence[SpecFile]) -> Selector:
    """Select one workload by a short form, or all of a spec by its name.

    Raises:
        ShortFormError: nothing matches, or a short form matches several workloads; the sentence lists them.
    """
    short = parse(text, specs)
    found = matching(short, specs)
    if not found:
        labels = [workload.label() for file in specs for workload in file.spec.workloads()]
        raise ShortFormError(
            f'no workload matches "{text}"; there are {_among(labels, specs)}{nearest(text, labels)}'
        )
    if short.spec is None and len(found) > 1:
        several = [f"{match.workload.label()} ({match.spec.name})" for match in found]
        shown = listing([*several[:FEW], f"{len(several) - FEW} more"] if len(several) > FEW else several)
        raise ShortFormError(f'"{text}" matches {len(found)} workloads: {shown}; give more fields.')
    return Selector(found[0].file, tuple(match.workload for match in found), short.arch)


def _among(labels: Sequence[str], specs: Sequence[SpecFile]) -> str:
    """All labels, or where these are many, the specs that have them."""
    if len(labels) <= FEW:
        return listing(labels)
    return f"{len(labels)} workloads, of the specs {listing(file.spec.name for file in specs)}"


def _has(fields: Mapping[str, FieldValue], wanted: Mapping[str, FieldValue]) -> bool:
    return all(name in fields and _contains(fields[name], value) for name, value in wanted.items())


def _contains(value: FieldValue, wanted: FieldValue) -> bool:
    """Tell whether a workload's value is the wanted one, or its interval contains that."""
    if not isinstance(value, tuple):
        return value == wanted
    low, high = wanted if isinstance(wanted, tuple) else (wanted, wanted)
    return isinstance(low, int) and isinstance(high, int) and value[0] <= low <= high <= value[1]
