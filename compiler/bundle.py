"""Bundles: compiled kernels in a folder that travels to a machine without a compiler.

`bundle.json` lists the artifacts; each lies beside it in a file named by its digest. Standard library only.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..files import write_whole
from . import trusted
from .artifact import KINDS, Artifact, ArtifactKind, digest
from .nvrtc import FLAGS
from .resources import Resources
from .toolchain import toolchain

FORMAT = 1
"""Version of the layout of a bundle."""

LISTING = "bundle.json"

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleInvalid(ValueError):
    """The folder isn't a bundle that this version reads, or its content isn't what was written."""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose listing was read. The artifacts are read, and verified, when they are asked for."""

    folder: Path
    nvrtc: tuple[int, int]
    """Version of the compiler."""
    flags: tuple[str, ...]
    entries: tuple[Artifact, ...]
    """What the listing says of each artifact; without its bytes."""

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """Read the listing of the bundle in `folder`.

        Raises:
            BundleInvalid: there is none, others than its owner may write to it, it has another format version, or is
                malformed.
        """
        path = folder / LISTING
        try:
            listing = json.loads(_read(path))
        except OSError as error:
            raise BundleInvalid(f"{folder} isn't a bundle: {LISTING} can't be read ({error}).") from error
        except ValueError as error:
            raise BundleInvalid(f"{path} isn't JSON ({error}). Write the bundle anew.") from error
        version = listing.get("format") if isinstance(listing, dict) else None
        if version != FORMAT:
            raise BundleInvalid(
                f"{path} has format version {version}; this version of kernwright reads {FORMAT}. "
                "Write the bundle with the version that loads it: kernwright bundle."
            )
        try:
            major, minor = listing["nvrtc"]
            entries = tuple(_entry(item) for item in listing["entries"])
            if tuple(listing["flags"]) != FLAGS:
                raise BundleInvalid(
                    f"{folder} was compiled with {' '.join(map(str, listing['flags']))}; the contract's flags are "
                    f"{' '.join(FLAGS)}. Write the bundle anew."
                )
            return cls(folder, (int(major), int(minor)), tuple(listing["flags"]), entries)
        except BundleInvalid:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BundleInvalid(f"{path} is malformed: {error}. Write the bundle anew.") from error

    def artifact(self, source_sha256: str, arch: str, kind: ArtifactKind | None = None) -> Artifact | None:
        """The artifact of a source for an architecture, or None; a cubin rather than PTX unless `kind` says.

        Raises:
            BundleInvalid: its file is missing or isn't what was written.
        """
        for wanted in KINDS if kind is None else (kind,):
            for entry in self.entries:
                if (entry.source_sha256, entry.arch, entry.kind) == (source_sha256, arch, wanted):
                    return self._load(entry)
        return None

    def _load(self, entry: Artifact) -> Artifact:
        path = self.folder / entry.file
        try:
            data = _read(path)
        except OSError as error:
            raise BundleInvalid(f"{path}, which {LISTING} names, can't be read ({error}).") from error
        if digest(data) != entry.sha256:
            raise BundleInvalid(
                f"{path} was changed or damaged: its digest is {digest(data)}, not the one in its name. "
                "Copy or write the bundle anew."
            )
        return replace(entry, data=data)


def _read(path: Path) -> bytes:
    """A file of a bundle. Whoever names a bundle trusts its owner, and nobody else who may write to it."""
    return trusted.read(path.resolve(), shared=trusted.shared_with_group(), any_owner=True)


def _entry(item: Mapping[str, Any]) -> Artifact:
    if not _DIGEST.fullmatch(item["sha256"]) or item["kind"] not in KINDS:
        raise ValueError(f"an entry has the digest {item['sha256']!r} and the kind {item['kind']!r}")
    entry = Artifact(
        source_sha256=item["source_sha256"],
        arch=item["arch"],
        kind=item["kind"],
        sha256=item["sha256"],
        data=b"",
        kernels={symbol: Resources(**used) for symbol, used in item["resources"].items()},
        cached=True,
        seconds=0.0,
    )
    if item["file"] != entry.file:  # also keeps every path inside the folder
        raise ValueError(f"an entry names the file {item['file']!r}; by its digest it is {entry.file!r}")
    return entry


def check_replaceable(folder: Path) -> None:
    """Check that a bundle may be written to `folder`: it doesn't exist, is empty, or holds a bundle.

    Raises:
        BundleInvalid: it holds something else.
    """
    if (
        folder.exists()
        and not (folder / LISTING).is_file()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise BundleInvalid(
            f"{folder} exists and isn't a bundle (it has no {LISTING}), so it isn't replaced. "
            "Name another folder."
        )


def write_bundle(folder: Path, artifacts: Iterable[Artifact]) -> None:
    """Write a bundle, replacing the one that `folder` may hold; a reader sees the old or the new one.

    Raises:
        BundleInvalid: `folder` holds something else.
        ToolchainMissing: there is no compiler whose version could be noted.
    """
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        new.mkdir()
        new.chmod(0o755)  # whatever the user's mask: a folder that a group may write to isn't loaded
        _fill(new, list(artifacts))
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise


def _fill(folder: Path, artifacts: list[Artifact]) -> None:
    for made in artifacts:
        write_whole(folder / made.file, made.data, mode=0o644)
    ordered = sorted(artifacts, key=lambda made: (made.source_sha256, made.arch, made.kind))
    listing = {
        "format": FORMAT,
        "nvrtc": toolchain().version,
        "flags": FLAGS,
        "entries": [_item(made) for made in ordered],
    }
    write_whole(folder / LISTING, (json.dumps(listing, indent=2) + "\n").encode(), mode=0o644)


def _item(made: Artifact) -> dict[str, Any]:
    return {
        "source_sha256": made.source_sha256,
        "arch": made.arch,
        "kind": made.kind,
        "sha256": made.sha256,
        "resources": {symbol: asdict(used) for symbol, used in made.kernels.items()},
        "file": made.file,
    }
