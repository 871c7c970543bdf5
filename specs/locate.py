"""On which line of a TOML text a key stands. `tomllib` doesn't say; this is used only to report errors.

The text is known to be valid TOML, so the scanner only has to find keys and skip values.
"""

from __future__ import annotations

import bisect
import tomllib

from .errors import KeyPath


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
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.tables: dict[KeyPath, int] = {}
        """How many `[[tables]]` of an array were seen."""
        self.newlines = [i for i, char in enumerate(text) if char == "\n"]

    def mark(self, path: KeyPath) -> None:
        """Note the current line for a path that wasn't seen before."""
        self.lines.setdefault(path, bisect.bisect_left(self.newlines, self.at) + 1)

    def skip(self, chars: str) -> None:
        """Skip characters and comments."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in chars:
                self.at += 1
            else:
                return

    def document(self) -> None:
        table: KeyPath = ()
        self.skip(" \t\r\n")
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.key_value(table)
            self.skip(" \t\r\n")

    def header(self) -> KeyPath:
        """Read `[a.b]` or `[[a.b]]` and give the path of the table that it opens."""
        array = self.text.startswith("[[", self.at)
        start = self.at
        self.at += 2 if array else 1
        names = self.key()
        self.skip(" \t")
        end, self.at = self.at + (2 if array else 1), start
        path: KeyPath = ()
        for place, name in enumerate(names):
            path = (*path, name)
            self.mark(path)
            if array and place == len(names) - 1:
                self.tables[path] = self.tables.get(path, 0) + 1
            if path in self.tables:
                path = (*path, self.tables[path] - 1)
                self.mark(path)
        self.at = end
        return path

    def key_value(self, table: KeyPath) -> None:
        start = self.at
        names = self.key()
        end, self.at = self.at, start
        for length in range(1, len(names) + 1):
            self.mark((*table, *names[:length]))
        self.at = end
        self.skip(" \t=")
        self.value((*table, *names))

    def key(self) -> tuple[str, ...]:
        """Read a dotted key."""
        names = []
        while True:
            self.skip(" \t")
            if self.text[self.at] in "\"'":
                start = self.at
                self.string()
                names.append(str(tomllib.loads(f"key = {self.text[start : self.at]}")["key"]))
            else:
                start = self.at
                while self.text[self.at] not in " \t.=]":
                    self.at += 1
                names.append(self.text[start : self.at])
            self.skip(" \t")
            if self.text[self.at] != ".":
                return tuple(names)
            self.at += 1

    def value(self, path: KeyPath) -> None:
        """Skip a value, noting the keys and elements in it."""
        opening = self.text[self.at]
        if opening in "\"'":
            self.string()
        elif opening in "[{":
            self.at += 1
            self.skip(" \t\r\n,")
            index = 0
            while self.text[self.at] not in "]}":
                if opening == "[":
                    self.mark((*path, index))
                    self.value((*path, index))
                    index += 1
                else:
                    self.key_value(path)
                self.skip(" \t\r\n,")
            self.at += 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def string(self) -> None:
        """Skip a string of any of the four kinds."""
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        while len(fence) == 3 and self.text.startswith(quote, self.at):
            self.at += 1  # up to two quotes may precede the closing fence
