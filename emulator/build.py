"""From the text of a kernel to an object that the CPU runs; objects are cached by content."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from filelock import FileLock

from ..compiler import trusted
from ..compiler.cache import default_folder
from ..files import write_whole
from .text import TextFacts, facts, without_comments
from .toolchain import Compiler, compiler

Variant = Literal["plain", "debug", "sanitized"]
"""`plain` checks alignment, array bounds and conversions; `debug` is for gdb; `sanitized` for TSan."""

FORMAT = 1
TEXT_FILE = "kernel.cu"
"""What every text is called while it is compiled: objects are shared by texts that differ in comments only."""

_HERE = Path(__file__).resolve().parent
_INCLUDE = _HERE / "include"
_NATIVE = _HERE / "native"
_LANGUAGE = (
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fPIC",
    "-pthread",
)
_OPTIONS: dict[Variant, tuple[str, ...]] = {
    "plain": ("-O2", "-g1", "-gdwarf-4", "-fsanitize=alignment,bounds,float-cast-overflow"),
    "debug": ("-O0", "-g3", "-gdwarf-4", "-fsanitize=alignment,bounds,float-cast-overflow"),
    "sanitized": ("-O1", "-g1", "-gdwarf-4", "-fsanitize=thread", "-fno-omit-frame-pointer"),
}

logger = logging.getLogger(__name__)


class HostCompileFailed(Exception):
    """The text isn't valid for the emulator; the message holds the compiler's first complaints."""


@dataclass(frozen=True, slots=True)
class Object:
    name: str
    """The text's file name, for messages."""
    path: Path
    """The shared object."""
    symbols: tuple[str, ...]
    waits: bool
    """Its CTAs may wait for each other, so that they run interleaved instead of one after the other."""
    variant: Variant
    text: str = field(repr=False)


def compile_text(text: str, name: str, variant: Variant = "plain") -> Object:
    """Compile a `.cu` text, unchanged, against the emulator's headers, or find it in the cache; messages say `name`.

    Raises:
        CompilerMissing: there is no compiler here.
        HostCompileFailed: the text uses a name that the emulator doesn't know, or isn't C++.
        TextUnsupported: see `text.facts`.
    """
    found = facts(text, name)
    wrapper = _wrapper(found)
    with_what = compiler()
    libraries = () if variant == "sanitized" else (str(runtime_library()),)
    includes = (f"-I{_INCLUDE}", *(f"-isystem{folder}" for folder in with_what.includes))
    linked = (*libraries, *(f"-Wl,-rpath,{Path(library).parent}" for library in libraries))
    key = _key(without_comments(text), wrapper, variant, with_what, *libraries, _folder_digest(_INCLUDE))

    def make(folder: Path, lasting: Path) -> None:
        (folder / TEXT_FILE).write_text(text)
        (folder / "wrapper.cpp").write_text(wrapper)
        source = ("-w", f"-ffile-prefix-map={folder}={lasting}", "-c", "wrapper.cpp", "-o", "object.o")
        _compile(with_what, (*_OPTIONS[variant], *includes, *source), folder, name)
        # Linked without the sanitizer's library: the runtime answers the checks, the runner has TSan.
        _compile(with_what, ("-shared", "-o", "object.so", "object.o", *linked), folder, name)
        (folder / "object.o").unlink()

    folder = cached(key, "object.so", make)
    return Object(name, folder / "object.so", found.symbols, found.waits, variant, text)


@functools.cache
def runtime_library() -> Path:
    """The runtime that schedules CUDA threads, as a shared library; errors as `compiler`."""
    with_what = compiler()
    sources = sorted(path for path in _NATIVE.glob("*.cpp") if path.name != "runner.cpp")
    options = ("-O2", "-g", "-ftls-model=initial-exec", "-shared", "-o", "libruntime.so")

    def make(folder: Path, _lasting: Path) -> None:
        _compile(with_what, (*options, *map(str, sources), "-ldl"), folder, "the emulator's runtime")

    key = _key("runtime", *options, with_what, _folder_digest(_NATIVE), _folder_digest(_INCLUDE))
    return cached(key, "libruntime.so", make) / "libruntime.so"


@functools.cache
def sanitized_runner() -> Path:
    """The program that runs sanitized objects: ThreadSanitizer can't be loaded into Python; errors as `compiler`."""
    with_what = compiler()
    options = ("-O2", "-g1", "-DKERNWRIGHT_SANITIZED", "-c")

    def make(folder: Path, _lasting: Path) -> None:
        sources = sorted(_NATIVE.glob("*.cpp"))
        _compile(with_what, (*options, *map(str, sources)), folder, "the emulator's runner")
        objects = [f"{source.stem}.o" for source in sources]
        # The runtime itself isn't instrumented: its data belongs to the thread that holds the baton.
        _compile(
            with_what,
            ("-fsanitize=thread", "-rdynamic", "-o", "runner", *objects, "-ldl"),
            folder,
            "the runner",
        )

    key = _key("runner", *options, with_what, _folder_digest(_NATIVE), _folder_digest(_INCLUDE))
    return cached(key, "runner", make) / "runner"


