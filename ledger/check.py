"""Whether records agree with their samples: everything in the ledger that can be recomputed is recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..specs.errors import Problem, SpecError
from .names import record_name
from .reader import RecordFile
from .record import judgement_of, seal_of


def check(files: Sequence[RecordFile]) -> list[Problem]:
    """Recompute seal, verdict, gain, interval and reason of every record; find duplicates."""
    problems = [problem for file in files for problem in _inconsistencies(file)]
    return problems + list(_duplicates(files))


def usable(files: Sequence[RecordFile]) -> list[RecordFile]:
    """Give the records back if dispatch may rest on them.

    Raises:
        SpecError: some are inconsistent; with every problem, so that none is dropped in silence.
    """
    problems = check(files)
    if problems:
        raise SpecError(problems)
    return list(files)


def _inconsistencies(file: RecordFile) -> Iterator[Problem]:
    record, judged = file.record, judgement_of(file.record)
    for key in ("verdict", "gain", "interval", "reason"):
        stated, computed = getattr(record, key), getattr(judged, key)
        if stated != computed:
            message = (
                f"the record states {_shown(stated)}, but its samples give {_shown(computed)}. "
                "It was edited by hand; restore it, or delete it and measure again."
            )
            yield Problem(file.name, None, key, message)
    sealed = seal_of(record)
    if sealed != record.sha256:
        message = (
            f"the record is sealed with {record.sha256[:12]}..., but its content gives {sealed[:12]}.... "
            "It was edited or damaged; restore it, or delete it and measure again."
        )
        yield Problem(file.name, None, "sha256", message)


def _duplicates(files: Sequence[RecordFile]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for file in files:
        key = record_name(file.record)
        if key in first:
            message = f"this is the measurement of {first[key]} again; delete one of the two."
            yield Problem(file.name, None, "", message)
        first.setdefault(key, file.name)


def _shown(value: object) -> str:
    return "nothing" if value is None else f'"{value}"' if isinstance(value, str) else str(value)
