"""The provenance of a record: what was compared, and the versions of everything."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

from ..compiler.cubin import is_cubin, machine_code_digest
from ..compiler.toolchain import toolchain
from ..ledger import Closeness, Exactness, Toolkit
from ..runtime.loader import machine_code
from ..table import Build
from ..version import VERSION
from .gate import Gate


def exactness_of(
    gate: Gate, against: str, refused: str | None, closeness: Closeness | None = None
) -> Exactness:
    """The gate's result; a graph that doesn't do the work counts as one wrong value."""
    return Exactness(
        cases=gate.cases,
        values=gate.values,
        mismatches=gate.mismatches + (refused is not None),
        against=against,
        first=str(gate.first) if gate.first else refused,
        closeness=closeness,
    )


@dataclass(frozen=True)
class LoadedCode:
    """Digests of what ran of a build; all None where there is no kernel of ours."""

    sha256: str | None
    """Of the file that was loaded, a cubin or PTX."""
    machine_code_sha256: str | None
    """Of the machine code in it, without line information; None for PTX, which the driver compiles."""
    nvrtc: tuple[int, int] | None
    """The compiler of a bundle's; None for the one that is installed here."""


def loaded_code(root: Path, build: Build, arch: str) -> LoadedCode:
    """What the loader takes of a build for an architecture; errors as `loader.machine_code`."""
    if not build.source:
        return LoadedCode(None, None, None)
    code = machine_code(root, build, arch, "cubin")
    bare = machine_code_digest(code.data) if is_cubin(code.data) else None
    return LoadedCode(hashlib.sha256(code.data).hexdigest(), bare, code.nvrtc)


def toolkit(driver: str, nvrtc: tuple[int, int] | None) -> Toolkit:
    """Versions of everything that a figure depends on; `nvrtc` made the cubin, None for the installed one."""
    import cupy
    import torch

    major, minor = nvrtc or toolchain().version
    return Toolkit(
        kernwright=VERSION,
        python=platform.python_version(),
        torch=torch.__version__,
        cupy=cupy.__version__,
        nvrtc=f"{major}.{minor}",
        driver=driver,
    )
