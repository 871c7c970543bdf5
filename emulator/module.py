"""A generated source as a loaded module whose kernels run on the CPU, launched as the runtime launches on a GPU."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..runtime.communicator.local import LocalCommunicator
from ..runtime.device import Device
from ..runtime.errors import LoadError
from ..runtime.launch import Launcher, Module
from ..runtime.loader import source_text
from ..table import Build, Kernel, Table
from .build import Object, compile_text
from .launch import EmulatedLaunch, run
from .native import parameter_sizes
from .schedule import Interleaving

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class EmulatedModule:
    """See `runtime.launch.Module`; every launch runs to its end, under a schedule of its own.

    Arguments have no guard pages, so out-of-bounds accesses may go unnoticed; `emulator.check` and `fuzz` find them.
    """

    def __init__(self, kernel: Object) -> None:
        self._object = kernel
        self._seeds = itertools.count()

    def launcher(self, kernel: Kernel) -> Launcher:
        """A function that runs `kernel`.

        Raises:
            LoadError: the text has no such kernel.
        """
        if kernel.symbol not in self._object.symbols:
            raise LoadError(f"{self._object.name} has no kernel {kernel.symbol}; run `kernwright generate`")
        sizes = parameter_sizes(self._object, kernel.symbol)

        def launch(_stream: int, parameters: int, _extra: int) -> None:
            addresses = (ctypes.c_void_p * len(sizes)).from_address(parameters)
            args = tuple(
                np.void(ctypes.string_at(address, size))
                for address, size in zip(addresses, sizes, strict=True)
                if address
            )
            one = EmulatedLaunch(
                self._object, kernel.symbol, kernel.grid, kernel.block, args, kernel.shared_bytes
            )
            outcome = run([one], Interleaving(seed=next(self._seeds), policy="random"))
            if outcome.fault is not None:
                raise RuntimeError(str(outcome.fault))

        return launch


class EmulatedCommunicator(LocalCommunicator):
    """Local ranks on the CPU: the kernels of an architecture are executed by the emulator."""

    def __init__(
        self,
        table: Table,
        world_size: int,
        *,
        arch: str = "sm_90",
        specs: Iterable[str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Open the channels in the process's memory; errors as `LocalCommunicator`."""
        import torch

        super().__init__(table, world_size, torch.device("cpu"), specs=specs, timeout_s=timeout_s)
        self._target = Device(arch, None, "emulator")
        self._loaded: dict[str, EmulatedModule] = {}

    @property
    def target(self) -> Device:
        return self._target

    def device_of(self, tensor: torch.Tensor) -> Device:
        del tensor
        return self._target

    def load(self, root: Path, build: Build, arch: str, device: Device) -> Module:
        """The source of `build`, compiled for the CPU.

        Raises:
            LoadError: the source can't be read, or doesn't compile.
        """
        del arch, device
        if build.sha256 not in self._loaded:
            text = source_text(root, build)
            try:
                self._loaded[build.sha256] = EmulatedModule(compile_text(text, Path(build.source).name))
            except Exception as error:
                raise LoadError(f"{build.source} can't be compiled for the CPU: {error}") from error
        return self._loaded[build.sha256]
