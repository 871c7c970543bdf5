"""The provenance of a record: what was compared, and the versions of everything."""

from __future__ import annotations

import platform

from ..compiler.toolchain import toolchain
from ..ledger import Closeness, Exactness, Toolkit
from ..version import VERSION
from .gate import Gate


def exactness_of(
    gate: Gate, against: str, refused: str | None, closeness: Closeness | None = None
) -> Exactness:
    """The gate's result; a graph that doesn't do the work counts as one wrong value."""
    first = str(gate.first) if gate.first else refused
    return Exactness(
        cases=gate.cases,
        values=gate.values,
        mismatches=gate.mismatches + (refused is not None),
        against=against,
        first=first,
        closeness=closeness,
    )


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
