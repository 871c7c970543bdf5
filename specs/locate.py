"""On which line of a TOML text a key stands. `tomllib` doesn't say; this is used only to report errors.

The text is known to be valid TOML, so only keys and brackets have to be told from what is in values.
"""

from __future__ import annotations

import bisect
import re
import tomllib

from .errors import KeyPath

_TOKEN = re.compile(
    r'''"""(?s:\\.|[^\\])*?"{3,5}|"(?:\\.|[^"\\\n])*"'''  # up to two quotes may precede a closing fence
    r"""|'''(?s:.)*?'{3,5}|'[^'\n]*'"""
    r"""|(?P<comment>\#[^\n]*)|[\[\]{}=,.\n]|[^\s\[\]{}=,.\#"']+"""
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Give the line, counted from 1, of every table, key and list element of a valid TOML text."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """Give the line of a key path; of the nearest enclosing key where it isn't in the text."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        newlines = [i for i, char in enumerate(text) if char == "\n"]
        self.tokens = [
            (found[0], bisect.bisect_left(newlines, found.start()) + 1)
            for found in _TOKEN.finditer(text)
            if found["comment"] is None
        ]
        self.tokens.append(("", 0))
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.tables: dict[KeyPath, int] = {}
        """How many `[[tables]]` of an array were seen."""

    @property
    def token(self) -> str:
        """The token to read next; empty at the end."""
        return self.tokens[self.at][0]

    def document(self) -> None:
        table: KeyPath = ()
        while self.token:
            if self.token == "\n":
                self.at += 1
            elif self.token == "[":
                table = self.header()
            else:
                self.key_value(table)

    def header(self) -> KeyPath:
        """Read `[a.b]` or `[[a.b]]` and give the path of the table that it opens."""
        line = self.tokens[self.at][1]
        brackets = 2 if self.tokens[self.at + 1][0] == "[" else 1
        self.at += brackets
        names = self.key()
        self.at += brackets
        path: KeyPath = ()
        for place, name in enumerate(names):
            path = (*path, name)
            self.lines.setdefault(path, line)
            if brackets == 2 and place == len(names) - 1:
                self.tables[path] = self.tables.get(path, 0) + 1
            if path in self.tables:
                path = (*path, self.tables[path] - 1)
                self.lines.setdefault(path, line)
        return path

    def key_value(self, path: KeyPath) -> None:
        line = self.tokens[self.at][1]
        for name in self.key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self.at += 1
        self.value(path)

    def key(self) -> list[str]:
        """Read a dotted key."""
        names: list[str] = []
        while not names or self.token == ".":
            self.at += len(names) > 0
            quoted = self.token[0] in "\"'"
            names.append(str(tomllib.loads(f"key = {self.token}")["key"]) if quoted else self.token)
            self.at += 1
        return names

    def value(self, path: KeyPath) -> None:
        """Skip a value, noting the keys and elements in it."""
        opening, index = self.token, 0
        if opening not in ("[", "{"):
            while self.token not in (",", "]", "}", "\n", ""):
                self.at += 1
            return
        self.at += 1
        while self.token not in ("]", "}"):
            if self.token in (",", "\n"):
                self.at += 1
            elif opening == "{":
                self.key_value(path)
            else:
                self.lines.setdefault((*path, index), self.tokens[self.at][1])
                self.value((*path, index))
                index += 1
        self.at += 1