def cached(key: str, product: str, make: Callable[[Path, Path], None]) -> Path:
    """The folder of `key`, made once over all processes; `product` in it is verified on every read.

    `make` fills the first folder it is given, which becomes the second. What others may write to is never loaded, not
    even where a group shares its cubins: this code runs as the user.
    """
    root = _cache_root()
    folder = root / key
    if _intact(folder, product):
        return folder
    with FileLock(root / "locks" / f"{key[:2]}.lock"):
        if _intact(folder, product):
            return folder
        with tempfile.TemporaryDirectory(dir=root, prefix=".making-") as temporary:
            made = Path(temporary) / "made"
            made.mkdir(mode=0o700)
            make(made, folder)
            (made / product).chmod(0o700)
            digest = hashlib.sha256((made / product).read_bytes()).hexdigest()
            write_whole(made / f"{product}.sha256", digest.encode())
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
            if root in _temporary_roots:
                _made_here[folder / product] = digest
    return folder


_temporary_roots: set[Path] = set()
_made_here: dict[Path, str] = {}
"""Digests of what this process made in a temporary folder. That may lie where others may write, as the compiler's own
temporary files then do: nothing but what was made here counts."""


def _intact(folder: Path, product: str) -> bool:
    try:
        if folder.parent in _temporary_roots:
            return (
                _made_here.get(folder / product)
                == hashlib.sha256((folder / product).read_bytes()).hexdigest()
            )
        recorded = trusted.read(folder / f"{product}.sha256")
        return recorded.decode() == hashlib.sha256(trusted.read(folder / product)).hexdigest()
    except (OSError, ValueError):  # not there, or not ours
        return False


def _cache_root() -> Path:
    root = default_folder() / "emulator" / f"v{FORMAT}"
    try:
        trusted.make_folder(root / "locks")
        if os.access(root, os.W_OK):
            return root
        problem = "written (it is read-only)"
    except trusted.Untrusted as error:
        problem = f"trusted ({error})"
    except OSError as error:
        problem = f"written ({error})"
    return _temporary_root(str(root), problem)


@functools.cache
def _temporary_root(root: str, problem: str) -> Path:
    logger.warning(
        "The emulator's cache %s can't be %s. Its objects last as long as this process; set "
        "KERNWRIGHT_CACHE_DIR to a folder that only you can write.",
        root,
        problem,
    )
    temporary = Path(tempfile.mkdtemp(prefix="kernwright-emulator-"))
    (temporary / "locks").mkdir()
    _temporary_roots.add(temporary)
    return temporary


def _wrapper(found: TextFacts) -> str:
    lines = [
        '#include "kernel.h"',
        f'#include "{TEXT_FILE}"',
        *map("KERNWRIGHT_KERNEL({})".format, found.symbols),
    ]
    if found.dynamic_shared is not None:
        lines.append("KERNWRIGHT_DYNAMIC({}, {})".format(*found.dynamic_shared))
    return "\n".join([*lines, "KERNWRIGHT_SHARED()", ""])


def _compile(with_what: Compiler, options: tuple[str, ...], folder: Path, name: str) -> None:
    machine = ("-mfma", "-mf16c") if platform.machine() in ("x86_64", "AMD64") else ()
    command = [str(with_what.path), *_LANGUAGE, *machine, *options]
    environment = {**os.environ, "LC_ALL": "C"}  # plain quotes in messages
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostCompileFailed(_explain(done.stderr, name))


def _explain(stderr: str, name: str) -> str:
    """The first errors, under the text's own name, and what an unknown name means."""
    errors = [
        line.replace(TEXT_FILE, name)
        for line in stderr.splitlines()
        if ": error:" in line or "undefined" in line
    ]
    unknown = re.findall(
        r"'(?:[\w:]*::)?(\w+)' (?:was not declared|is not a member|has not been declared|does not name a type)",
        stderr,
    )
    unknown += re.findall(r"(?:undeclared identifier|attempt to use (?:a )?poisoned) [\"'](\w+)[\"']", stderr)
    unknown += re.findall(r"attempt to use a poisoned identifier\n[^\n]*\b(__\w+)", stderr)
    hint = ""
    if unknown:
        listed = ", ".join(dict.fromkeys(unknown))
        hint = (
            f" The emulator doesn't know {listed}: if it is an intrinsic or PTX, call it in a function of the "
            "prelude whose #else branch uses one of the functions in docs/emulator.md."
        )
    return f"{name} doesn't compile for the CPU.{hint}\n" + "\n".join(errors[:10] or [stderr[-2000:]])


def _key(*parts: str | Compiler) -> str:
    total = hashlib.sha256(str(FORMAT).encode())
    for part in parts:
        text = (part if isinstance(part, str) else part.identity).encode()
        total.update(f"{len(text)}\0".encode() + text)
    return total.hexdigest()


@functools.cache
def _folder_digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
