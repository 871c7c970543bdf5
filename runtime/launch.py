"""Launching kernels whose arguments have fixed addresses, so that a call writes numbers and calls the driver.

CuPy's own launcher packs every argument anew, several microseconds a kernel; here the arguments of all kernels of
a call lie in one block of memory, one slot a value, and the driver is told once where each kernel's are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ..table import Kernel
from . import graph_launch
from .captures import beside_captures
from .errors import LoadError
from .extended_launch import extended_launcher
from .graph_launch import GraphLaunch

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_LARGEST = 100  # percent
MOST_GRAPHS = 128
"""Of a frame: torch has 65 streams of its own; on what comes after that many, kernels are launched one by one."""

Launcher = Callable[[int, int, int], object]
"""Launches one kernel, given a stream's handle, the address of its parameters' addresses, and 0."""


class Module(Protocol):
    """Loaded machine code."""

    def launcher(self, kernel: Kernel) -> Launcher:
        """A function that launches `kernel` without further look-ups.

        Every frame asks for its own, so a launcher may keep memory that one call at a time writes to.

        Raises:
            LoadError: the kernel isn't there, or can't be launched on this device.
        """


class CudaModule:
    """Machine code that CuPy has loaded on a device."""

    def __init__(self, module: Any, sm_count: int | None) -> None:
        """Hold a `cupy.cuda.function.Module`, and the number of multiprocessors of its device."""
        self._module, self._sm_count = module, sm_count

    def address(self, symbol: str) -> int:
        """The CUfunction of a kernel, for questions to the driver."""
        pointer: int = self._module.get_function(symbol).ptr
        return pointer

    def launcher(self, kernel: Kernel) -> Launcher:
        """As the protocol says; kernels whose CTAs wait for each other must fit on the device at once."""
        from cupy_backends.cuda.api import driver

        try:
            with beside_captures():  # what is asked about is loaded, if it isn't yet
                pointer = self._module.get_function(kernel.symbol).ptr
                if (
                    kernel.shared_bytes > 0
                ):  # the limit without asking is on static and dynamic memory together
                    driver.funcSetAttribute(pointer, _MAX_DYNAMIC_SHARED, kernel.shared_bytes)
                if kernel.programmatic:
                    # An SM whose carveout differs drains first, and then nothing overlaps.
                    driver.funcSetAttribute(pointer, _CARVEOUT, _LARGEST)
                if kernel.resident:
                    self._check_residency(kernel, pointer)
        except LoadError:
            raise
        except Exception as error:  # CuPy's and the driver's classes have no common base of their own
            raise LoadError(f"could not load kernel {kernel.symbol}: {error}") from error
        if kernel.programmatic:
            return extended_launcher(pointer, kernel)
        geometry = (*kernel.grid, *kernel.block, kernel.shared_bytes)
        if kernel.cooperative:
            return lambda stream, parameters, _: driver.launchCooperativeKernel(
                pointer, *geometry, stream, parameters
            )
        return partial(driver.launchKernel, pointer, *geometry)

    def _check_residency(self, kernel: Kernel, pointer: int) -> None:
        from cupy_backends.cuda.api import driver

        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        each = driver.occupancyMaxActiveBlocksPerMultiprocessor(pointer, threads, kernel.shared_bytes)
        ctas = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
        if self._sm_count is not None and each * self._sm_count < ctas:
            raise LoadError(
                f"the CTAs of kernel {kernel.symbol} wait for each other, and {ctas} of {threads} threads are "
                f"launched; this device holds {each} on each of its {self._sm_count} SMs: take a candidate of "
                "fewer CTAs"
            )


class ArgumentBlock:
    """Memory for the arguments of one call.

    Attributes:
        values: what a call gives, to be written before the launches.
        low_bytes: the lowest byte of each of them, which tells how they are aligned.
        given: the bytes of all of them.
        launches: of each kernel its launcher, and the address of its parameters' addresses.
        graphs: the same launches as one graph, by stream.
    """

    def __init__(
        self,
        slots: Mapping[str, int],
        count: int,
        size: int,
        constants: Mapping[str, bytes],
        module: Module,
        kernels: Sequence[Kernel],
    ) -> None:
        """Lay the constants down, and point each kernel's parameters at their slots; LoadError as `launcher`."""
        memory = (ctypes.c_char * size)()
        base = ctypes.addressof(memory)
        self.values = (ctypes.c_uint64 * count).from_buffer(memory)  # keeps the memory
        self.given = memoryview(memory).cast("B")[: 8 * count]
        self.low_bytes = self.given[::8]
        for name, value in constants.items():
            ctypes.memmove(base + slots[name], value, len(value))
        self.launches: list[tuple[Launcher, int]] = []
        self._parameters = []
        for kernel in kernels:
            parameters = (ctypes.c_void_p * max(1, len(kernel.args)))(
                *[base + slots[name] for name in kernel.args]
            )
            self._parameters.append(parameters)
            self.launches.append((module.launcher(kernel), ctypes.addressof(parameters)))
        self.graphs: dict[int, GraphLaunch] = {}
        self._module, self._kernels = module, kernels
        self._seen: tuple[int, bytes] = (0, b"")
        self._refused = False

    def as_graph(self, stream: int, now: bytes) -> bool:
        """Launch as a graph what `given` holds, `now`; whether it did. The stream isn't being captured."""
        if self._refused:
            return False
        if len(self._kernels) == 1 and self._seen != (stream, now):
            self._seen = (stream, now)  # a graph of one kernel is worth it for what comes again
            return False
        graph = self.graphs.get(stream)
        if graph is None and len(self.graphs) >= MOST_GRAPHS:  # streams come and go without notice
            return False
        try:
            (graph or self._graph_on(stream)).launch(now, stream)
        except RuntimeError as error:
            # Nothing was launched. Kernels may still be: a graph takes memory of its own.
            self._refused = not _lacks_context(error)
            return False
        return True

    def _graph_on(self, stream: int) -> GraphLaunch:
        module: Any = self._module  # a CudaModule: others have no graphs
        functions = [module.address(kernel.symbol) for kernel in self._kernels]
        parameters = [address for _, address in self.launches]
        found = self.graphs[stream] = GraphLaunch(functions, self._kernels, parameters)
        return found


