"""A kernel, how it is launched, what it reads and writes, and the source that it is built from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .dtypes import ITEM_BYTES

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor known by name: contiguous, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """torch's name of it, without `torch.`."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Launch:
    """How one kernel is launched: geometry, and the buffers it takes by name in the order of its parameters."""

    grid: Dim3
    block: Dim3
    args: tuple[str, ...]
    shared_bytes: int = 0
    """Dynamic shared memory, bytes."""
    programmatic: bool = False
    """It may begin before the launch in front of it has ended, and waits for that itself."""
    resident: bool = False
    """Its CTAs wait for each other or for peers: all must be on the device at once."""
    cooperative: bool = False
    """Launched so that the driver itself sees to that; for ranks that share a grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Launch):
    """A launch with the symbol of its kernel."""

    symbol: str
    """Name in the machine code."""


@dataclass(frozen=True, slots=True)
class Build:
    """The generated code of a candidate for one architecture."""

    code: str
    """Digest of all that decides what runs: records go by it."""
    source: str = ""
    """Path of the `.cu` file relative to the dispatch module's folder; empty where there is no kernel of ours."""
    sha256: str = ""
    """Digest of the text, by which the loader, the cubin cache and bundles know it; candidates may share one."""
