"""`bundle`: what is in it, what isn't written, and that the runtime alone loads it where nothing can be compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernwright.compiler.bundle import Bundle

RUNTIME_ALONE = """
import importlib.util, json, pathlib, sys
from importlib.machinery import ModuleSpec

ABSENT = ("pydantic", "jinja2", "typer", "rich", "tomlkit", "filelock", "platformdirs", "cupy", "cupy_backends",
          "cuda", "numpy", "kernwright.specs", "kernwright.generator", "kernwright.ledger", "kernwright.evidence",
          "kernwright.emulator", "kernwright.cli")

class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
spec = importlib.util.spec_from_file_location("mine", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from kernwright.runtime.loader import machine_code

found = {}
for work in module.TABLE.workloads:
    for candidate in work.candidates:
        for arch, build in candidate.builds.items():
            code = machine_code(pathlib.Path("/nowhere"), build, arch, "cubin")
            found[f"{candidate.name} {arch}"] = [code.data[:4].hex(), list(code.nvrtc)]
ptx = machine_code(pathlib.Path("/nowhere"), module.TABLE.workloads[0].control.builds["sm_70"], "sm_70", "ptx")
print(json.dumps([found, ptx.data[:40].decode().lstrip().startswith("//"), module.stats().reference]))
"""


def loaded_alone(dispatch: Path, bundle: Path, home: Path) -> Any:
    """What a process finds that has the runtime, a dispatch module and a bundle, and may write nowhere."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("KERNWRIGHT", "XDG"))
    }
    environment |= {"KERNWRIGHT_BUNDLE": str(bundle), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", RUNTIME_ALONE, str(dispatch)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_the_runtime_alone_loads_a_bundle_from_a_read_only_folder(
    run: Any, small: Path, tmp_path: Path
) -> None:
    assert run("generate", cwd=small).status == 0
    bundle = tmp_path / "there" / "bundle"
    made = run("bundle", "--ptx", "sm_70", "-o", bundle, "--json", cwd=small)
    assert (made.status, made.err) == (0, "")
    assert [(row["arch"], row["kind"]) for row in made.json["artifacts"]] == [
        ("sm_70", "cubin"),
        ("sm_90", "cubin"),
        ("sm_90", "cubin"),
        ("sm_70", "ptx"),
    ]
    for path in (*bundle.iterdir(), bundle, bundle.parent):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found, is_ptx, _ = loaded_alone(small / "generated" / "dispatch.py", bundle, tmp_path / "no" / "home")
    finally:
        for path in (bundle.parent, bundle):
            path.chmod(0o755)
    elf = b"\x7fELF".hex()
    assert found == {name: [elf, [12, 9]] for name in ("control sm_70", "control sm_90", "wide sm_90")}
    assert is_ptx


def test_filters_and_the_sentence_for_people(run: Any, small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    made = run("bundle", "--arch", "sm_90", "--candidate", "wide", "-o", folder, cwd=small)
    assert made.status == 0
    (entry,) = Bundle.open(folder).entries
    assert made.out == f"1 artifacts, {(folder / entry.file).stat().st_size / 1e6:.1f} MB, in {folder}\n"
    assert entry.arch == "sm_90"
    again = run("bundle", "--arch", "sm_70", "-o", folder, cwd=small)
    assert again.status == 0
    assert [entry.arch for entry in Bundle.open(folder).entries] == ["sm_70"]


def test_another_folder_is_refused_before_anything_is_compiled(
    run: Any, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernwright.generator.plan_generation", None)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    refused = run("bundle", "-o", tmp_path / "photos", cwd=small)
    assert (refused.status, refused.out) == (2, "")
    assert "exists and isn't a bundle" in refused.err
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_source_over_its_budget_leaves_the_old_bundle(run: Any, small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    assert run("bundle", "--arch", "sm_70", "-o", folder, cwd=small).status == 0
    before = (folder / "bundle.json").read_bytes()
    spec = small / "specs" / "small.toml"
    wide = "up_mix = { load_bytes = 16 }\n"
    spec.write_text(
        spec.read_text(encoding="utf-8").replace(wide, wide + "budget = { registers = 1 }\n"), "utf-8"
    )
    failed = run("bundle", "-o", folder, cwd=small)
    assert (failed.status, failed.out) == (1, "")
    assert "failed: " in failed.err
    assert failed.err.endswith(f"nothing was written to {folder}\n")
    assert (folder / "bundle.json").read_bytes() == before


def test_ptx_of_what_is_not_selected(run: Any, small: Path, tmp_path: Path) -> None:
    asked = run("bundle", "--arch", "sm_90", "--ptx", "sm_70", "-o", tmp_path / "bundle", cwd=small)
    assert asked.status == 2
    assert asked.err == (
        'PTX of architecture "sm_70" was asked for; the sources selected are built for sm_90: '
        "select its sources too\n"
    )
    assert not (tmp_path / "bundle").exists()


def test_a_folder_is_needed(run: Any, small: Path) -> None:
    assert run("bundle", cwd=small).status == 2