class LaunchSequence:
    """Kernels that are launched one after the other, with a slot for every argument.

    Threads may call it at the same time: each takes a frame of its own, and the driver copies the
    arguments before a launch returns.

    Attributes:
        frames: those that no call is using.
        as_graph: whether frames can be launched as graphs.
    """

    __slots__ = ("_constants", "_count", "_kernels", "_module", "_size", "_slots", "as_graph", "frames")

    def __init__(
        self,
        module: Module,
        kernels: Sequence[Kernel],
        values: Sequence[str],
        constants: Mapping[str, bytes] | None = None,
    ) -> None:
        """Resolve names to slots.

        Args:
            values: what a call gives, 64 bits each: pointers, and integers whose low bits a kernel takes.
            constants: arguments that never change, as the bytes that the kernels take.

        Raises:
            LoadError: a kernel isn't in the module, or takes an argument that isn't given.
        """
        self._constants = dict(constants or {})
        self._slots = {name: 8 * index for index, name in enumerate(values)}
        self._count = len(values)
        self._size = max(8, 8 * len(values))
        for name, value in self._constants.items():
            self._slots[name] = self._size
            self._size += -(-len(value) // 8) * 8
        for kernel in kernels:
            unknown = [name for name in kernel.args if name not in self._slots]
            if unknown:
                raise LoadError(
                    f"kernel {kernel.symbol} takes {', '.join(unknown)}, which is neither a tensor of this kind nor "
                    f"scratch; known are {', '.join(self._slots)}: run `kernwright generate`"
                )
        self._module, self._kernels = module, tuple(kernels)
        self.frames = [self.frame()]
        self.as_graph = isinstance(module, CudaModule) and graph_launch.suits(self._kernels)

    def frame(self) -> ArgumentBlock:
        """One more frame, for a call that found none free."""
        made = (self._slots, self._count, self._size, self._constants, self._module, self._kernels)
        try:
            return ArgumentBlock(*made)
        except LoadError as error:
            if not _bound_context(error):
                raise
            return ArgumentBlock(*made)

    def __call__(self, values: Sequence[int], stream: int) -> None:
        """Launch on a stream of the kernels' device, which is the current one; doesn't wait."""
        try:
            frame = self.frames.pop()
        except IndexError:  # other threads are calling
            frame = self.frame()
        frame.values[:] = values  # type: ignore[call-overload]  # any sequence will do
        try:
            for launcher, parameters in frame.launches:
                launcher(stream, parameters, 0)
        except Exception as error:
            launch_again(frame, stream, error)
        self.frames.append(frame)


def launch_again(frame: ArgumentBlock, stream: int, error: Exception) -> None:
    """Launch again the first kernel, which failed because the thread had no context; else raise `error`."""
    if not _bound_context(error):
        raise error
    for launcher, parameters in frame.launches:
        launcher(stream, parameters, 0)


def _lacks_context(error: Exception) -> bool:
    return "CUDA_ERROR_INVALID_CONTEXT" in str(error)


def _bound_context(error: Exception) -> bool:
    """Give a thread that has made no CUDA call yet the context of its device, if that is what was missing.

    The driver's calls, unlike the runtime's, don't do so themselves, and asking before every launch would cost
    more than the launch.
    """
    if not _lacks_context(error):
        return False
    from cupy_backends.cuda.api import runtime

    with beside_captures():
        runtime.setDevice(runtime.getDevice())
    return True
