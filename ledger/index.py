"""The index of the ledger: every record that was ever written, so that one that is gone is missed.

A text file beside the records, a line for each event, in no order; commands append, and git merges two by union:

    <seal> <path>              the record was written, or put into today's form by `rekey`
    removed <digest> <path>    it was removed with the source of this digest, which is generated no more

It travels with a wheel and a clone without history. Whoever deletes a record and its lines is found by the history of
git alone (`history.py`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..specs.errors import Problem, SpecError
from .reader import RecordFile

NAME = "index"
REMOVED = "removed"


@dataclass
class Index:
    """What the index says of each path."""

    seals: dict[str, set[str]] = field(default_factory=dict)
    """Seals that a record had, one after the other."""
    removed: dict[str, str] = field(default_factory=dict)
    """Digest of the code, or of the text where none is known, with which a record was removed."""

    @property
    def paths(self) -> set[str]:
        """Every record that was ever there."""
        return {*self.seals, *self.removed}


def read_index(folder: Path) -> Index:
    """Read the index of a ledger; an empty one where there is none.

    Raises:
        SpecError: a line that isn't one of its forms.
    """
    try:
        text = (folder / NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Index()
    return parse(text, str(folder / NAME))


def parse(text: str, name: str = NAME) -> Index:
    """An index from its text; errors as `read_index`."""
    found, problems = Index(), []
    for number, line in enumerate(text.splitlines(), 1):
        match line.split():
            case [seal, path]:
                found.seals.setdefault(path, set()).add(seal)
            case [first, digest, path] if first == REMOVED:
                found.removed[path] = digest
            case []:
                pass
            case _:
                message = (
                    "this line is neither `<seal> <path>` nor `removed <digest> <path>`; restore the file."
                )
                problems.append(Problem(name, number, "", message))
    if problems:
        raise SpecError(problems)
    return found


def enter(folder: Path, lines: Sequence[str]) -> None:
    """Append lines in one write, so that two commands that write at once lose none; OSError as `os.write`."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(opened, "".join(f"{line}\n" for line in lines).encode())
        os.fsync(opened)
    finally:
        os.close(opened)


def written(file: RecordFile) -> str:
    """The line of a record that was written."""
    return f"{file.record.sha256} {file.name}"


def missing(files: Sequence[RecordFile], index: Index) -> Iterator[Problem]:
    """Records that the index names and the folder doesn't have, and the other way round."""
    present = {file.name for file in files}
    for path in sorted(index.seals.keys() - present - index.removed.keys()):
        message = (
            "the index names this record, and it isn't here: records are never deleted, except with the source "
            "that they measured. Restore it from the history: `git log --diff-filter=D -- <file>` names the commit."
        )
        yield Problem(path, None, "", message)
    for file in files:
        seals = index.seals.get(file.name)
        if seals is None:
            yield Problem(
                file.name,
                None,
                "",
                "the index doesn't name this record, so no command wrote it here: restore the index, or let "
                "`kernwright ledger index` enter it.",
            )
        elif file.record.sha256 not in seals:
            message = (
                "the index names this record with another seal: it was replaced; restore it from the history."
            )
            yield Problem(file.name, None, "sha256", message)


def unlawful(index: Index, present: set[str], digests: Collection[str]) -> Iterator[Problem]:
    """Records that were removed although their source is still generated; `digests` are those of today's sources."""
    for path, digest in sorted(index.removed.items()):
        if digest in digests and path not in present:
            message = (
                f"the record was removed, and its source {digest[:12]}... is generated today: restore it from the "
                "history of git."
            )
            yield Problem(path, None, "", message)


def vanished(index: Index, history: Mapping[str, str]) -> Iterator[Problem]:
    """Records of the history (path to the commit that added it) that the index doesn't name."""
    for path in sorted(history.keys() - index.paths):
        message = (
            f"commit {history[path]} added this record, and neither the folder nor the index names it: restore it, "
            "and its line in the index."
        )
        yield Problem(path, None, "", message)
