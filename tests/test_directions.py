"""The import directions of the design, by the contracts of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

BREACHES = {
    "runtime/policy.py": "from ..specs import Tree",
    "compiler/cubin.py": "from ..runtime import Device",
    "generator/literals.py": "from ..runtime import Device",
    "specs/tree.py": "from ..ledger import read_records",
    "runtime/table.py": "import pydantic",
}
"""Imports against the direction, and the module that has it."""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    # The command of the wheel, as `make check` runs it, on the package in `root`.
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        "from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    command = [sys.executable, "-c", code, str(root / "kernwright" / "pyproject.toml"), "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)


def test_imports_point_one_way(checkout: Path) -> None:
    found = lint(checkout)
    assert found.returncode == 0, found.stdout
    project = tomllib.loads((checkout / "kernwright" / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"Contracts: {len(project['tool']['importlinter']['contracts'])} kept, 0 broken." in found.stdout


@pytest.mark.parametrize("module", BREACHES)
def test_an_import_against_the_direction_is_found(checkout: Path, module: str) -> None:
    path = checkout / "kernwright" / module
    path.write_text(path.read_text(encoding="utf-8") + BREACHES[module] + "\n", encoding="utf-8")
    found = lint(checkout)
    assert found.returncode == 1
    assert "BROKEN" in found.stdout
