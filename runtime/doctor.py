"""What this machine can compile and run, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    what: str
    status: Status
    found: str
    remedy: str = ""


def examine() -> list[Check]:
    """Check everything that compiling and dispatching depend on; loads torch, not CuPy."""
    python = Check("Python", "ok", f"{platform.python_version()} on {platform.machine()}")
    return [python, *_compiler(), _cache(), *_devices()]


def can_compile(findings: list[Check]) -> bool:
    """Whether kernels can be compiled here."""
    return all(finding.status != "missing" for finding in findings if finding.what == "NVRTC")


def _compiler() -> Iterator[Check]:
    from ..compiler.disassembly import find_nvdisasm
    from ..compiler.toolchain import ToolchainMissing, toolchain

    try:
        installed = toolchain()
    except ToolchainMissing as error:
        yield Check("NVRTC", "missing", str(error), "pip install 'kernwright[cuda12]'")
        return
    major, minor = installed.version
    archs = ", ".join(installed.archs)
    yield Check("NVRTC", "ok", f"{major}.{minor} at {installed.library}; serves {archs}")
    if "sm_70" not in installed.archs:
        yield Check(
            "sm_70", "note", f"NVRTC {major}.{minor} doesn't serve it", "pip install 'kernwright[cuda12]'"
        )
    yield Check("CUDA headers", "ok", str(installed.include))
    disassembler = find_nvdisasm()
    if disassembler is None:
        remedy = "pip install nvidia-cuda-nvdisasm"
        yield Check("nvdisasm", "note", "not found: `expect` is not checked", remedy)
    else:
        yield Check("nvdisasm", "ok", str(disassembler))


def _cache() -> Check:
    from ..compiler import trusted
    from ..compiler.cache import FORMAT, default_folder

    folder = default_folder()
    try:
        with trusted.opened(folder / f"v{FORMAT}", shared=trusted.shared_with_group()):
            pass
    except (trusted.Untrusted, ValueError) as error:
        remedy = "set KERNWRIGHT_CACHE_DIR to a folder that only you can write"
        return Check("cubin cache", "note", f"{folder} can't be trusted: {error}", remedy)
    except OSError:  # not there yet, or not to be read: what follows tells
        pass
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return Check("cubin cache", "ok", str(folder))
    remedy = "set KERNWRIGHT_CACHE_DIR to a folder that can be written"
    return Check("cubin cache", "note", f"{folder} can't be written: each process compiles anew", remedy)


def _devices() -> Iterator[Check]:
    try:
        import torch
    except ImportError:
        yield Check("torch", "missing", "not installed", "pip install torch")
        return
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Check("torch", "ok", f"{torch.__version__} ({built_for})")
    cupy = [name for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy") if _version(name)]
    if cupy:
        yield Check("CuPy", "ok", f"{cupy[0]} {_version(cupy[0])}")
    else:
        yield Check("CuPy", "missing", "not installed", "pip install 'kernwright[cuda12]'")
    if not torch.cuda.is_available():
        yield Check("GPU", "note", "none that torch can use: dispatch takes the torch reference on the CPU")
        return
    from .device import current

    for index in range(torch.cuda.device_count()):
        yield Check(f"GPU {index}", "ok", str(current(torch.device("cuda", index))))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
