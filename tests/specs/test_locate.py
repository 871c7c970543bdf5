"""Line numbers of keys, in every way that TOML writes them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from harness.paths import CHECKOUT
from hypothesis import given
from hypothesis import strategies as st
from kernwright.specs.errors import KeyPath
from kernwright.specs.locate import key_lines, line_of

TEXT = (Path(__file__).parent / "spellings.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("family",), 1),
        (("quoted key", "b c", "d"), 2),
        (("workload",), 5),
        (("workload", "tree", "norm", 1), 6),
        (("workload", "tree", "norm", 2), 7),
        (("workload", "tree", "down"), 7),
        (("workload", "list", 0), 9),
        (("workload", "list", 1, 1, "d"), 10),
        (("workload", "date"), 12),
        (("candidate", 0, "name"), 15),
        (("candidate", 0, "budget", "down", "registers"), 16),
        (("candidate", 1), 17),
        (("candidate", 1, "down", "ctas"), 19),
        (("candidate", 1, "part", 0, "x"), 21),
        (("candidate", 1, "part", 1, "x"), 23),
        (("candidate", 1, "missing", "deeper"), 17),
        (("missing",), None),
    ],
)
def test_lines(path: KeyPath, line: int | None) -> None:
    assert line_of(key_lines(TEXT), path) == line
    assert line_of(key_lines(TEXT.replace("\n", "\r\n")), path) == line


def paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    parts: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    found = {path} if path else set()
    return found.union(*(paths(part, (*path, key)) for key, part in parts))


def test_every_key_of_a_document_has_a_line() -> None:
    folder = CHECKOUT
    for file in [*folder.glob("specs/library/*.toml"), folder / "pyproject.toml"]:
        text = file.read_text(encoding="utf-8")
        assert set(key_lines(text)) == paths(tomllib.loads(text))
    assert set(key_lines(TEXT)) == paths(tomllib.loads(TEXT))


@given(st.lists(st.text(alphabet="ab\"'\\#[]{}=,.\n é", max_size=8), max_size=5))
def test_strings_never_confuse_the_scanner(strings: list[str]) -> None:
    text = tomlkit.dumps({"list": strings, "table": dict(zip("vwxyz", strings, strict=False)), "last": 1})
    assert set(key_lines(text)) == paths(tomllib.loads(text))
