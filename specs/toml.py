"""Reading a hand-written TOML file: every way in which it can be broken has a message of its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Finding, Problem, SpecError, dotted
from .locate import key_lines, line_of

MAX_BYTES = 1 << 20
"""A spec file is written by hand; anything larger is something else."""

PLAINER: dict[str, str] = {
    "Cannot overwrite a value": "a key is given twice",
    "Cannot mutate immutable namespace": "a table is given twice",
}
"""What tomllib's messages mean to the author of a file."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed TOML file with its text."""

    file: str
    text: str
    data: dict[str, Any]

    def problems(self, findings: Iterable[Finding]) -> list[Problem]:
        """Put findings on their lines, in the order of the file, each once."""
        lines = key_lines(self.text)
        found = {Problem(self.file, line_of(lines, f.path), dotted(f.path), f.message) for f in findings}
        return sorted(found, key=lambda problem: (problem.line or 0, problem.key, problem.message))


def read_document(path: Path, *, allow_empty: bool = False) -> Document:
    """Read a TOML file.

    Raises:
        SpecError: it can't be read, is empty, too large, not text, or not TOML.
    """
    raw = _read(path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken(
            path, f"this isn't text in UTF-8: byte {error.start} is 0x{raw[error.start]:02x}."
        ) from None
    return parse_document(path, text, allow_empty=allow_empty)


def parse_document(path: Path, text: str, *, allow_empty: bool = False) -> Document:
    """Parse the text of a TOML file; `path` only names it.

    Raises:
        SpecError: it is empty or not TOML.
    """
    if not text.strip() and not allow_empty:
        raise _broken(path, 'the file is empty; a spec starts with family = "..." and name = "...".')
    try:
        return Document(str(path), text, tomllib.loads(text))
    except RecursionError:
        raise _broken(path, "lists or tables are nested too deeply.") from None
    except ValueError as error:
        place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        words = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        where = f" (column {place[2]})" if place and place[2] else ""
        raise _broken(path, f"this isn't TOML: {PLAINER.get(words, words)}{where}.", line) from None


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _broken(path, f"the file has {size} bytes; a spec has at most {MAX_BYTES}.")
        return path.read_bytes()
    except IsADirectoryError:
        raise _broken(path, "this is a folder; a spec is a file.") from None
    except OSError as error:
        raise _broken(path, f"can't read the file: {error.strerror}.") from None


def _broken(path: Path, message: str, line: int | None = None) -> SpecError:
    return SpecError([Problem(str(path), line, "", message)])
