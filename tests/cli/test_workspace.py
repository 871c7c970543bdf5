"""`init`, then everything in the new workspace; `doctor`; `cache`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernwright.runtime import doctor

CALL = """
import torch
from generated import dispatch
from kernwright.families.hyper_connection.op import HyperConnection
assert isinstance(dispatch.hyper_connection, HyperConnection)
generator = torch.Generator().manual_seed(1)
def normal(*shape, scale=1.0):
    return (torch.randn(*shape, generator=generator) * scale).to(torch.float16)
state = 8 * 2048
x, mixed, injection = dispatch.hyper_connection(
    normal(1, state), normal(1, 2048), normal(1, 8), normal(2048, scale=0.1),
    normal(144, state, scale=state**-0.5), normal(state, 128, scale=0.1),
)
print(tuple(x.shape), tuple(mixed.shape), tuple(injection.shape), bool(mixed.isfinite().all()))
print(dispatch.stats())
print(dispatch.__file__)
"""


def test_a_new_workspace_builds_explains_and_dispatches(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "new" / "workspace"
    made = run("init", root)
    assert (made.status, made.err) == (0, "")
    assert (
        made.out == f"wrote {root / 'kernwright.toml'}\nwrote {root / 'specs' / 'hc8_h2048_r128_tp1.toml'}\n"
    )
    assert (root / "templates").is_dir()
    assert (
        (root / "specs" / "hc8_h2048_r128_tp1.toml")
        .read_text(encoding="utf-8")
        .startswith("#:schema ../schema/hyper_connection.json\n")
    )

    assert run("validate", cwd=root).status == 0
    built = run("build", "--arch", "sm_90", "--json", cwd=root)
    assert (built.status, len(built.json)) == (0, 12)
    assert (root / "schema" / "hyper_connection.json").is_file()  # where the spec's first line points
    explained = run("explain", "sm90-hc8", cwd=root / "specs")
    assert explained.out.splitlines()[0] == (
        "fp16-hc8-h2048-n1-r128-tp1, kind boundary, on sm_90, policy measured: replicated (contract exact)"
    )

    environment = os.environ | {"PYTHONPATH": str(root)}
    called = subprocess.run(
        [sys.executable, "-c", CALL],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert called.returncode == 0, called.stderr
    shapes, stats, file = called.stdout.splitlines()
    assert shapes == "(1, 16384) (1, 2048) (1, 8) True"
    assert "device" in stats
    assert file == str(root / "generated" / "dispatch.py")


def test_init_overwrites_nothing(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / "kernwright.toml").write_text("# mine\n", encoding="utf-8")
    found = run("init", root)
    assert found.status == 2
    assert found.err == (
        f"{root / 'kernwright.toml'} exists already; nothing was written: name a new folder, or edit that file\n"
    )
    assert [path.name for path in root.iterdir()] == ["kernwright.toml"]
    assert (root / "kernwright.toml").read_text(encoding="utf-8") == "# mine\n"


def test_init_in_the_current_folder(run: Any, tmp_path: Path) -> None:
    assert run("init", cwd=tmp_path).out.startswith("wrote kernwright.toml\n")
    assert run("validate", cwd=tmp_path).status == 0


def test_init_below_a_file_is_bad_input(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert run("init", tmp_path / "file").status == 2


def test_a_broken_workspace_file_is_bad_input(run: Any, small: Path) -> None:
    (small / "kernwright.toml").write_text('generated = "../elsewhere"\n', encoding="utf-8")
    found = run("generate", cwd=small)
    assert found.status == 2
    assert found.err.startswith(f"{small / 'kernwright.toml'}:1: generated: ")
    assert not (small.parent / "elsewhere").exists()


def test_doctor_says_what_is_here(run: Any) -> None:
    found = run("doctor", "--json")
    assert found.status == 0
    assert all(list(finding) == ["what", "status", "found", "remedy"] for finding in found.json)
    by_name = {finding["what"]: finding for finding in found.json}
    assert {"Python", "NVRTC", "CUDA headers", "nvdisasm", "cubin cache", "torch", "CuPy"} <= set(by_name)
    assert by_name["NVRTC"]["status"] == "ok"
    assert "sm_90a" in by_name["NVRTC"]["found"]
    assert by_name["cubin cache"]["found"] == os.environ["KERNWRIGHT_CACHE_DIR"]
    assert "remedy" in run("doctor").out


def test_doctor_names_the_remedy_where_nothing_compiles(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor,
        "_compiler",
        lambda: iter([doctor.Check("NVRTC", "missing", "none", "pip install 'kernwright[cuda12]'")]),
    )
    found = run("doctor", "--json")
    assert found.status == 3
    assert any(finding["remedy"] == "pip install 'kernwright[cuda12]'" for finding in found.json)


def test_the_cache_is_listed_and_cleared(
    run: Any, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cubins"
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(folder))
    assert run("cache", "--json").json == []
    rows = run("compile", "--json", cwd=small).json
    listed = run("cache", "--json").json
    assert len(listed) == 3
    assert run("cache").out.startswith("3 entries, 0.")
    assert run("cache").out.endswith(f" MB, in {folder}\n")
    assert list(listed[0]) == ["key", "bytes", "arch", "kind", "source_sha256", "sha256"]
    assert {entry["sha256"] for entry in listed} == {row["cubin_sha256"] for row in rows}
    assert sorted(entry["arch"] for entry in listed) == ["sm_70", "sm_90", "sm_90"]
    (damaged,) = (path for path in folder.rglob("*.entry") if listed[0]["key"] in path.name)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert run("cache", "--json").json[0] == listed[0] | {
        "bytes": listed[0]["bytes"] - 1,
        "arch": None,
        "kind": None,
        "source_sha256": None,
        "sha256": None,
    }
    assert run("cache", "--clear").out == f"deleted 3 entries of {folder}\n"
    assert run("cache", "--json").json == []
    assert {row["cached"] for row in run("compile", "--json", cwd=small).json} == {False}


def test_a_cache_that_cannot_be_written_costs_a_warning_alone(
    run: Any, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = run("compile", "--json", "--arch", "sm_70", cwd=small)
    assert (found.status, len(found.json)) == (0, 6)
    by_name = {finding["what"]: finding for finding in run("doctor", "--json").json}
    assert by_name["cubin cache"]["status"] == "note"
    assert "KERNWRIGHT_CACHE_DIR" in by_name["cubin cache"]["remedy"]
