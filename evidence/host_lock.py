"""A lock that all users of this host share, such as that of a GPU: a file in /tmp that nothing is ever written to."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/tmp")
"""Where locks are: TMPDIR differs from user to user. A container with a /tmp of its own has its own locks."""

_POLL_SECONDS = 0.2


@contextmanager
def host_lock(name: str, seconds: float) -> Iterator[Path]:
    """Hold the lock of that name; the file stays, because removing it would give two holders a file each.

    Raises:
        TimeoutError: another process held it all the time.
        OSError: what has the name isn't a file, or can't be opened.
    """
    path, end = FOLDER / f"{name}.lock", time.monotonic() + seconds
    while (handle := _attempt(path)) is None:
        if time.monotonic() >= end:
            raise TimeoutError(f"another process has held {path} for {seconds:g} s")
        time.sleep(_POLL_SECONDS)
    try:
        yield path
    finally:
        os.close(handle)


def _attempt(path: Path) -> int | None:
    """A handle that holds the lock; None while another process does."""
    handle = _opened(path)
    held = False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.path.samestat(os.fstat(handle), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):  # the latter: somebody cleared the folder just now
        pass
    finally:
        if not held:
            os.close(handle)
    return handle if held else None


def _opened(path: Path) -> int:
    """A handle to lock by: reading is enough, so the file may be anybody's."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # First without O_CREAT, which the kernel refuses for the files of others in a sticky folder.
        handle = os.open(path, flags)
    except FileNotFoundError:
        try:
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another process just now
            handle = os.open(path, flags)
        else:
            os.fchmod(handle, 0o666)  # whatever the user's mask
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} isn't a regular file")
    return handle
