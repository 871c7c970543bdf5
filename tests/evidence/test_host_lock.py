"""The lock of a GPU: one for all users of the host, which nobody can turn against another user's files."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from kernwright.evidence import health, host_lock


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as /tmp is, where every user gets in, and a user's mask that lets nobody in."""
    shared = Path(tempfile.mkdtemp(prefix="kernwright-test-", dir=host_lock.FOLDER))
    shared.chmod(0o1777)
    monkeypatch.setattr(host_lock, "FOLDER", shared)
    before = os.umask(0o077)
    yield shared
    os.umask(before)
    shutil.rmtree(shared)


def test_it_excludes_and_ends(folder: Path) -> None:
    with host_lock.host_lock("gpu", 0) as path:
        assert path == folder / "gpu.lock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        begun = time.monotonic()
        said = r"another process has held .*gpu\.lock for 0\.3 s"
        with pytest.raises(TimeoutError, match=said), host_lock.host_lock("gpu", 0.3):
            pass
        assert 0.3 <= time.monotonic() - begun < 5
        with host_lock.host_lock("another", 0):
            pass
    with host_lock.host_lock("gpu", 0):
        pass


def test_it_waits_for_the_holder(folder: Path) -> None:
    order: list[str] = []
    held = threading.Event()

    def holder() -> None:
        with host_lock.host_lock("gpu", 0):
            held.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=holder)
    thread.start()
    held.wait()
    with host_lock.host_lock("gpu", 20):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_what_is_there_is_not_truncated_and_links_are_not_followed(folder: Path) -> None:
    precious = folder / "precious"
    precious.write_text("precious")
    (folder / "gpu.lock").write_text("held by 1")
    with host_lock.host_lock("gpu", 0) as path:
        assert path.read_text() == "held by 1"
    for target in (precious, folder / "nothing"):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"), host_lock.host_lock("gpu", 0):
            pass
    assert precious.read_text() == "precious"
    assert not (folder / "nothing").exists()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="isn't a regular file"), host_lock.host_lock("gpu", 0):
        pass


def test_a_cleared_folder_does_not_give_two_holders(folder: Path) -> None:
    """The one who waits has the old file open; the lock of that is no lock any more."""
    real, cleared = os.fstat, []

    def clearing(handle: int) -> os.stat_result:
        if not cleared:
            cleared.append(True)
            (folder / "gpu.lock").unlink()
            (folder / "gpu.lock").touch()
        return real(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_lock.os, "fstat", clearing)
        with host_lock.host_lock("gpu", 5) as path:
            with pytest.raises(TimeoutError), host_lock.host_lock("gpu", 0):
                pass
            assert path.exists()
    assert cleared


def test_a_file_system_without_locks_leaves_nothing_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(host_lock.fcntl, "flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OSError, match="No locks available"), host_lock.host_lock("gpu", 0):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def as_nobody(folder: Path, answers: object) -> None:
    os.setgid(65534)
    os.setuid(65534)
    host_lock.FOLDER = folder
    for name in ("made by root", "made with another mode"):
        try:
            with host_lock.host_lock(name, 0):
                answers.put("held")  # type: ignore[attr-defined]
        except Exception as error:
            answers.put(repr(error))  # type: ignore[attr-defined]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_takes_it(folder: Path) -> None:
    """Files in a sticky folder that root owns, of which one was made by a program that didn't widen its mode."""
    with host_lock.host_lock("made by root", 0):
        pass
    (folder / "made with another mode.lock").touch(mode=0o644)
    (folder / "made with another mode.lock").chmod(0o644)
    context = get_context("fork")
    answers = context.Queue()
    process = context.Process(target=as_nobody, args=(folder, answers))
    process.start()
    assert [answers.get(timeout=20) for _ in range(2)] == ["held"] * 2
    process.join()


def test_a_gpu_that_is_held_is_busy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOCK_SECONDS", 0)
    with health._held("uuid"):
        assert [path.name for path in folder.iterdir()] == ["kernwright-uuid.lock"]
        with pytest.raises(health.GpuBusy, match="another benchmark holds GPU uuid"), health._held("uuid"):
            pass
    (folder / "kernwright-uuid.lock").unlink()
    (folder / "kernwright-uuid.lock").symlink_to(folder / "elsewhere")
    with pytest.raises(health.GpuBusy, match="could not take the lock of GPU uuid"), health._held("uuid"):
        pass
    with pytest.raises(ValueError, match="of the caller"), health._held("another"):
        raise ValueError("of the caller")
