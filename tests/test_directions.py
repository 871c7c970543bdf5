"""The import directions of the design, by the contracts of pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness.paths import CHECKOUT

BREACHES = {
    "specs/tree.py": ("from ..ledger import read_records", "Dependencies point one way"),
    "commands/console.py": ("from ..ledger import read_records", "Dependencies point one way"),
    "table/dtypes.py": ("import numpy", "The table imports nothing of the project and no library"),
    "table/kernel.py": (
        "from ..specs import Tree",
        "The table imports nothing of the project and no library",
    ),
    "evidence/cells.py": ("from ..families.all_reduce import oracle", "General packages know no family"),
    "commands/bundle.py": ("from ..generated import dispatch", "General packages know no family"),
    "compiler/cubin.py": (
        "from ..runtime import Device",
        "The compiler knows nothing of specs, generator or runtime",
    ),
    "runtime/policy.py": (
        "from ..specs import Tree",
        "The runtime stands on the table and the compiler alone, and on no authoring library",
    ),
    "runtime/device.py": (
        "import pydantic",
        "The runtime stands on the table and the compiler alone, and on no authoring library",
    ),
    "emulator/schedule.py": (
        "from ..specs import Tree",
        "The emulator stands on the table and the runtime alone, and on no authoring library",
    ),
    "generator/literals.py": (
        "from ..runtime import Device",
        "The generator doesn't import what it generates for",
    ),
    "families/all_reduce/workload.py": (
        "from . import reference",
        "The spec part of a family imports specs and table",
    ),
    "families/hyper_connection/lowerings/gates.py": (
        "from ....runtime import Device",
        "The lowering part of a family imports specs, table and generator",
    ),
    "families/hyper_connection/trees.py": (
        "from ...runtime import Device",
        "What the parts of a family share imports the table alone",
    ),
    "families/hyper_connection/shape.py": (
        "from .spec import HyperConnectionSpec",
        "The run-time part of a family imports table, runtime and compiler, and no authoring library",
    ),
    "families/hyper_connection/truth.py": (
        "import typer",
        "The evidence part of a family imports all but the command line",
    ),
    "families/all_reduce/oracle.py": (
        "from ..linear_all_reduce import oracle",
        "Families import each other without cycles",
    ),
}
"""By module: an import against the direction, and the contract that forbids it."""

PARTS = ("shared", "spec", "lowering", "run-time", "evidence")
"""Parts of a family, by the identities of the contracts that list their modules."""


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
    line, contract = BREACHES[module]
    path = checkout / "kernwright" / module
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    found = lint(checkout)
    assert found.returncode == 1
    verdicts = " ".join(found.stdout.split())  # names longer than a line are broken
    assert f"{contract} BROKEN" in verdicts


def contracts() -> list[dict[str, Any]]:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return found


def test_every_contract_has_a_breach() -> None:
    assert {contract["name"] for contract in contracts()} == {name for _, name in BREACHES.values()}


def parts_of_families() -> dict[str, list[str]]:
    """The modules of each part, as its contract lists them."""
    return {entry["id"]: entry["source_modules"] for entry in contracts() if entry.get("id") in PARTS}


def is_listed(module: str, expression: str) -> bool:
    """Whether a module is what an expression names, or lies in a package of that name; `*` is one name."""
    pattern = expression.replace(".", r"\.").replace("*", "[^.]+")
    return re.fullmatch(rf"{pattern}(\..+)?", module) is not None


def modules_of_families() -> list[str]:
    """All modules below `families/` but the packages of the families themselves, which say nothing."""
    files = (CHECKOUT / "families").rglob("*.py")
    names = (".".join(("kernwright", *path.relative_to(CHECKOUT).with_suffix("").parts)) for path in files)
    return sorted(name for name in names if not re.fullmatch(r"kernwright\.families(\.\w+)?\.__init__", name))


def test_every_module_of_a_family_is_of_one_part() -> None:
    parts = parts_of_families()
    assert set(parts) == set(PARTS)
    wrong = {}
    for module in modules_of_families():
        found = [part for part, listed in parts.items() if any(is_listed(module, one) for one in listed)]
        if len(found) != 1:
            wrong[module] = found
    assert not wrong, f"each must be listed in the source_modules of one contract of pyproject.toml: {wrong}"


def test_no_part_lists_what_there_is_not() -> None:
    modules = modules_of_families()
    listed = [one for part in parts_of_families().values() for one in part]
    assert [one for one in listed if not any(is_listed(module, one) for module in modules)] == []


@pytest.mark.parametrize(
    ("part", "others"),
    [
        ("shared", ("spec", "lowering", "run-time", "evidence")),
        ("spec", ("lowering", "run-time", "evidence")),
        ("lowering", ("run-time", "evidence")),
        ("run-time", ("spec", "lowering", "evidence")),
    ],
)
def test_what_a_part_forbids_is_what_the_other_parts_list(part: str, others: tuple[str, ...]) -> None:
    parts = parts_of_families()
    (contract,) = (entry for entry in contracts() if entry.get("id") == part)
    forbidden = {name for name in contract["forbidden_modules"] if name.startswith("kernwright.families.")}
    assert forbidden == {one for other in others for one in parts[other]}
