"""Which record of a candidate counts today, and what has to be measured again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from ..specs import Arch
from .reader import RecordFile
from .record import Record

Sources = Mapping[tuple[str, str, str, str], str]
"""Digest of today's code by (spec, workload, candidate, architecture that it is generated for).

A record is held against these digests and nothing else.
"""

_ARCH = re.compile(r"sm_(\d+)(\d)(a?)")


@dataclass(frozen=True, slots=True)
class Staleness:
    """How a record relates to the sources of today."""

    source: bool
    """The candidate's code has changed since, or isn't known by its digest."""
    control: bool
    """The control's code has changed since the candidate was timed against it."""

    def __bool__(self) -> bool:
        """Whether the candidate has to be measured again."""
        return self.source or self.control


def newest(files: Iterable[RecordFile], current: Sources) -> list[RecordFile]:
    """Give the records that dispatch goes by, by file name: one for each candidate and device, mostly.

    A source that failed exactness is out on every device until it changes, since it has the same bits
    everywhere (docs/numerics.md): of a source of today that was ever found inexact, the newest such record
    of each device counts and no other record does, however much later it passed.

    Of any other source, for each (spec, workload, candidate, part, device) and each compiler among the records of
    today's source, measured against today's control: the newest that decided, which is one that was timed; else the
    newest that was only verified; else the newest invalid one, because a contended run refutes nothing. Where there
    is none of any compiler, the same among the records of today's source, and then among all: such a record is
    stale, and visible as such.
    """
    files = list(files)
    failed = failures(files, current)
    cells: dict[tuple[object, ...], list[RecordFile]] = {}
    for file in files:
        record, candidate = file.record, _candidate(file.record)
        today = source_of(record, record.candidate, current)
        if _is_failure(record, current):
            cells.setdefault((*candidate, record.span, record.device, record.code_sha256), []).append(file)
        elif failed.isdisjoint({(*candidate, today), (*candidate, record.code_sha256)}):
            cells.setdefault((*candidate, record.span, record.device), []).append(file)
    chosen = [file for cell in cells.values() for file in _of_each_compiler(cell, current)]
    return sorted(chosen, key=lambda file: file.name)


def failures(files: Iterable[RecordFile], current: Sources) -> set[tuple[str | None, ...]]:
    """The sources of today that were found inexact: spec, workload, candidate and digest of the code."""
    return {
        (*_candidate(file.record), file.record.code_sha256)
        for file in files
        if _is_failure(file.record, current)
    }


def _of_each_compiler(cell: list[RecordFile], current: Sources) -> list[RecordFile]:
    """What counts of each compiler's machine code; of one whose records are stale only where all are."""
    by_compiler: dict[str | None, list[RecordFile]] = {}
    for file in cell:
        by_compiler.setdefault(file.record.compiler, []).append(file)
    best = [max(files, key=lambda file: _rank(file, current)) for files in by_compiler.values()]
    fresh = [file for file in best if not staleness(file.record, current)]
    return fresh or [max(best, key=lambda file: _rank(file, current))]


def stale(files: Iterable[RecordFile], current: Sources) -> list[RecordFile]:
    """Give the records to measure again: those that dispatch goes by, of candidates that have changed.

    A candidate that is generated no more can't be measured, and one whose source of today failed exactness is
    out whatever is measured: neither is listed.
    """
    return [
        file
        for file in newest(files, current)
        if source_of(file.record, file.record.candidate, current)
        and staleness(file.record, current)
        and not _is_failure(file.record, current)
    ]


def staleness(record: Record, current: Sources) -> Staleness:
    """Compare a record with the code of today.

    A control that isn't generated (a callable, a team's own file) can't be compared, and counts as unchanged;
    an inexact candidate is out whatever it was timed against.
    """
    control = source_of(record, record.control, current)
    compared = record.timing is not None and record.exactness.exact and not record.is_control
    return Staleness(
        source=source_of(record, record.candidate, current) != record.code_sha256,
        control=compared and control is not None and control != record.control_code_sha256,
    )


def source_of(record: Record, candidate: str, current: Sources) -> str | None:
    """Digest of the code that the record's device would take of `candidate` today; None if there is none."""
    cell = (record.spec, record.workload, candidate)
    builds = {arch: current[(*cell, arch)] for arch in get_args(Arch) if (*cell, arch) in current}
    arch = serving(builds, record.device.arch)
    return None if arch is None else builds[arch]


def serving(archs: Iterable[str], device: str) -> str | None:
    """The architecture whose build a device takes; None if none serves it.

    An exact match wins, its `a` variant first; else the same major version with the highest lower minor one.
    """
    wanted = _parts(device)
    fitting = [
        (minor, variant, arch)
        for arch in archs
        for major, minor, variant in [_parts(arch)]
        if major == wanted[0] and (minor == wanted[1] or (minor < wanted[1] and not variant))
    ]
    return max(fitting)[2] if fitting else None


def _parts(arch: str) -> tuple[int, int, bool]:
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ValueError(f"the architecture is {arch!r}; it is written like sm_70 or sm_90a: correct it")
    return int(match[1]), int(match[2]), bool(match[3])


def _candidate(record: Record) -> tuple[str, str, str]:
    return record.spec, record.workload, record.candidate


def _is_failure(record: Record, current: Sources) -> bool:
    """Whether the record shows a source of today inexact, be it of another architecture's build.

    A device may take another build today than it measured; the one that failed still serves others.
    """
    builds = (current.get((*_candidate(record), arch)) for arch in get_args(Arch))
    return record.exactness.inexact and record.code_sha256 in builds


def _rank(file: RecordFile, current: Sources) -> tuple[bool, bool, int, str, str]:
    record = file.record
    found = staleness(record, current)
    return not found.source, not found.control, _weight(record), record.measured_at, file.name


def _weight(record: Record) -> int:
    """2 for a record that decided, 1 for one that was only verified, 0 for an invalid one."""
    if record.verdict == "invalid":
        return 0
    return 1 if record.timing is None and record.verdict != "rejected" and not record.is_control else 2
