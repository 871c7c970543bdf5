"""Cache files that nobody else can have written: code out of them is run, and verdicts out of them are believed.

A file counts if it and the folders above it belong to the user or to root, and nobody else may write to them. A
folder above may be written to by others if it is sticky, as /tmp is. Everything is opened from the root of the file
system on, one name at a time and without following links, and judged by the handle that is read, so nothing changes
between check and use. Access control lists of NFSv4 don't show in a file's mode: what they allow goes unseen.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_VARIABLE = "KERNWRIGHT_CACHE_SHARED"
"""`group`: cubins of a folder that one of the user's groups may write to count, whoever in it wrote them."""

_HANDLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_USERS = Path("/proc/self/uid_map")


class Untrusted(OSError):
    """Others than the user and root may have written to a file or a folder."""

    def __init__(self, path: Path, problem: str) -> None:
        """Say which file or folder, and who."""
        super().__init__(f"{path} {problem}")
        self.path = path


def shared_with_group() -> bool:
    """Whether the environment says that cubins are shared in a group; ValueError where it says anything else."""
    value = os.environ.get(SHARED_VARIABLE, "")
    if value not in ("", "group"):
        raise ValueError(f"{SHARED_VARIABLE} is {value!r}; allowed is group, or leave it unset")
    return value == "group"


@contextmanager
def opened(
    folder: Path, *, shared: bool = False, any_owner: bool = False, create: bool = False
) -> Iterator[int]:
    """A handle of a trusted folder.

    Args:
        folder: its own symbolic links are resolved first.
        shared: what belongs to one of the user's groups counts too, whoever owns it.
        any_owner: whoever named the folder trusts its owner.
        create: make what is missing, for the user alone, or for the group that shares it.

    Raises:
        Untrusted: see the module.
        OSError: it isn't there, or can't be made.
    """
    names = Path(os.path.realpath(folder)).parts
    handle = os.open(names[0], _HANDLE | os.O_DIRECTORY)
    try:
        for depth, name in enumerate(names):
            if depth:
                below = _enter(handle, name, shared=shared, create=create)
                os.close(handle)
                handle = below
            path = Path(*names[: depth + 1])
            _check(os.fstat(handle), path, shared=shared, any_owner=any_owner, above=depth + 1 < len(names))
        yield handle
    finally:
        os.close(handle)


def make_folder(folder: Path, *, shared: bool = False) -> None:
    """Make a trusted folder, unless it is there; errors as `opened`."""
    with opened(folder, shared=shared, create=True):
        pass


def read(path: Path, *, shared: bool = False, any_owner: bool = False) -> bytes:
    """All of a trusted file; arguments and errors as `opened`."""
    with opened(path.parent, shared=shared, any_owner=any_owner) as folder:
        # Not blocking: a pipe of that name has no end.
        handle = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(path, "isn't a regular file")
        _check(status, path, shared=shared, any_owner=any_owner, above=False)
        return stream.read()


def _enter(parent: int, name: str, *, shared: bool, create: bool) -> int:
    try:
        return os.open(name, _HANDLE | os.O_DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:  # another process just now
        return os.open(name, _HANDLE | os.O_DIRECTORY, dir_fd=parent)
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    if shared:
        os.fchmod(made, 0o2770)  # what is made in it belongs to the group as well
    return made


def _check(status: os.stat_result, path: Path, *, shared: bool, any_owner: bool, above: bool) -> None:
    """Raise Untrusted where others may write; `above` is a folder that only the way leads through."""
    mode, who = status.st_mode, {0, os.geteuid()}
    if above:
        who.add(_unmapped())  # of a container's user namespace: the host's root, most often
    of_group = shared and status.st_gid in {os.getegid(), *os.getgroups()}
    # Only a member can give a file to a group. A folder above needs no proof: its owner can't forge what is below.
    if status.st_uid not in who and not any_owner and not (of_group or (shared and above)):
        raise Untrusted(path, f"belongs to user {status.st_uid}, and neither to this one nor to root")
    if not mode & _OTHERS or (above and mode & stat.S_ISVTX):
        return
    if mode & stat.S_IWOTH:
        raise Untrusted(path, "may be written to by every user")
    if _private(status.st_gid) or of_group:
        return
    raise Untrusted(path, f"may be written to by group {status.st_gid}")


@functools.cache
def _private(group: int) -> bool:
    """Whether a group is the user's own, of nobody else: many systems give every user one, and it may write."""
    import grp
    import pwd

    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return found.gr_name == user.pw_name and user.pw_gid == group and set(found.gr_mem) <= {user.pw_name}


@functools.cache
def _unmapped() -> int:
    """The number that users have who don't exist in a container; that of root where all users exist."""
    try:
        if _USERS.read_text().split() == ["0", "0", str(2**32 - 1)]:
            return 0  # no user namespace: the number is an ordinary user's, nobody's
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 0
