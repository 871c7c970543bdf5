"""Planted files: what others than the user and root may have written is never read as ours."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernwright.compiler import trusted
from kernwright.compiler.artifact import Artifact
from kernwright.compiler.cache import Cache, _encode
from kernwright.compiler.disassembly import remembered_counts
from kernwright.compiler.trusted import Untrusted, make_folder, opened, read

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def _no_group_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group has other members."""
    monkeypatch.setattr(trusted, "_private", lambda _: False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "folder" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"ours")
    for each in (path, path.parent, path.parents[1]):
        each.chmod(0o600 if each is path else 0o700)
    return path


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the file to somebody else; who can't do that becomes somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize(
    ("which", "mode", "problem"),
    [
        (None, 0, None),
        ("file", 0o644, None),
        ("file", 0o620, "file may be written to by group"),
        ("file", 0o602, "file may be written to by every user"),
        ("folder", 0o755, None),
        ("folder", 0o770, "folder may be written to by group"),
        ("folder", 0o707, "folder may be written to by every user"),
        ("folder", 0o1777, "folder may be written to by every user"),  # others may plant new names
        ("above", 0o1777, None),  # as /tmp
        ("above", 0o770, "above may be written to by group"),
        ("above", 0o777, "above may be written to by every user"),
    ],
)
def test_who_may_write(file: Path, which: str | None, mode: int, problem: str | None) -> None:
    for path in (file, *file.parents):
        if path.name == which:
            path.chmod(mode)
    if problem is None:
        assert read(file) == b"ours"
    else:
        with pytest.raises(Untrusted, match=problem):
            read(file)


