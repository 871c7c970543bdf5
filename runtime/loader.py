"""From a build to a loaded module on a device, once per process.

Machine code comes from the bundles named by `KERNWRIGHT_BUNDLE`, else from the compiler and its cache. A
module stays loaded for the life of the process, because captured graphs hold its functions.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..table import Build
from . import fork
from .captures import beside_captures
from .current import capturing
from .device import Device, serves
from .errors import InvalidSetting, LoadError, NotWarm, StaleSource, first_line
from .launch import CudaModule, Module
from .watch import note

if TYPE_CHECKING:
    from ..compiler.bundle import Bundle

BUNDLE_VARIABLE = "KERNWRIGHT_BUNDLE"
"""Folders of bundles, separated as in PATH; read once."""


_loaded: list[Any] = []
"""CuPy's modules. None is ever unloaded: a graph may launch its kernels long after the plan is gone, and
unloading, when the garbage collector comes to it, invalidates whatever capture is going on."""

_modules: dict[tuple[str, str, int], Module] = {}
_lock = threading.Lock()


def load(root: Path, build: Build, arch: str, device: Device) -> Module:
    """The module of `build` for `arch` on `device`; loaded on the first call, and then kept.

    A build for another architecture than the device's goes as PTX through the driver's own compiler: so
    sm_70 kernels are checked on newer hardware.

    Raises:
        NotWarm: it isn't loaded yet and torch's current stream is capturing a CUDA graph.
        ForkedProcess: the process was forked from one that had kernels loaded.
        StaleSource: the source isn't the text that the table was generated with.
        LoadError: this machine can't compile or load it.
    """
    if device.index is None:
        raise LoadError(f"kernels are loaded on a CUDA device that is here; this device is {device}")
    fork.refuse()
    key = (build.sha256, arch, device.index)
    module = _modules.get(key)
    if module is not None:
        return module
    if capturing():
        raise NotWarm(
            f"{build.source} isn't loaded on cuda:{device.index} yet, and a CUDA graph is being captured; "
            "call warm_up() of the dispatch module, or the op itself once, before the capture"
        )
    with _lock:
        module = _modules.get(key)
        if module is None:
            kind: Literal["cubin", "ptx"] = "cubin" if serves((arch,), device.arch) else "ptx"
            module = _load_module(machine_code(root, build, arch, kind).data, build, device)
            _modules[key] = module
            note(f"{build.source} was loaded on cuda:{device.index}")
    return module


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A cubin or PTX, and which compiler made it."""

    data: bytes
    nvrtc: tuple[int, int] | None
    """Version of the NVRTC that made a bundle's; None for the one that is installed here."""


def machine_code(root: Path, build: Build, arch: str, kind: Literal["cubin", "ptx"]) -> MachineCode:
    """The cubin or PTX of `build`: out of a bundle, else compiled (or out of the compiler's cache). Errors as `load`.

    A bundle's PTX also serves where a cubin is wanted; a cubin never serves where PTX is.
    """
    for bundle in bundles():
        try:
            artifact = bundle.artifact(build.sha256, arch, "ptx" if kind == "ptx" else None)
        except (ValueError, OSError) as error:
            raise LoadError(
                f"{build.source} can't be taken from the bundle {bundle.folder}: {error}"
            ) from error
        if artifact is not None:
            return MachineCode(artifact.data, bundle.nvrtc)
    return _compile(root, build, arch, kind)


def compiler_of(build: Build, arch: str) -> str | None:
    """Version of the NVRTC that made, or would make, the machine code of a build, `12.9`; nothing is compiled.

    None where there is none: no kernel of ours, no bundle that holds it and no compiler.
    """
    if not build.source:
        return None
    for bundle in bundles():
        if any((entry.source_sha256, entry.arch) == (build.sha256, arch) for entry in bundle.entries):
            return _written(bundle.nvrtc)
    return installed_compiler()


def compilers() -> tuple[str | None, ...]:
    """Versions of the compilers that machine code may come from: of each bundle, then the one installed."""
    return *(_written(bundle.nvrtc) for bundle in bundles()), installed_compiler()


@cache
def installed_compiler() -> str | None:
    """Version of the installed NVRTC; None where there is none. Read once: it loads the library, in about 50 ms."""
    from ..compiler.toolchain import ToolchainMissing, toolchain

    try:
        return _written(toolchain().version)
    except (ToolchainMissing, OSError):
        return None


def _written(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def source_text(root: Path, build: Build) -> str:
    """The text of a generated source; StaleSource where it is missing or has another digest than the table."""
    import hashlib  # a millisecond or two that only a cold build pays

    path = root / build.source
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StaleSource(f"{path} can't be read ({error.strerror}); run `kernwright generate`") from error
    found = hashlib.sha256(data).hexdigest()
    if found != build.sha256:
        raise StaleSource(
            f"{path} has digest {found[:8]}..., the dispatch table was generated with {build.sha256[:8]}...; "
            "run `kernwright generate`"
        )
    return data.decode()


def _compile(root: Path, build: Build, arch: str, kind: Literal["cubin", "ptx"]) -> MachineCode:
    text = source_text(root, build)
    try:
        from ..compiler.compile import compile_source

        artifact = compile_source(text, file_name=build.source, arch=arch, kind=kind)
        if not artifact.cached:
            note(f"{build.source} was compiled to {kind} for {arch}")
        return MachineCode(artifact.data, None)
    except Exception as error:
        # Whatever the toolchain lacks or dislikes, the caller has other candidates and the reference.
        raise LoadError(f"{build.source} can't be compiled for {arch} here: {first_line(error)}") from error


def _load_module(data: bytes, build: Build, device: Device) -> Module:
    try:
        import cupy
    except ImportError as error:
        raise LoadError("CuPy isn't installed; install it with `pip install 'kernwright[cuda12]'`") from error
    try:
        with beside_captures(), cupy.cuda.Device(device.index):
            module: Any = cupy.cuda.function.Module()
            module.load(data)
            _loaded.append(module)
    except Exception as error:
        # CuPy's and the driver's error classes have no common base of their own.
        raise LoadError(
            f"{build.source} can't be loaded on cuda:{device.index}: {first_line(error)}"
        ) from error
    return CudaModule(module, device.sm_count)


@cache
def bundles() -> tuple[Bundle, ...]:
    """The bundles that `KERNWRIGHT_BUNDLE` names, read once; InvalidSetting where a folder isn't a bundle."""
    folders = [folder for folder in os.environ.get(BUNDLE_VARIABLE, "").split(os.pathsep) if folder]
    if not folders:
        return ()
    from ..compiler.bundle import Bundle

    try:
        return tuple(Bundle.open(Path(folder)) for folder in folders)
    except (ValueError, OSError) as error:
        raise InvalidSetting(
            f"{BUNDLE_VARIABLE} is {os.pathsep.join(folders)!r}; allowed are folders of bundles, separated "
            f"by {os.pathsep!r}; correct or unset it: {error}"
        ) from error
