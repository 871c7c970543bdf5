"""Which NVRTC is installed, which architectures it serves, and which headers go with it.

Found by `ctypes`, without CuPy or torch: a build with nothing to do computes cache keys from this and must
be quick. CuPy then loads the very same library.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from .headers import headers_digest, read_headers

_ARCH_SPECIFIC_SINCE = 90
"""From sm_90 on, each architecture has a variant `a`; NVRTC's own list doesn't name them."""


class ToolchainMissing(Exception):
    """NVRTC, its headers, CuPy or cuda-pathfinder isn't installed."""


class ArchUnsupported(Exception):
    """The installed NVRTC doesn't compile for the architecture."""


@dataclass(frozen=True)
class Toolchain:
    """The installed compiler. Two that are equal but for their folders make the same cubins."""

    version: tuple[int, int]
    library: Path
    library_bytes: int
    """Size of the library: it tells patch releases apart, which all say the same `version`."""
    archs: tuple[str, ...]
    """Architectures served, from the oldest: `sm_70`, `sm_90`, `sm_90a`, ..."""
    include: Path
    """Folder of the CUDA headers."""
    header_sha256: str
    """Digest of the headers that kernels include (`headers.ROOTS`)."""

    @property
    def identity(self) -> str:
        """What of the toolchain decides the machine code; the same on two machines with equal installs."""
        major, minor = self.version
        return f"nvrtc {major}.{minor} of {self.library_bytes} bytes, headers {self.header_sha256}"


@functools.cache
def toolchain() -> Toolchain:
    """The installed toolchain.

    Raises:
        ToolchainMissing: something isn't installed; the message says what to install.
    """
    library = _find_library()
    nvrtc = ctypes.CDLL(str(library))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), library)
    include = _find_headers(library)
    return Toolchain(
        version=(major.value, minor.value),
        library=library,
        library_bytes=library.stat().st_size,
        archs=_archs(nvrtc, library),
        include=include,
        header_sha256=headers_digest(read_headers(include)),
    )


def require_arch(arch: str) -> None:
    """Make sure that the installed NVRTC compiles for `arch`.

    Raises:
        ArchUnsupported: it doesn't; the message names what is installed, what that serves, what to install.
        ToolchainMissing: there is no NVRTC.
    """
    installed = toolchain()
    if arch in installed.archs:
        return
    major, minor = installed.version
    raise ArchUnsupported(
        f"The installed NVRTC {major}.{minor} doesn't compile for {arch}; "
        f"it serves {', '.join(installed.archs)}. {_remedy(arch, installed)}"
    )


def _remedy(arch: str, installed: Toolchain) -> str:
    number = _arch_number(arch)
    if number is not None and 50 <= number < 75 and installed.version[0] >= 13:
        return f"CUDA 12's NVRTC serves {arch}: pip install 'kernwright[cuda12]'."
    if number is not None and number >= 75 and installed.version[0] < 13:
        return f"CUDA 13's NVRTC may serve {arch}: pip install 'kernwright[cuda13]'."
    return "Name one of those as the target."


def _arch_number(arch: str) -> int | None:
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(match[1]) if match else None


def _archs(nvrtc: ctypes.CDLL, library: Path) -> tuple[str, ...]:
    count = ctypes.c_int()
    _check(nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)), library)
    numbers = (ctypes.c_int * count.value)()
    _check(nvrtc.nvrtcGetSupportedArchs(numbers), library)
    served: list[str] = []
    for number in sorted(numbers):
        served.append(f"sm_{number}")
        if number >= _ARCH_SPECIFIC_SINCE:
            served.append(f"sm_{number}a")
    return tuple(served)


def _check(status: int, library: Path) -> None:
    if status != 0:
        raise ToolchainMissing(
            f"NVRTC at {library} answers with error {status}; install it anew. {_install()}"
        )


def _install() -> str:
    return "To get everything that compiling needs: pip install 'kernwright[cuda12]'."


def _find_library() -> Path:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError as error:
        raise ToolchainMissing(
            f"cuda-pathfinder isn't installed, which finds the CUDA compiler. {_install()}"
        ) from error
    try:
        _prefer_library_of_cupy()
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except (OSError, RuntimeError) as error:  # not found, or it doesn't load
        raise ToolchainMissing(
            f"NVRTC, the CUDA compiler library, can't be loaded ({error}). {_install()}"
        ) from error
    return Path(path)


def _prefer_library_of_cupy() -> None:
    """Load the NVRTC of the CUDA version that CuPy is built for, if a wheel brought one.

    cuda-pathfinder, which CuPy asks too, takes the newest NVRTC unless one is loaded already. A torch for
    CUDA 13 brings NVRTC 13, which would shadow the NVRTC 12 of `kernwright[cuda12]`, and sm_70 with it.
    """
    spec = importlib.util.find_spec("cupy")
    if spec is None or spec.origin is None:
        raise ToolchainMissing(f"CuPy isn't installed, through which kernels are compiled. {_install()}")
    package = Path(spec.origin).parent
    library = nvrtc_of_wheel(package)
    if library is not None:
        ctypes.CDLL(str(library))


def nvrtc_of_wheel(cupy: Path) -> Path | None:
    """NVRTC beside the package folder `cupy`, of the CUDA major that it is built for; None if unknown.

    Only CuPy's wheels say what they are built for (`.data/_wheel.json`: `{"cuda": "12.x"}`).
    """
    built_for = cupy / ".data" / "_wheel.json"
    if not built_for.is_file():
        return None
    major = json.loads(built_for.read_text())["cuda"].split(".")[0]
    return next(iter(sorted((cupy.parent / "nvidia").glob(f"*/lib/libnvrtc.so.{major}"))), None)


def _find_headers(library: Path) -> Path:
    """The headers that came with the library, or else those that cuda-pathfinder knows.

    The order matters for the same reason as above: headers of CUDA 13 don't belong to an NVRTC 12.
    """
    beside = (
        library.parents[1] / "include",  # CUDA 13's wheels, a toolkit
        library.parents[2] / "cuda_runtime" / "include",  # CUDA 12's wheels
    )
    for folder in beside:
        if (folder / "cuda_fp16.h").is_file():
            return folder
    from cuda.pathfinder import find_nvidia_header_directory

    elsewhere = find_nvidia_header_directory("cudart")
    if elsewhere is None or not (Path(elsewhere) / "cuda_fp16.h").is_file():
        raise ToolchainMissing(f"The CUDA headers (cuda_fp16.h) weren't found. {_install()}")
    return Path(elsewhere)
