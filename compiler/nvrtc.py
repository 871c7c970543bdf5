"""The one place that calls NVRTC, through CuPy. It needs neither a GPU nor a driver."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .artifact import ArtifactKind
from .headers import read_headers
from .toolchain import Toolchain, ToolchainMissing, require_arch, toolchain

FLAGS: tuple[str, ...] = ("--std=c++17", "--fmad=false", "-lineinfo", "--ptxas-options=-v")
"""No FMA that the source doesn't ask for (docs/numerics.md), lines for profilers, resources in the log."""


@dataclass(frozen=True)
class Compiled:
    """What NVRTC gave."""

    data: bytes
    """A cubin as CuPy hands it over (`cubin.repair` makes it whole), or PTX text without a final NUL."""
    log: str
    """Warnings and, for a cubin, what ptxas says of each kernel."""
    seconds: float


class CompileFailed(Exception):
    """NVRTC refused the source; `log` is what it says."""

    def __init__(self, file_name: str, arch: str, log: str) -> None:
        super().__init__(file_name, arch, log)  # so that it survives the way back from a worker process
        self.file_name = file_name
        self.arch = arch
        self.log = log

    def __str__(self) -> str:
        return f"{self.file_name} doesn't compile for {self.arch}. NVRTC says:\n{self.log.strip()}"


class ToolchainMismatch(Exception):
    """Two parts of the installation, or two machines, disagree about the compiler in use."""


def compile_program(
    source: str, *, file_name: str, arch: str, kind: ArtifactKind, flags: tuple[str, ...] = FLAGS
) -> Compiled:
    """Compile one source file.

    Args:
        source: CUDA C++; may include the CUDA headers, nothing else.
        file_name: how messages and line tables call it: `/kernwright/<file_name>`, whatever the folder.
        arch: `sm_70`, ...; PTX is made for the virtual architecture of the same number.
        flags: the contract's; others only to compare machine code.

    Raises:
        CompileFailed: the source has an error.
        ArchUnsupported, ToolchainMissing, ToolchainMismatch: nothing was tried.
    """
    require_arch(arch)
    installed = toolchain()
    try:
        from cupy_backends.cuda.libs import nvrtc
    except ImportError as error:
        raise ToolchainMissing(
            f"CuPy, through which kernels are compiled, can't be loaded ({error}). "
            "To install it: pip install 'kernwright[cuda12]'."
        ) from error
    _require_same(nvrtc.getVersion(), installed)

    target = arch if kind == "cubin" else arch.replace("sm_", "compute_")
    options = (*flags, f"-arch={target}", f"-I{installed.include}")
    headers = read_headers(installed.include)
    started = time.perf_counter()
    program = nvrtc.createProgram(
        source,
        f"/kernwright/{file_name}",
        tuple(headers.values()),
        tuple(name.encode() for name in headers),
    )
    try:
        nvrtc.compileProgram(program, options)
        data: bytes = nvrtc.getCUBIN(program) if kind == "cubin" else nvrtc.getPTX(program)
        log: str = nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        raise CompileFailed(file_name, arch, nvrtc.getProgramLog(program) or str(error)) from error
    finally:
        nvrtc.destroyProgram(program)
    return Compiled(data, log, time.perf_counter() - started)


def _require_same(loaded: tuple[int, int], installed: Toolchain) -> None:
    """Cache keys name the toolchain's version, so CuPy must compile with that one."""
    if tuple(loaded) != installed.version:
        raise ToolchainMismatch(
            f"CuPy compiles with NVRTC {loaded[0]}.{loaded[1]}, but {installed.library} is "
            f"{installed.version[0]}.{installed.version[1]}. "
            "Keep one of the two installed, the one that CuPy is built for."
        )
