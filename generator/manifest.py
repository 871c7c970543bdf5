"""`generated/manifest.json`: the files that the generator wrote and may delete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..specs.errors import listing
from ..version import VERSION
from .sources import GeneratedWorkload

NAME = "manifest.json"
FORMAT = 2
READS = (1, FORMAT)
"""Formats whose list of files this version understands: 1 had a file for each architecture, and no `code`."""


class ManifestInvalid(ValueError):
    """The manifest is damaged; nothing is deleted."""


def manifest_text(files: dict[str, str], workloads: list[GeneratedWorkload]) -> str:
    """The manifest of `files` (path -> SHA-256) and of what was generated for each workload.

    Nothing that depends on the installed toolkit or on the machine enters.
    """
    entries = [
        {
            "spec": generated.spec,
            "family": generated.family.name,
            "workload": generated.workload.label(),
            "candidate": candidate.candidate.name,
            "route": candidate.candidate.route,
            "arch": source.arch,
            "code": source.code,
            "source": source.path or None,
            "source_sha256": source.sha256 or None,
            "kernels": sorted(candidate.symbols.values()),
        }
        for generated in workloads
        for candidate in generated.candidates
        for source in candidate.sources
    ]
    document = {"format": FORMAT, "kernwright": VERSION, "files": files, "sources": entries}
    return json.dumps(document, indent=1) + "\n"


def listed_files(folder: Path) -> list[str]:
    """Paths that the folder's manifest lists; none where there is no manifest.

    Raises:
        ManifestInvalid: the file is there but isn't a manifest of a known format, or it lists a path outside
            its folder: then nothing may be deleted on its word.
    """
    path = folder / NAME
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ManifestInvalid(
            f"{path} can't be read ({error}); restore it, or delete the folder {folder}"
        ) from None
    if not isinstance(document, dict) or document.get("format") not in READS:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ManifestInvalid(
            f"{path} has format {found}; this version reads {listing(READS)}: delete the folder {folder}"
        )
    files = document.get("files")
    if not isinstance(files, dict):
        raise ManifestInvalid(f"{path} lists no files by name; restore it, or delete the folder {folder}")
    root = folder.resolve()
    for name in files:
        if "\0" in name or not (root / name).resolve().is_relative_to(root):
            raise ManifestInvalid(f"{path} lists {name!r}, which is outside its folder; nothing was deleted")
    return list(files)
