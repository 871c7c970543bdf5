"""Writing the output: whole files, nothing deleted that isn't ours, whatever interrupts it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from kernwright.generator import check_generation
from kernwright.generator.emit import drift, emit
from kernwright.generator.manifest import ManifestInvalid, listed_files

KILLED = """
import os, pathlib, signal
left, real = {calls}, pathlib.Path.{method}
def die_at_last(path, *args, **kwargs):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(path, *args, **kwargs)
pathlib.Path.{method} = die_at_last
import kernwright.cli
kernwright.cli.main()
"""


def run(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, "generate"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("calls", [0, 3, 7])
def test_a_kill_between_two_files_leaves_whole_files_and_a_rerun_repairs(lab: Any, calls: int) -> None:
    lab.generate()
    old = lab.files()
    lab.edit("hidden = 64", "hidden = 128")
    new = lab.plan.files
    killed = run(lab.root, KILLED.format(calls=calls, method="replace"))
    assert killed.returncode == -signal.SIGKILL
    for name, content in lab.files().items():
        if ".staging-" not in name:
            assert content in (old.get(name), new.get(name, "").encode())
    lab.generate()
    assert lab.files() == {name: text.encode() for name, text in new.items()}
    assert not list(lab.generated.glob(".staging-*"))


@pytest.mark.parametrize("calls", [0, 2])
def test_a_kill_while_removing_leaves_nothing_behind_after_a_rerun(lab: Any, calls: int) -> None:
    lab.generate()
    for name in ("strided", "staged"):
        lab.spec.write_text(
            re.sub(rf'\[\[candidate]]\nname = "{name}"[^[]*(\["[^[]*)?', "", lab.spec.read_text())
        )
    new = lab.plan.files
    killed = run(lab.root, KILLED.format(calls=calls, method="unlink"))
    assert killed.returncode == -signal.SIGKILL
    assert set(lab.files()) > set(new)
    lab.generate()
    assert lab.files() == {name: text.encode() for name, text in new.items()}


def test_two_runs_at_once(lab: Any) -> None:
    lab.generate()
    lab.edit("hidden = 64", "hidden = 128")
    command = [sys.executable, "-m", "kernwright", "generate"]
    runs = [subprocess.Popen(command, cwd=lab.root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in runs]
    assert [process.returncode for process in runs] == [0, 0]
    assert sum("wrote dispatch.py" in text for text in said) == 1
    assert check_generation(lab.plan) == ""
    assert set(lab.files()) == set(lab.plan.files)


def test_a_run_waits_for_the_one_before(lab: Any) -> None:
    lab.generate()
    before = lab.files()
    lab.edit("hidden = 64", "hidden = 128")
    command = [sys.executable, "-m", "kernwright", "generate"]
    with FileLock(lab.generated / ".lock"):
        waiting = subprocess.Popen(command, cwd=lab.root, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1.5)
        assert lab.files() == before
    assert "wrote dispatch.py" in waiting.communicate()[0]
    assert check_generation(lab.plan) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{"format": 1, "files": {"../specs/small.toml": ""}}',
            "lists '../specs/small.toml', which is outside",
        ),
        (
            '{"format": 1, "files": {"/etc/hostname": ""}}',
            "lists '/etc/hostname', which is outside its folder",
        ),
        ('{"format": 1, "files": {"a\\u0000": ""}}', "which is outside its folder; nothing was deleted"),
        ('{"format": 1, "fil', "can't be read (Unterminated string"),
        ('{"format": 3, "files": {}}', "has format 3; this version reads 1 and 2: delete the folder"),
        ('{"format": 1, "files": 3}', "lists no files by name; restore it, or delete the folder"),
        ('{"format": 1}', "lists no files by name"),
        ("[]", "has format list; this version reads 1 and 2"),
        ("\udcff\udcfe", "can't be read"),
    ],
)
def test_a_damaged_manifest_deletes_and_writes_nothing(lab: Any, text: str, sentence: str) -> None:
    lab.generate()
    (lab.generated / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    lab.edit("hidden = 64", "hidden = 128")
    before = lab.files()
    specs = lab.spec.read_bytes()
    with pytest.raises(ManifestInvalid) as raised:
        lab.generate()
    assert sentence in str(raised.value)
    assert str(lab.generated) in str(raised.value)
    assert lab.files() == before
    assert lab.spec.read_bytes() == specs


def test_a_link_that_leads_out_is_not_followed_when_deleting(lab: Any, tmp_path: Path) -> None:
    lab.generate()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.cu").write_text("mine", encoding="utf-8")
    (lab.generated / "link").symlink_to(outside)
    manifest = json.loads((lab.generated / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["link/precious.cu"] = "0" * 64
    (lab.generated / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ManifestInvalid):
        lab.generate()
    assert (outside / "precious.cu").read_text(encoding="utf-8") == "mine"


def test_the_manifest_holds_digests_and_nothing_of_this_machine(lab: Any) -> None:
    lab.generate()
    text = (lab.generated / "manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    assert set(manifest["files"]) == set(lab.files()) - {"manifest.json"}
    assert listed_files(lab.generated) == list(manifest["files"])
    for entry in manifest["sources"]:
        assert manifest["files"][entry["source"]] == entry["source_sha256"]
        content = lab.files()[entry["source"]].decode()
        assert all(f"{symbol}(" in content for symbol in entry["kernels"])
    assert str(lab.root) not in text
    assert "nvrtc" not in text.lower()


def test_drift_is_a_diff_of_what_generate_would_change(tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    manifest = json.dumps({"format": 1, "files": {"a.cu": "", "old.cu": ""}})
    emit(folder, {"a.cu": "one\ntwo\n", "old.cu": "gone\n", "manifest.json": manifest})
    wanted = {"a.cu": "one\n2\n", "b.cu": "new\n", "manifest.json": manifest}
    assert drift(folder, wanted).splitlines() == [
        "--- found/generated/a.cu",
        "+++ wanted/generated/a.cu",
        "@@ -1,2 +1,2 @@",
        " one",
        "-two",
        "+2",
        "--- found/generated/old.cu",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-gone",
        "--- /dev/null",
        "+++ wanted/generated/b.cu",
        "@@ -0,0 +1 @@",
        "+new",
    ]
    assert (folder / "a.cu").read_text(encoding="utf-8") == "one\ntwo\n"
