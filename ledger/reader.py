"""Reading the ledger: every record file of a folder, or a sentence for each thing that is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..specs.errors import Problem, SpecError, dotted, listing, shown
from ..specs.messages import findings_of
from .record import VERSIONS, Record


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A record and the name that messages and the dispatch table quote it by."""

    name: str
    """Path relative to the ledger's folder, with forward slashes."""
    record: Record


def read_records(folder: Path) -> list[RecordFile]:
    """Read all `*.json` files below a folder, in the order of their paths; none if there is no folder.

    Seals and verdicts aren't verified, so that a damaged record can be shown; that is `check`'s part.

    Raises:
        SpecError: with every problem of every file.
    """
    files: list[RecordFile] = []
    problems: list[Problem] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            files.append(read_record(path, path.relative_to(folder).as_posix()))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return files


def read_record(path: Path, name: str | None = None) -> RecordFile:
    """Read one record file, of this version or an older one; it is called `name`, or as the file is.

    Raises:
        SpecError: it isn't JSON, was written for an unknown version, or isn't a record.
    """
    data = _document(path)
    version = data.get("schema_version")
    if type(version) is not int or version not in VERSIONS:
        raise _broken(
            path,
            f"the record has schema version {shown(version)}; this toolkit reads {listing(VERSIONS)}. "
            "Measure again, or use the toolkit that wrote it.",
            key="schema_version",
        )
    try:
        record = Record.model_validate(data)
    except ValidationError as error:
        problems = [
            Problem(str(path), None, dotted(f.path), f.message) for f in findings_of(error, Record, data)
        ]
        raise SpecError(problems) from None
    return RecordFile(name or path.name, record)


def _document(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise _broken(path, f"this isn't JSON: {error.msg}.", line=error.lineno) from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise _broken(path, "this isn't a record: records are short JSON texts in UTF-8.") from None
    except OSError as error:
        raise _broken(path, f"can't read the file: {error.strerror}.") from None
    if not isinstance(data, dict):
        raise _broken(path, "this isn't a record: a record is a JSON object.")
    return data


def _broken(path: Path, message: str, *, line: int | None = None, key: str = "") -> SpecError:
    return SpecError([Problem(str(path), line, key, message)])
