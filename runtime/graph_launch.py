"""One call of the driver for all kernels of a call: a CUDA graph of them, whose arguments are set where they change.

Launching a graph costs the host less than launching a kernel, and setting the arguments of its nodes about as much as
one more launch, however many they are. So several kernels are always a graph, and one kernel is a graph as long as
its arguments stay the same. A graph belongs to one frame and one stream: launches of a graph wait for each other,
and those on another stream shouldn't.
`KERNWRIGHT_GRAPH_LAUNCH=0` launches kernel by kernel, for profilers that don't look into graphs.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ..table import Kernel
from . import fork
from .captures import beside_captures
from .errors import LoadError
from .extended_launch import driver, error_name
from .settings import switch

VARIABLE = "KERNWRIGHT_GRAPH_LAUNCH"


class KernelNode(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@cache
def enabled() -> bool:
    """Whether `KERNWRIGHT_GRAPH_LAUNCH` isn't 0; read once, by `switch`."""
    return switch(VARIABLE, default=True)


def suits(kernels: Sequence[Kernel]) -> bool:
    """Whether kernels can be launched as a graph here without a loss.

    The edge of a programmatic launch doesn't reach from one graph into the next, and CTAs that wait for peers should
    begin as soon as they can.
    """
    if not enabled() or any(k.programmatic or k.cooperative or k.resident for k in kernels):
        return False
    return _functions() is not None


class GraphLaunch:
    """An instantiated graph of kernels, one behind the other. One thread at a time may use it.

    Attributes:
        ready: the executable graph, a CUgraphExec.
        given: the arguments that are set in it, everything that calls change; empty where they are half set.
    """

    __slots__ = ("__weakref__", "_nodes", "given", "ready")

    def __init__(
        self, functions: Sequence[int], kernels: Sequence[Kernel], parameters: Sequence[int]
    ) -> None:
        """Build and instantiate it; RuntimeError where the driver refuses.

        What `parameters` (of each kernel, the address of its parameters' addresses) point to is read now, and
        whenever it has changed.
        """
        library = _functions()
        assert library is not None
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._nodes: list[tuple[int, int, KernelNode]] = []
        with beside_captures():
            _check(library.cuGraphCreate(ctypes.byref(graph), 0), "make a graph")
            try:
                before: Any = None
                for function, kernel, at in zip(functions, kernels, parameters, strict=True):
                    found = KernelNode(function, kernel.grid, kernel.block, kernel.shared_bytes, at)
                    node = ctypes.c_void_p()
                    links = (before, 1) if before else (None, 0)
                    status = library.cuGraphAddKernelNode_v2(
                        ctypes.byref(node), graph, *links, ctypes.byref(found)
                    )
                    _check(status, f"take kernel {kernel.symbol} into a graph")
                    before = ctypes.byref(node)
                    self._nodes.append((node.value or 0, ctypes.addressof(found), found))
                status = library.cuGraphInstantiateWithFlags(
                    ctypes.byref(ready), graph, ctypes.c_ulonglong(0)
                )
                _check(status, "instantiate a graph")
            except RuntimeError:
                library.cuGraphDestroy(graph)
                raise
        weakref.finalize(self, _destroy, library, graph, ready).atexit = False
        self.ready, self.given = ready, b""

    def launch(self, given: bytes, stream: int) -> None:
        """Set the arguments where they aren't yet, and launch; `stream` isn't being captured.

        Raises:
            RuntimeError: the driver refuses; nothing was launched.
        """
        if given != self.given:
            self.given = b""
            update = _functions().cuGraphExecKernelNodeSetParams_v2
            for node, address, _ in self._nodes:
                _check(update(self.ready, node, address), "set the arguments of a graph's kernel")
            self.given = given
        _check(launcher()(self.ready, stream), "launch a graph")


def launcher() -> Callable[[ctypes.c_void_p, int], int]:
    """The driver's function that launches an executable graph on a stream which isn't captured; gives a status."""
    function: Callable[[ctypes.c_void_p, int], int] = _functions().cuGraphLaunch
    return function


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"the driver doesn't {what}: {error_name(status)}")


def _destroy(library: Any, graph: ctypes.c_void_p, ready: ctypes.c_void_p) -> None:
    """Destroy the graph when it is garbage-collected; the driver keeps launches in flight until they have ended."""
    if not fork.happened:
        with beside_captures():
            library.cuGraphExecDestroy(ready)
            library.cuGraphDestroy(graph)


@cache
def _functions() -> Any:
    """The driver's library with the types of what calls use; None where it is older than CUDA 12."""
    try:
        library = driver()
        pointer = ctypes.c_void_p
        library.cuGraphExecKernelNodeSetParams_v2.argtypes = (pointer,) * 3
        library.cuGraphLaunch.argtypes = (pointer,) * 2
        library.cuGraphExecDestroy.argtypes = library.cuGraphDestroy.argtypes = (pointer,)
        library.cuGraphAddKernelNode_v2.argtypes = (*(pointer,) * 3, ctypes.c_size_t, pointer)
        library.cuGraphInstantiateWithFlags.argtypes = (pointer, pointer, ctypes.c_ulonglong)
    except (LoadError, AttributeError):
        return None
    return library
