"""Dispatch modules of hand-made tables, and a GPU that is pretended: CPU tensors count as an H200's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import kernwright
import pytest
import torch
from harness.paths import TESTS
from harness.settings import fresh_settings  # noqa: F401  (a fixture)
from kernwright.runtime import Device, Dispatch, dispatch, plan
from kernwright.runtime import op as op_base
from kernwright.table import Kernel

H200 = Device("sm_90", 132, "NVIDIA H200", 0)


class Recorder:
    """Stands for loaded machine code; writes down who launched what with which arguments."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, str, list[int]]] = []
        """Thread, symbol, arguments."""

    def launcher(self, kernel: Kernel) -> Callable[[int, int, int], object]:
        def launch(_stream: int, parameters: int, _extra: int) -> None:
            addresses = (ctypes.c_void_p * len(kernel.args)).from_address(parameters)
            values = [ctypes.c_uint64.from_address(address).value for address in addresses if address]
            self.launches.append((threading.get_ident(), kernel.symbol, values))

        return launch

    @property
    def symbols(self) -> list[str]:
        return [symbol for _, symbol, _ in self.launches]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Pretend that CPU tensors lie on an H200."""
    recorder = Recorder()
    monkeypatch.setattr(op_base, "current", lambda _: H200)
    monkeypatch.setattr(dispatch, "load", lambda *_: recorder)
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: 0)
    monkeypatch.setattr(plan, "device_query", lambda: None)
    return recorder


_numbers = iter(range(10**6))


@pytest.fixture
def bound(make: ModuleType) -> Dispatch:
    """A dispatch module of one workload, HC4 x H64, whose operators have a namespace of their own."""
    work = make.workload(make.candidate("control"), make.candidate("fast"), records=(make.record("fast"),))
    return make.dispatch_of(work, root=Path(f"/nowhere{next(_numbers)}/generated"))


@pytest.fixture
def op(bound: Dispatch) -> Any:
    return bound.operators["hyper_connection"]


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., str]:
    """Run a text in a fresh process that can import `kernwright` and `harness`; gives its standard output."""
    caches = tmp_path / "inductor"

    def run(code: str, **environment: str) -> str:
        search = os.pathsep.join([str(Path(kernwright.__file__).parents[1]), str(TESTS)])
        settings = {name: value for name, value in os.environ.items() if not name.startswith("KERNWRIGHT_")}
        settings |= {"PYTHONPATH": search, "TORCHINDUCTOR_CACHE_DIR": str(caches), "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=settings | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


@pytest.fixture
def same_bits() -> Callable[..., bool]:
    """Whether tensors are equal as integers; None equals None."""

    def same(found: Any, expected: Any) -> bool:
        return all(
            (one is None and other is None) or torch.equal(one.view(torch.int16), other.view(torch.int16))
            for one, other in zip(found, expected, strict=True)
        )

    return same
