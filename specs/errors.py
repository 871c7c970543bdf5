"""Problems of a spec file as values: the line, the key, and one sentence that says what to do."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Where a value stands in a TOML document: `("candidate", 1, "budget", "registers")`."""


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Sequence[str | int]) -> str:
    """Write a key path as messages show it: `candidate[1].budget.registers`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _BARE_KEY.fullmatch(part) else shown(part)
            text += f".{word}" if text else word
    return text


def shown(value: object) -> str:
    """Write a value as it stands in TOML, shortened where it is long or large."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = json.dumps(value if len(value) <= 60 else value[:60] + "...", ensure_ascii=False)
        # What a file says is printed on terminals: no control character may get there.
        return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        flat = 0 < len(value) <= 8 and not any(isinstance(part, list | tuple | dict) for part in value)
        return f"[{', '.join(shown(part) for part in value)}]" if flat else f"a list of {len(value)}"
    return "a table" if isinstance(value, dict) else f"the date or time {value}"


def listing(names: Iterable[object], last: str = "and") -> str:
    """Join names into a phrase: `a, b and c`."""
    words = [str(name) for name in names]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """End a sentence with the closest valid name (`; did you mean "dtype"?`), or with a full stop."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else "."


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule inside a document, before file and line are known."""

    path: KeyPath
    message: str


class RuleError(ValueError):
    """Several findings of one validator; their paths are relative to the model that raised it."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(" ".join(finding.message for finding in self.findings))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a file."""

    file: str
    line: int | None
    """Line in the file, counted from 1; None where no line is to blame (a missing or unreadable file)."""
    key: str
    """Key path as in messages (`candidate[1].ctas`); empty for the file as a whole."""
    message: str
    """A sentence: what was found, what is allowed, what to do."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class SpecError(Exception):
    """Bad input: all problems that were found, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
