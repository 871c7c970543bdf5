"""Same input, same bytes: whatever the hash seed, the working folder or the place of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernwright.compiler.artifact import Artifact
from kernwright.compiler.cache import Cache
from kernwright.compiler.compile import Job, compile_all


def generate(package_root: Path | None, folder: Path, seed: str) -> str:
    """Run the command; gives the folder that the package was imported from."""
    code = "import sys, kernwright.cli; print(kernwright.__file__, file=sys.stderr); kernwright.cli.main()"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(package_root or "")}
    command = [sys.executable, "-c", code, "generate"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return ran.stderr.strip()


def test_hash_seed_folder_and_checkout_do_not_matter(lab: Any, checkout: Path) -> None:
    lab.generate()
    whole = lab.files()
    shutil.rmtree(lab.generated)
    generate(None, lab.root / "specs", "1")
    assert lab.files() == whole
    elsewhere = lab.root.parent / "another place" / "lab"
    shutil.copytree(lab.root, elsewhere, ignore=shutil.ignore_patterns("generated", "schema"))
    imported = generate(checkout, elsewhere, "2")
    assert imported == str(checkout / "kernwright" / "__init__.py")
    lab.generated = elsewhere / "generated"
    assert lab.files() == whole
    assert (elsewhere / "schema" / "hyper_connection.json").read_bytes() == (
        lab.root / "schema" / "hyper_connection.json"
    ).read_bytes()


def test_the_library_of_another_checkout_is_the_same(checkout: Path) -> None:
    package = checkout / "kernwright"
    committed = {path: path.read_bytes() for path in (package / "generated").rglob("*") if path.suffix}
    assert len(committed) > 40
    shutil.rmtree(package / "generated" / "hyper_connection")
    generate(checkout, checkout, "3")
    assert {
        path: path.read_bytes() for path in (package / "generated").rglob("*") if path.suffix
    } == committed


def test_nothing_of_the_machine_is_in_the_output(lab: Any) -> None:
    lab.generate()
    for name, content in lab.files().items():
        assert str(lab.root).encode() not in content, name
        assert os.uname().nodename.encode() not in content, name


def test_two_folders_compile_to_the_same_cubins(lab: Any, tmp_path: Path, monkeypatch: Any) -> None:
    jobs = [
        Job(source.text, source.path, source.arch)
        for workload in lab.plan.workloads[:2]
        for candidate in workload.candidates[:1]
        for source in candidate.sources
    ]
    made: list[list[Artifact]] = []
    for place in ("one", "two/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        results = compile_all(jobs, cache=Cache(folder / "cache"))
        made.append([result for result in results if isinstance(result, Artifact)])
    first, second = made
    assert len(first) == len(jobs) == 3
    assert [artifact.data for artifact in first] == [artifact.data for artifact in second]
    assert not any(artifact.cached for artifact in second)
    assert all(b"/kernwright/hyper_connection/" in artifact.data for artifact in first)
    assert not any(os.fsencode(tmp_path) in artifact.data for artifact in first)
