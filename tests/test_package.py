"""The wheel: what is in it, and that it builds and dispatches from an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.paths import CHECKOUT

NOT_PACKAGED = {"tests", "benchmarks", "examples", "docs", "build", "dist", "wheels", "artifacts", "figures"}

BOUNDARY = """
import torch, kernwright
from kernwright.generated import dispatch
generator = torch.Generator().manual_seed(1)
def normal(*shape, scale=1.0):
    return (torch.randn(*shape, generator=generator) * scale).to(torch.float16)
arguments = (normal(1, 10240), normal(1, 2560), normal(1, 4), normal(10240, scale=0.1),
             normal(336, 10240, scale=0.01), normal(10240, 320, scale=0.05))
x, block_input, injection = dispatch.hyper_connection(*arguments, exact=True)
scale = 2 * torch.sigmoid(arguments[2].float() / 4).repeat_interleave(2560)
expected = arguments[0].float() + arguments[1].float().repeat(1, 4) * scale
assert torch.allclose(x.float(), expected, rtol=2e-3, atol=1e-3)
assert block_input.shape == (1, 2560) and injection.shape == (1, 4)
print(kernwright.__file__)
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel, whose dependencies are those of this one."""

    root: Path
    folder: Path
    """An empty working folder."""
    cubins: Path
    """The test run's cache: the sources are those of the checkout."""

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"KERNWRIGHT_CACHE_DIR": str(self.cubins)}
        program = str(self.root / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wheel")
    sources = root / "sources"  # building leaves build/ and egg-info behind
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "wheels", "artifacts", "figures")
    shutil.copytree(CHECKOUT, sources, ignore=ignored)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    pip("wheel", *options, "--wheel-dir", str(root), str(sources))
    (found,) = root.glob("kernwright-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory, cubin_cache: Path) -> Environment:
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False, symlinks=True)
    pip("--python", str(root / "bin" / "python"), "install", "--no-deps", "--no-index", "--quiet", str(wheel))
    (packages,) = root.glob("lib/python*/site-packages")
    # A path in a .pth file brings modules, but no .pth file of that folder: not the editable install.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    folder = root / "work"
    folder.mkdir()
    return Environment(root, folder, cubin_cache)


def test_the_wheel_holds_what_the_package_reads_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = archive.read(metadata).decode()
    assert all(name.startswith("kernwright/") for name in names)
    inside = {name.removeprefix("kernwright/") for name in names}
    folders = {path.parent for path in CHECKOUT.glob("[!.]*/**/__init__.py")} | {CHECKOUT}
    modules = {path for folder in folders for path in folder.glob("*.py")}
    data = {
        path
        for pattern in (
            "generated/**/*.cu",
            "generated/manifest.json",
            "ledger/golden/*.json",
            "ledger/records/**/*.json",
            "py.typed",
            "schema/*.json",
            "specs/library/*.toml",
            "templates/**/*.j2",
        )
        for path in CHECKOUT.glob(pattern)
    }
    places = {path.relative_to(CHECKOUT) for path in modules | data}
    packaged = {path.as_posix() for path in places if path.parts[0] not in NOT_PACKAGED}
    assert len(packaged) > 150
    assert packaged <= inside
    assert {"py.typed", "cli.py", "__main__.py", "generated/dispatch.py", "generated/manifest.json"} <= inside
    first = {name.split("/")[0] for name in inside}
    assert not first & NOT_PACKAGED
    assert not [name for name in inside if "__pycache__" in name or name.endswith((".pyc", ".lock"))]
    assert "Requires-Python: >=3.11" in about
    assert "License-Expression: Apache-2.0" in about
    assert {line.split(": ")[1] for line in about.splitlines() if line.startswith("Provides-Extra")} >= {
        "cuda12",
        "cuda13",
        "dev",
    }


def test_every_dependency_has_a_lower_bound(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    assert len(required) > 15
    assert [line for line in required if ">=" not in line.split(";")[0]] == []


def test_it_builds_in_an_environment_of_its_own(environment: Environment) -> None:
    built = environment.run("kernwright", "build", "--arch", "sm_90", "--json")
    assert built.returncode == 0, built.stderr
    rows = json.loads(built.stdout)
    assert sum(row["stack_bytes"] + row["spill_bytes"] for row in rows) == 0
    manifest = json.loads((CHECKOUT / "generated" / "manifest.json").read_text(encoding="utf-8"))
    committed = {
        entry["source_sha256"]
        for entry in manifest["sources"]
        if entry["arch"] == "sm_90" and entry["kernels"]
    }
    assert {row["source_sha256"] for row in rows} == committed
    assert len(committed) > 50
    checked = environment.run("kernwright", "generate", "--check")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_it_dispatches_a_boundary_in_an_environment_of_its_own(environment: Environment) -> None:
    ran = environment.run("python", "-c", BOUNDARY)
    assert ran.returncode == 0, ran.stderr
    imported = Path(ran.stdout.strip())
    assert imported.is_relative_to(environment.root)
    assert not imported.is_relative_to(CHECKOUT)


def test_it_lays_out_and_builds_a_workspace(environment: Environment) -> None:
    assert environment.run("kernwright", "init", "mine").returncode == 0
    explained = environment.run("python", "-m", "kernwright", "explain", "sm80-hc8-tp1", "--json")
    assert json.loads(explained.stdout)["chosen"] == "replicated"
    assert (environment.folder / "mine" / "specs" / "hc8_h2048_r128_tp1.toml").is_file()
