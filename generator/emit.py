"""Writing the output: whole files only, unchanged ones untouched, nothing deleted that isn't ours."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from .manifest import NAME, listed_files

STAGING = ".staging-"
"""Prefix of the temporary folders that files are written to before they are moved."""


@dataclass(frozen=True)
class Emission:
    """What a run of the generator changed, as paths relative to the folder."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int


def emit(folder: Path, files: Mapping[str, str]) -> Emission:
    """Make `folder` hold exactly `files`; only files that its manifest lists are deleted.

    The manifest is written last, after the files that it no longer lists were deleted, so that the next run repeats
    one that was interrupted. Two runs at once wait for each other.
    """
    if folder.is_dir() and not _outdated(folder, files):
        return Emission((), (), len(files))  # a folder that can't be written is fine as long as it needn't be
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        obsolete = [name for name in listed_files(folder) if name not in files]
        for left in folder.glob(f"{STAGING}*"):  # by a run that was killed: the lock says that none is alive
            shutil.rmtree(left, ignore_errors=True)
        written = write_files(folder, {name: text for name, text in files.items() if name != NAME})
        removed = tuple(name for name in obsolete if _remove(folder, name))
        written += write_files(folder, {name: text for name, text in files.items() if name == NAME})
    return Emission(written, removed, len(files) - len(written))


def _outdated(folder: Path, files: Mapping[str, str]) -> bool:
    return any(name not in files for name in listed_files(folder)) or any(
        _read(folder / name) != text for name, text in files.items()
    )


def write_files(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Write the files whose text differs: to a temporary folder beside them, synced, then renamed."""
    changed = [name for name, text in files.items() if _read(folder / name) != text]
    if not changed:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
    try:
        for name in changed:
            _write_synced(staging / name, files[name])
        for name in changed:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).replace(folder / name)
            _forget_bytecode(folder / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return tuple(changed)


def _forget_bytecode(path: Path) -> None:
    """Delete Python's cached byte code of a module: its validity check is by size and whole seconds only."""
    if path.suffix == ".py":
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            cached.unlink(missing_ok=True)


def drift(folder: Path, files: Mapping[str, str]) -> str:
    """Unified diff from what `folder` holds to `files`; empty if nothing drifted."""
    wanted: dict[str, str | None] = dict.fromkeys(listed_files(folder))
    wanted.update(files)
    return "".join(
        _diff(f"{folder.name}/{name}", _read(folder / name), text) for name, text in wanted.items()
    )


def _diff(name: str, found: str | None, wanted: str | None) -> str:
    lines = difflib.unified_diff(
        (found or "").splitlines(keepends=True),
        (wanted or "").splitlines(keepends=True),
        fromfile=f"found/{name}" if found is not None else "/dev/null",
        tofile=f"wanted/{name}" if wanted is not None else "/dev/null",
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _write_synced(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(text.encode("utf-8"))
        stream.flush()
        os.fsync(stream.fileno())


def _remove(folder: Path, name: str) -> bool:
    path = folder / name
    if not path.is_file():
        return False
    path.unlink()
    parent = path.parent
    while parent != folder and not any(parent.iterdir()):
        parent.rmdir()
        parent = parent.parent
    return True
