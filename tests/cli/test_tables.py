"""What the commands print for people: every row, every column under its own heading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernwright.runtime import doctor
from kernwright.runtime.doctor import Check


def cells(out: str, *, of: str) -> list[list[str]]:
    """Cells of the printed rows that hold `of`."""
    rows = [line for line in out.splitlines() if line.startswith("│") and of in line]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def test_validate_lists_every_workload(run: Any, small: Path) -> None:
    out = run("validate", cwd=small).out
    labels = [row[1] for row in cells(out, of=".toml")]
    expected = [row["workload"] for row in run("validate", "--json", cwd=small).json]
    assert labels == expected
    assert len(labels) > 0


def test_compile_puts_each_figure_under_its_heading(run: Any, small: Path) -> None:
    kernels = run("build", "--json", cwd=small).json
    found = run("compile", cwd=small)
    assert found.status == 0
    printed = [row for row in cells(found.out, of="sm_") if row[0] != "workload"]
    keys = (
        "workload",
        "candidate",
        "kernel",
        "arch",
        "registers",
        "shared_bytes",
        "stack_bytes",
        "spill_bytes",
    )
    assert [row[:8] for row in printed] == [[str(kernel[key]) for key in keys] for kernel in kernels]
    (heading,) = [line for line in found.out.splitlines() if line.startswith("┃")]
    titles = ("workload", "candidate", "kernel", "arch", "registers", "shared", "stack", "spills", "cached")
    assert [heading.index(title) for title in titles] == sorted(heading.index(title) for title in titles)


def test_doctor_prints_what_to_install_as_it_is_typed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        Check("NVRTC", "ok", "13.0 at /usr/lib"),
        Check("sm_70", "note", "NVRTC 13.0 doesn't serve it", "pip install 'kernwright[cuda12]'"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    found = run("doctor")
    assert found.status == 0
    assert cells(found.out, of="NVRTC") == [
        ["NVRTC", "ok", "13.0 at /usr/lib", ""],
        ["sm_70", "note", "NVRTC 13.0 doesn't serve it", "pip install 'kernwright[cuda12]'"],
    ]


def test_doctor_without_a_compiler_is_status_3(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Check("NVRTC", "missing", "nowhere", "install it")])
    assert run("doctor").status == 3


def test_init_keeps_a_spec_file_that_is_there(run: Any, tmp_path: Path) -> None:
    theirs = tmp_path / "ws" / "specs" / "hc8_h2048_r128_tp1.toml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine\n")
    found = run("init", str(tmp_path / "ws"))
    assert found.status == 2
    assert (
        found.err == f"{theirs} exists already; nothing was written: name a new folder, or edit that file\n"
    )
    assert theirs.read_text() == "mine\n"
    assert not (tmp_path / "ws" / "kernwright.toml").exists()


def test_the_version(run: Any) -> None:
    from kernwright import __version__

    found = run("--version")
    assert (found.status, found.out) == (0, f"{__version__}\n")


def test_filters_that_leave_nothing_are_told(run: Any, small: Path) -> None:
    run("generate", cwd=small)
    found = run("compile", "hc2", "--candidate", "staged", cwd=small)
    assert found.status == 2
    assert found.err.startswith(("no spec file asks for", "no source matches all of the filters"))


def test_a_workspace_without_its_specs_deletes_nothing(run: Any, small: Path) -> None:
    run("generate", cwd=small)
    before = sorted(path.name for path in (small / "generated").rglob("*.cu"))
    (small / "kernwright.toml").write_text('specs = "spec"\n')
    found = run("build", cwd=small)
    assert found.status == 2
    assert "there is no such folder of spec files" in found.err
    assert sorted(path.name for path in (small / "generated").rglob("*.cu")) == before


@pytest.mark.parametrize("generated", ["specs", "specs/out", "ledger/x"])
def test_output_needs_a_folder_of_its_own(run: Any, small: Path, generated: str) -> None:
    (small / "kernwright.toml").write_text(f'generated = "{generated}"\n')
    found = run("generate", cwd=small)
    assert found.status == 2
    assert "output needs a folder of its own" in found.err
