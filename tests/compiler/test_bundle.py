from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.bundle import Bundle, BundleInvalid, write_bundle
from kernwright.compiler.nvrtc import FLAGS
from kernwright.compiler.toolchain import toolchain


@pytest.fixture
def ptx(artifact: Artifact) -> Artifact:
    return replace(artifact, kind="ptx", data=b".version 8.8", sha256=digest(b".version 8.8"), kernels={})


@pytest.fixture
def folder(tmp_path: Path, artifact: Artifact, ptx: Artifact) -> Path:
    write_bundle(tmp_path / "bundle", [ptx, artifact])
    return tmp_path / "bundle"


def edit(folder: Path, **changes: Any) -> None:
    """Change the first entry of the listing, or the listing itself where a name is one of its own."""
    listing = json.loads((folder / "bundle.json").read_text())
    for name, value in changes.items():
        target = listing if name in listing else listing["entries"][0]
        target[name] = value
    (folder / "bundle.json").write_text(json.dumps(listing))


def test_round_trip(folder: Path, artifact: Artifact, ptx: Artifact) -> None:
    bundle = Bundle.open(folder)
    assert bundle.nvrtc == toolchain().version
    assert bundle.flags == FLAGS
    came_back = replace(artifact, cached=True, seconds=0.0)
    assert bundle.artifact(artifact.source_sha256, "sm_90") == came_back
    assert bundle.artifact(artifact.source_sha256, "sm_90", "ptx") == replace(ptx, cached=True, seconds=0.0)
    assert bundle.artifact(artifact.source_sha256, "sm_80") is None
    assert bundle.artifact(digest(b"another source"), "sm_90") is None
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["bundle.json", f"{artifact.sha256}.cubin", f"{ptx.sha256}.ptx"]
    )


def test_ptx_is_given_where_there_is_no_cubin(tmp_path: Path, ptx: Artifact) -> None:
    write_bundle(tmp_path / "bundle", [ptx])
    loaded = Bundle.open(tmp_path / "bundle").artifact(ptx.source_sha256, "sm_90")
    assert loaded is not None
    assert loaded.kind == "ptx"


def test_the_same_artifacts_make_the_same_listing(
    tmp_path: Path, folder: Path, artifact: Artifact, ptx: Artifact
) -> None:
    write_bundle(tmp_path / "again", [replace(artifact, seconds=9.0), ptx])
    assert (tmp_path / "again" / "bundle.json").read_bytes() == (folder / "bundle.json").read_bytes()


def test_a_bundle_is_replaced_whole(folder: Path, ptx: Artifact) -> None:
    write_bundle(folder, [ptx])
    assert {path.name for path in folder.iterdir()} == {"bundle.json", f"{ptx.sha256}.ptx"}
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]


def test_another_folder_is_never_replaced(tmp_path: Path, artifact: Artifact) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(BundleInvalid, match=r"photos exists and isn't a bundle .* Name another folder"):
        write_bundle(tmp_path / "photos", [artifact])
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"meow"


def test_a_failed_write_leaves_the_old_bundle(
    folder: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("disk on fire")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="disk on fire"):
        write_bundle(folder, [])
    assert Bundle.open(folder).artifact(artifact.source_sha256, "sm_90") is not None


@pytest.mark.parametrize("tampered", [b"", b"tampered"])
def test_changed_bytes_are_refused(folder: Path, artifact: Artifact, tampered: bytes) -> None:
    (folder / f"{artifact.sha256}.cubin").write_bytes(tampered)
    with pytest.raises(BundleInvalid, match="was changed or damaged"):
        Bundle.open(folder).artifact(artifact.source_sha256, "sm_90")


def test_a_missing_file_is_a_sentence(folder: Path, artifact: Artifact) -> None:
    (folder / f"{artifact.sha256}.cubin").unlink()
    with pytest.raises(BundleInvalid, match=r"which bundle\.json names, can't be read"):
        Bundle.open(folder).artifact(artifact.source_sha256, "sm_90")


@pytest.mark.parametrize("name", ["../secret.cubin", "/etc/passwd", "sub/x.cubin", "..", "x.cubin"])
def test_only_files_named_by_digest_are_accepted(folder: Path, name: str) -> None:
    edit(folder, file=name)
    with pytest.raises(BundleInvalid, match="names the file"):
        Bundle.open(folder)


def test_a_digest_with_a_path_in_it_is_refused(folder: Path, artifact: Artifact) -> None:
    edit(folder, sha256="../secret", file="../secret.cubin")
    with pytest.raises(BundleInvalid, match="has the digest"):
        Bundle.open(folder)


def test_another_format_version_is_a_sentence(folder: Path) -> None:
    edit(folder, format=99)
    with pytest.raises(BundleInvalid, match="has format version 99; this version of kernwright reads 1"):
        Bundle.open(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 1, "nvrtc": 3, "entries": []}'])
def test_a_broken_listing_is_a_sentence(folder: Path, text: str) -> None:
    (folder / "bundle.json").write_text(text)
    with pytest.raises(BundleInvalid, match=r"isn't JSON|format version None|is malformed"):
        Bundle.open(folder)


def test_a_folder_without_listing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match=r"isn't a bundle: bundle\.json can't be read"):
        Bundle.open(tmp_path)


def test_a_bundle_that_others_may_write_to_is_not_loaded(folder: Path, artifact: Artifact) -> None:
    """Its digests lie beside its files, so they prove nothing against who can change both."""
    [file] = folder.glob("*.cubin")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file)] == [0o755, 0o644]
    bundle = Bundle.open(folder)
    file.chmod(0o666)
    with pytest.raises(BundleInvalid, match="may be written to by every user"):
        bundle.artifact(artifact.source_sha256, "sm_90")
    file.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)  # who named the bundle trusts who wrote it
    assert bundle.artifact(artifact.source_sha256, "sm_90") is not None
    folder.chmod(0o777)
    with pytest.raises(BundleInvalid, match="bundle may be written to by every user"):
        Bundle.open(folder)


def test_a_users_mask_does_not_open_a_bundle(tmp_path: Path, artifact: Artifact) -> None:
    before = os.umask(0)
    try:
        write_bundle(tmp_path / "open" / "bundle", [artifact])
        (tmp_path / "open").chmod(0o755)
    finally:
        os.umask(before)
    assert Bundle.open(tmp_path / "open" / "bundle").artifact(artifact.source_sha256, "sm_90") is not None
