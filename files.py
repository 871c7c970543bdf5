"""Files that are written whole; this module imports nothing of the project."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(
    path: Path, content: bytes, *, mode: int = 0o600, place: Callable[[Path, Path], None] = os.replace
) -> None:
    """Write a file so that it holds all of `content` or what it held before, whenever the machine stops.

    Args:
        path: the file; its folder is made. An interrupted run may leave a file `*.tmp` beside it.
        content: bytes.
        mode: permissions.
        place: gives the written file its name; `os.link` fails where a file already is.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