@pytest.mark.parametrize("which", ["file", "folder", "above"])
def test_whose_it_is(file: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign(next(path for path in (file, *file.parents) if path.name == which), monkeypatch)
    with pytest.raises(Untrusted, match="belongs to user"):
        read(file)
    assert read(file, any_owner=True) == b"ours"


def test_links_and_pipes(file: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "file").write_bytes(b"planted")
    beside = file.with_name("link")
    beside.symlink_to(file)
    with pytest.raises(OSError, match=r"symbolic links|link"):
        read(beside)
    way = tmp_path / "way"
    way.symlink_to(file.parent)
    assert read(way / "file") == b"ours"  # the folder that is meant is judged
    way.unlink()
    way.symlink_to(open_to_all)
    with pytest.raises(Untrusted, match="open may be written to by every user"):
        read(way / "file")
    os.mkfifo(file.with_name("pipe"), 0o600)
    with pytest.raises(Untrusted, match="isn't a regular file"):  # and it doesn't wait for a writer
        read(file.with_name("pipe"))


def test_nothing_changes_between_check_and_use(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is swapped when it was judged, and then the file; what was judged is what is read."""
    real, folders = os.fstat, [file.parent]

    def swapping(handle: int) -> os.stat_result:
        status = real(handle)
        if stat.S_ISREG(status.st_mode):
            moved = file.parent.with_name("moved") / "file"
            moved.rename(moved.with_name("aside"))
            moved.write_bytes(b"planted")
        elif folders and status.st_ino == file.parent.stat().st_ino:
            folders.pop().rename(file.parent.with_name("moved"))
            file.parent.mkdir()
            file.write_bytes(b"planted")
        return status

    monkeypatch.setattr(os, "fstat", swapping)
    assert read(file) == b"ours"
    assert not folders
    assert file.read_bytes() == b"planted"


def test_folders_are_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
        make_folder(tmp_path / "a" / "b")
        make_folder(tmp_path / "shared" / "b", shared=True)
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")} == {0o700}
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("shared", "shared/b")} == {0o2770}
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Untrusted, match="open may be written to by every user"):
        make_folder(tmp_path / "open" / "b")
    assert not (tmp_path / "open" / "b").exists()
    with pytest.raises(FileNotFoundError), opened(tmp_path / "none"):
        pass


@pytest.fixture
def handles() -> Iterator[None]:
    """Nothing stays open."""
    folder = Path("/proc/self/fd")
    before = len(list(folder.iterdir()))
    yield
    assert len(list(folder.iterdir())) == before


@pytest.mark.usefixtures("handles")
def test_handles_are_closed(file: Path) -> None:
    for mode in (0o600, 0o666):
        file.chmod(mode)
        for path in (file, file.with_name("none"), file.parent / "none" / "none"):
            try:
                read(path)
            except OSError:
                continue
    file.parent.chmod(0o777)
    with pytest.raises(Untrusted):
        read(file)


def planted(folder: Path, artifact: Artifact) -> Artifact:
    """What somebody else puts into a cache: whole, and under the right key."""
    evil = replace(artifact, data=b"evil")
    entries = folder / "v1"
    entries.mkdir(parents=True, exist_ok=True)
    (entries / f"{KEY}.entry").write_bytes(_encode(KEY, evil))
    return evil


@pytest.mark.parametrize("where", ["cache", "v1", "above"])
def test_a_cache_that_others_may_write_to(
    tmp_path: Path, artifact: Artifact, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    folder = tmp_path / "above" / "cache"
    planted(folder, artifact)
    for path in (folder / "v1", folder, folder.parent):
        path.chmod(0o777 if path.name == where else 0o755)
    cache = Cache(folder)
    with caplog.at_level(logging.WARNING):
        assert cache.fetch(KEY, lambda: artifact) == artifact
        assert cache.fetch(KEY, lambda: artifact) == replace(artifact, cached=True)
        cache.fetch("cd" * 32, lambda: artifact)
    assert [entry.artifact for entry in cache.entries()] == [None]
    assert not cache.lasting
    assert len(list((folder / "v1").iterdir())) == 1
    [record] = caplog.records
    assert f"{where} may be written to by every user" in record.getMessage()
    assert "can't be trusted" in record.getMessage()


def test_an_entry_that_others_may_write_to_is_replaced(
    tmp_path: Path, artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "cache")
    planted(cache.folder, artifact)
    entry = cache.folder / "v1" / f"{KEY}.entry"
    entry.chmod(0o666)
    assert cache.fetch(KEY, lambda: artifact) == artifact
    assert cache.lasting
    assert "can't be trusted" in caplog.text
    assert Cache(cache.folder).get(KEY) == replace(artifact, cached=True)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_a_groups_folder_counts_only_where_it_is_said(
    tmp_path: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    evil = planted(folder, artifact)
    for path in (folder, folder / "v1"):
        path.chmod(0o2770)
    foreign(folder / "v1" / f"{KEY}.entry", monkeypatch)
    assert Cache(folder).get(KEY) is None
    monkeypatch.setenv(trusted.SHARED_VARIABLE, "group")
    assert Cache(folder).get(KEY) == replace(evil, cached=True)
    Cache(folder).put("cd" * 32, artifact)
    assert stat.S_IMODE((folder / "v1" / f"{'cd' * 32}.entry").stat().st_mode) == 0o640
    folder.chmod(0o2777)
    assert Cache(folder).get(KEY) is None
    folder.chmod(0o2770)
    monkeypatch.setattr(os, "getegid", lambda: 54321)
    monkeypatch.setattr(os, "getgroups", list)
    assert Cache(folder).get(KEY) is None  # a group that the user isn't in
    monkeypatch.setenv(trusted.SHARED_VARIABLE, "world")
    with pytest.raises(ValueError, match="KERNWRIGHT_CACHE_SHARED is 'world'; allowed is group"):
        Cache(folder)


@pytest.mark.parametrize("which", ["file", "folder"])
def test_sharing_with_a_group_trusts_nobody_outside_of_it(
    file: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's file in /tmp isn't the group's because nobody else may write to it."""
    path = next(path for path in (file, *file.parents) if path.name == which)
    foreign(path, monkeypatch)
    assert read(file, shared=True) == b"ours"  # it belongs to a group of the user's
    monkeypatch.setattr(os, "getegid", lambda: 54321)
    monkeypatch.setattr(os, "getgroups", list)
    with pytest.raises(Untrusted, match="belongs to user"):
        read(file, shared=True)


@pytest.mark.parametrize(("users", "number"), [("0 0 4294967295", 0), ("0 1000 1\n1 100000 65536", None)])
def test_users_who_dont_exist_are_those_of_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: str, number: int | None
) -> None:
    """Elsewhere their number is that of `nobody`, whose folders are nobody's to trust."""
    (tmp_path / "uid_map").write_text(f"{users}\n")
    monkeypatch.setattr(trusted, "_USERS", tmp_path / "uid_map")
    expected = int(Path("/proc/sys/kernel/overflowuid").read_text()) if number is None else number
    assert trusted._unmapped.__wrapped__() == expected


def test_counts_of_a_disassembly_are_not_believed_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernwright.compiler.disassembly.instruction_counts", lambda *_: {"k": {"LDG": 1}})
    assert remembered_counts(b"cubin", "sm_90", tmp_path) == {"k": {"LDG": 1}}
    [place] = tmp_path.glob("disassembly/*.json")
    place.write_text('{"k": {"LDG": 99}}')
    assert remembered_counts(b"cubin", "sm_90", tmp_path) == {"k": {"LDG": 99}}
    place.chmod(0o666)
    assert remembered_counts(b"cubin", "sm_90", tmp_path) == {"k": {"LDG": 1}}
