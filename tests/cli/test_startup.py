"""What the commands load when they start; the three ways to start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernwright
import pytest

HEAVY = ("torch", "cupy", "cupy_backends", "numpy", "distributed")
LOADED = f"""
import sys
import kernwright.cli
try:
    kernwright.cli.main()
except SystemExit as exited:
    status = exited.code
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print(status or 0, *loaded, file=sys.stderr)
"""


def python(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def built(run: Any, library: Path) -> Path:
    """The shipped specs, built; compiled here only if no other test of this run has."""
    assert run("build", cwd=library).status == 0
    return library


def test_a_build_with_nothing_to_do_loads_neither_torch_nor_cupy(built: Path) -> None:
    ran = python(LOADED, "build", cwd=built)
    assert ran.stderr.strip() == "0"
    manifest = json.loads((built / "generated" / "manifest.json").read_text(encoding="utf-8"))
    kernels = sum(len(entry["kernels"]) for entry in manifest["sources"])
    assert kernels > 200
    assert ran.stdout.endswith(" 0 that spill; --json lists them\n")
    assert f"{kernels} kernels came from the cache: at most " in ran.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["compile", "--help"],
        ["validate"],
        ["generate"],
        ["generate", "--check"],
        ["explain", "sm90-hc2"],
        ["schema", "hyper_connection"],
        ["cache"],
    ],
    ids=" ".join,
)
def test_commands_that_compile_nothing_load_nothing_heavy(
    run: Any, small: Path, arguments: list[str]
) -> None:
    run("generate", cwd=small)
    ran = python(LOADED, *arguments, cwd=small)
    assert ran.stderr.strip() == "0"
    assert ran.stdout


def test_the_dispatch_module_loads_nothing_heavy() -> None:
    names = (
        *HEAVY,
        "jinja2",
        "pydantic",
        "typer",
        "rich",
        "tomlkit",
        "kernwright.specs",
        "kernwright.generator",
    )
    code = f"import sys, kernwright.generated.dispatch; print([n for n in {names!r} if n in sys.modules])"
    assert python(code).stdout.strip() == "[]"


CHECKOUT = Path(kernwright.__file__).parent
BINARY = Path(sys.executable).parent / "kernwright"


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-m", "kernwright"], [sys.executable, str(CHECKOUT / "cli.py")], [str(BINARY)]],
    ids=["module", "file", "script"],
)
def test_three_ways_to_start_are_one(small: Path, command: list[str]) -> None:
    if command == [str(BINARY)] and not BINARY.exists():
        pytest.skip("the package isn't installed here")

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], cwd=small, capture_output=True, text=True, check=False)

    listed = ran("--help").stdout
    for name in ("init", "validate", "schema", "generate", "compile", "build", "explain", "doctor", "cache"):
        assert f" {name} " in listed
    assert ran("validate", "--json").returncode == 0
    bad = ran("compile", "--arch", "sm_91")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith('no spec file asks for architecture "sm_91"')


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["generate", "--frob"], ["compile", "--jobs", "0"], ["explain"]]
)
def test_wrong_usage_exits_2(run: Any, arguments: list[str]) -> None:
    found = run(*arguments)
    assert (found.status, found.out) == (2, "")
    assert "Usage: " in found.err


def test_a_bug_of_ours_keeps_its_traceback(small: Path) -> None:
    code = (
        "import kernwright.cli, kernwright.generator.generate as g\n"
        "def bug(*_): raise KeyError('a bug')\n"
        "g.read_records = bug\n"
        "kernwright.cli.main()\n"
    )
    ran = python(code, "generate", cwd=small)
    assert ran.returncode == 1
    assert "KeyError: 'a bug'" in ran.stderr


def test_an_interrupt_ends_a_build_without_leftovers(small: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, kernwright.cli, kernwright.compiler.compile as c\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what runs in the background ignores it
        "real = c._compile\n"
        "def interrupted(job): os.kill(os.getpid(), signal.SIGINT); return real(job)\n"
        "c._compile = interrupted\n"
        "kernwright.cli.main()\n"
    )
    environment = os.environ | {"KERNWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", code, "build"],
        cwd=small,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".entry", ".tmp")]
