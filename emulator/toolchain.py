"""The host compiler and the CUDA headers that a host compiler can read."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..compiler.toolchain import ToolchainMissing
from ..compiler.toolchain import toolchain as cuda_toolchain


class CompilerMissing(ToolchainMissing):
    """There is no C++ compiler, or a header that the emulator needs isn't installed."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++17 compiler with its identity and the folders of NVIDIA's headers."""

    path: Path
    version: str
    """First line of `--version`."""
    includes: tuple[Path, ...]

    @property
    def identity(self) -> str:
        """What of the compiler decides the machine code."""
        return f"{self.version} for {platform.machine()}, headers {cuda_toolchain().header_sha256}"


@functools.cache
def compiler() -> Compiler:
    """The compiler named by `CXX`, or else g++, or else clang++.

    Raises:
        CompilerMissing: there is none, or CUDA's headers aren't complete; the message says what to install.
    """
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    found = next((path for name in wanted if (path := shutil.which(name))), None)
    if found is None:
        raise CompilerMissing(
            f"No C++ compiler was found (looked for {' and '.join(wanted)}), with which the emulator compiles "
            "kernels for the CPU. Install g++ or clang++ (Debian and Ubuntu: apt install g++), or name one "
            "in CXX."
        )
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return Compiler(Path(found), version.partition("\n")[0], _header_folders())


def _header_folders() -> tuple[Path, ...]:
    """Folders that together have what `cuda_fp16.h` includes on a host: three of the wheels, one of a toolkit."""
    include = cuda_toolchain().include
    beside = include.parents[1]
    folders = [include, beside / "cuda_nvcc" / "include", beside / "cuda_cccl" / "include", include / "cccl"]
    for name, wheel in (("crt/host_defines.h", "nvidia-cuda-nvcc"), ("nv/target", "nvidia-cuda-cccl")):
        if not any((folder / name).is_file() for folder in folders):
            raise CompilerMissing(
                f"The CUDA header {name} wasn't found in {', '.join(map(str, folders))}. It comes with "
                f"{wheel}-cu12: pip install 'kernwright[cuda12]'."
            )
    return tuple(folder for folder in folders if folder.is_dir())
