"""Compiled kernels on the disk, one file an entry, shared by all processes of a user.

An entry is `<digest of the rest>\\n<metadata as one line of JSON>\\n<bytes>`, so that whatever was torn,
truncated or flipped is noticed when it is read; a broken entry counts as none, and so does one that others may have
written (`trusted`). Every format version has a folder of its own and doesn't see the others.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..files import write_whole
from . import trusted
from .artifact import Artifact, ArtifactKind, digest
from .resources import Resources
from .toolchain import Toolchain

FORMAT = 1
"""Version of the layout of an entry."""

_SUFFIX = ".entry"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheEntry:
    """One line of `kernwright cache list`."""

    key: str
    size: int
    """Bytes on the disk."""
    artifact: Artifact | None
    """None if the entry is broken or not trusted; it will be compiled again when it is needed."""


class Cache:
    """Artifacts by key. If the folder can't be written or trusted, there is one warning, and they stay in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is `default_folder()` unless given; nothing is created before the first entry is.

        Raises:
            ValueError: `KERNWRIGHT_CACHE_SHARED` has a value that isn't allowed.
        """
        self.folder = folder if folder is not None else default_folder()
        self._entries = self.folder / f"v{FORMAT}"
        self._memory: dict[str, Artifact] = {}
        self._shared = trusted.shared_with_group()
        self._warned = False

    @property
    def lasting(self) -> bool:
        """False once the folder has turned out not to be writable, or not to be trusted."""
        return not self._warned

    def get(self, key: str) -> Artifact | None:
        """The artifact stored under `key`, verified; None if there is none, or it is broken or not trusted."""
        if key in self._memory:
            return replace(self._memory[key], cached=True)
        try:
            stored = trusted.read(self._path(key), shared=self._shared)
        except trusted.Untrusted as error:
            if error.path == self._path(key):
                logger.warning("A cache entry can't be trusted (%s); its kernel is compiled again.", error)
            else:
                self._keep_in_memory(error)
            return None
        except OSError:
            return None
        artifact = _decode(key, stored)
        if artifact is None:
            logger.info("The cache entry %s is damaged; its kernel is compiled again.", self._path(key))
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Store `artifact`: on the disk, or in memory if the folder can't be written or trusted."""
        try:
            trusted.make_folder(self._entries, shared=self._shared)
            write_whole(self._path(key), _encode(key, artifact), mode=0o640 if self._shared else 0o600)
        except OSError as error:
            self._keep_in_memory(error)
            self._memory[key] = artifact

    def fetch(self, key: str, make: Callable[[], Artifact]) -> Artifact:
        """The stored artifact, or else what `make` gives, stored; one `make` a key over all processes.

        What `make` raises is passed on, and nothing is stored.
        """
        stored = self.get(key)
        if stored is not None:
            return stored
        with self._locked(key):
            stored = self.get(key)  # another process may have made it while we waited
            if stored is not None:
                return stored
            made = make()
            self.put(key, made)
            return made

    def entries(self) -> list[CacheEntry]:
        """All entries of this format version, by key."""
        listed = []
        for path in sorted(self._entries.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError):  # another process may clear the cache meanwhile
                size, artifact = path.lstat().st_size, None
                with contextlib.suppress(OSError):
                    artifact = _decode(path.stem, trusted.read(path, shared=self._shared))
                listed.append(CacheEntry(path.stem, size, artifact))
        return listed

    def clear(self) -> int:
        """Remove all entries of this format version, and what interrupted writes left; how many entries."""
        removed = 0
        for path in self._entries.glob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)
                removed += path.suffix == _SUFFIX
        self._memory.clear()
        return removed

    def _path(self, key: str) -> Path:
        return self._entries / f"{key}{_SUFFIX}"

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`. 256 locks serve all keys, so that lock files don't pile up."""
        from filelock import FileLock  # only a miss needs it

        locks = self._entries / "locks"
        lock = FileLock(locks / f"{key[:2]}.lock", mode=0o660 if self._shared else 0o600)
        try:
            trusted.make_folder(locks, shared=self._shared)
            lock.acquire()
        except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
            self._keep_in_memory(error)
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _keep_in_memory(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        logger.warning(
            "The kernel cache %s can't be %s (%s). Compiled kernels are kept in memory, and the next process "
            "compiles them again; set KERNWRIGHT_CACHE_DIR to a folder that %s.",
            self.folder,
            *(
                (
                    "trusted",
                    error,
                    "only you can write, or KERNWRIGHT_CACHE_SHARED=group to trust your group's",
                )
                if isinstance(error, trusted.Untrusted)
                else ("written", error, "can be written")
            ),
        )


def default_folder() -> Path:
    """`KERNWRIGHT_CACHE_DIR`, or else the user's cache folder of this platform."""
    named = os.environ.get("KERNWRIGHT_CACHE_DIR")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("kernwright", appauthor=False)


def default_cache() -> Cache:
    """The process's cache at `default_folder()`: one object, so that a warning is given once."""
    return _cache_at(default_folder())


@functools.cache
def _cache_at(folder: Path) -> Cache:
    return Cache(folder)


def cache_key(
    source: str, *, file_name: str, arch: str, kind: ArtifactKind, flags: Sequence[str], toolchain: Toolchain
) -> str:
    """SHA-256 over everything that decides the artifact's bytes.

    The file name is among it because `-lineinfo` writes it into the cubin.
    """
    parts = [source, file_name, arch, kind, *flags, toolchain.identity]
    total = hashlib.sha256()
    for part in parts:
        text = part.encode()
        total.update(f"{len(text)}\0".encode())
        total.update(text)
    return total.hexdigest()


def _encode(key: str, artifact: Artifact) -> bytes:
    stated = asdict(replace(artifact, data=b""))
    about = {"key": key} | {name: stated[name] for name in stated if name not in ("data", "cached")}
    rest = json.dumps(about).encode() + b"\n" + artifact.data
    return digest(rest).encode() + b"\n" + rest


def _decode(key: str, stored: bytes) -> Artifact | None:
    expected, _, rest = stored.partition(b"\n")
    if digest(rest).encode() != expected:
        return None
    line, _, data = rest.partition(b"\n")
    try:
        about = json.loads(line)
        if about.pop("key") != key:
            return None
        kernels = {symbol: Resources(**used) for symbol, used in about.pop("kernels").items()}
        return Artifact(data=data, kernels=kernels, cached=True, **about)
    except (KeyError, TypeError, ValueError, AttributeError):  # whole, but not ours
        return None
