"""Writing the ledger: whole files only, and never over another measurement."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..files import write_whole
from .check import check
from .index import enter, written
from .names import record_name
from .reader import RecordFile
from .record import Record, document


class LedgerRefused(Exception):
    """The ledger doesn't take the record: it is append-only, and takes no record that contradicts itself."""


def write_record(folder: Path, record: Record) -> Path:
    """Add a record to the ledger in `folder` and give its path; `names.record_name` says which.

    The text is written beside its place, synced, and linked there, which fails where a file already is. So
    a crash leaves no half record, and of two writers one is refused. The index gets its line.

    Raises:
        LedgerRefused: the record is there already, its verdict isn't what its samples say, or the folder
            can't be written.
    """
    name = record_name(record)
    problems = check([RecordFile(name, record)])
    if problems:
        raise LedgerRefused("\n".join(str(problem) for problem in problems))
    path = folder / name
    try:
        write_whole(path, _text(record), mode=0o644, place=os.link)
    except OSError as error:
        if path.exists():
            message = "is there already; the ledger is append-only: measure again, which makes a new file."
            raise LedgerRefused(f"{path} {message}") from None
        raise LedgerRefused(f"can't write {path}: {error.strerror}.") from error
    _enter(folder, RecordFile(name, record))
    return path


def replace_record(folder: Path, name: str, record: Record) -> None:
    """Put a record in the place of the one called `name`: the same measurement under other digests.

    Whoever reads sees the old or the new one, whenever this is interrupted.

    Raises:
        LedgerRefused: it isn't the measurement of that name, contradicts itself, or can't be written.
    """
    problems = [str(problem) for problem in check([RecordFile(name, record)])]
    if record_name(record) != name:
        problems.append(f"{name} isn't what this measurement is called; that is {record_name(record)}.")
    if problems:
        raise LedgerRefused("\n".join(problems))
    try:
        write_whole(folder / name, _text(record), mode=0o644)
    except OSError as error:
        raise LedgerRefused(f"can't write {folder / name}: {error.strerror}.") from error
    _enter(folder, RecordFile(name, record))


def _enter(folder: Path, file: RecordFile) -> None:
    try:
        enter(folder, [written(file)])
    except OSError as error:
        raise LedgerRefused(f"can't enter {file.name} into the index: {error.strerror}.") from error


def _text(record: Record) -> bytes:
    return f"{json.dumps(document(record), indent=1)}\n".encode()
