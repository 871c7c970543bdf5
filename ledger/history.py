"""The ledger's history in git: which records were ever added. Without git, or in a shallow clone, there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

SECONDS = 60


class NoHistory(Exception):
    """The folder has no history here; the message says why."""


def added(folder: Path) -> dict[str, str]:
    """Every record that a commit before today's added below `folder`: path relative to it, and the commit.

    Raises:
        NoHistory: git isn't installed, this is no checkout, or the clone is shallow.
    """
    if not folder.is_dir():
        raise NoHistory(f"{folder} doesn't exist")
    if _git(folder, "rev-parse", "--is-shallow-repository").strip() != "false":
        raise NoHistory("the clone is shallow; `git fetch --unshallow` brings the history")
    listed = _git(
        folder,
        "log",
        "-m",  # a merge may add one itself
        "--diff-filter=A",
        "--no-renames",
        "--name-only",
        "--relative",
        "-z",
        "--format=%x01%h",
        ".",
    )
    found: dict[str, str] = {}
    for entry in listed.split("\x01")[1:]:
        commit, *names = (part.strip() for part in entry.split("\0"))
        found |= {name: commit for name in names if name.endswith(".json")}
    return found


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoHistory(f"git didn't answer: {error}") from error
    if done.returncode:
        raise NoHistory(f"git has none of {folder}")
    return done.stdout
