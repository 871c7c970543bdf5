"""What a compilation gives: the bytes to load, their identity, and what each kernel in them uses.

Standard library only: a host that only loads bundles imports this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from .resources import Resources

ArtifactKind = Literal["cubin", "ptx"]
KINDS: tuple[ArtifactKind, ...] = get_args(ArtifactKind)


@dataclass(frozen=True)
class Artifact:
    """Machine code or PTX made of one source file for one architecture."""

    arch: str
    """As in a spec file: `sm_70`, `sm_90a`. PTX for `sm_70` is made for `compute_70`."""
    kind: ArtifactKind
    source_sha256: str
    """Digest of the source text (UTF-8), as in the manifest and in the ledger."""
    sha256: str
    """Digest of `data`."""
    data: bytes
    kernels: Mapping[str, Resources]
    """Resources by kernel symbol; empty for PTX, which the driver assembles later."""
    cached: bool
    """True if nothing was compiled to get it."""
    seconds: float
    """How long its compilation took, at the time it was compiled; 0 if it came out of a bundle."""

    @property
    def file(self) -> str:
        """Name of its file in a bundle."""
        return f"{self.sha256}.{self.kind}"


def digest(data: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
