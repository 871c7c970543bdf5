"""The runtime through ctypes: one `World` is one run."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .build import Object, runtime_library
from .schedule import POLICIES, Interleaving

if TYPE_CHECKING:
    from .launch import DeviceBuffer, EmulatedLaunch

ACCESS = ("in", "out", "inout")
"""`DeviceBuffer.access`, in the order of their numbers in native/api.h."""


class _LaunchRecord(ctypes.Structure):
    """`kernwright_launch` of native/api.h."""

    _fields_ = (
        ("symbol", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("module", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("stream", ctypes.c_int),
        ("programmatic", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_char_p),
        ("argument_ends", ctypes.POINTER(ctypes.c_uint32)),
        ("argument_count", ctypes.c_int),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime_library()))
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "create": (
            ctypes.c_void_p,
            (ctypes.c_uint64, ctypes.c_int, ctypes.c_uint, ctypes.c_int, ctypes.c_double),
        ),
        "destroy": (None, (ctypes.c_void_p,)),
        "module": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
        "buffer": (
            ctypes.c_void_p,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
        ),
        "add_launch": (None, (ctypes.c_void_p, ctypes.POINTER(_LaunchRecord))),
        "run": (ctypes.c_char_p, (ctypes.c_void_p,)),
        "switches": (ctypes.c_uint64, (ctypes.c_void_p,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"kernwright_{name}")
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def load(kernel: Object) -> ctypes.CDLL:
    return ctypes.CDLL(str(kernel.path))


@functools.cache
def parameter_sizes(kernel: Object, symbol: str) -> tuple[int, ...]:
    sizes = (ctypes.c_int * 256)()
    count = getattr(load(kernel), f"kernwright_parameters_{symbol}")(sizes, len(sizes))
    return tuple(sizes[:count])


class World:
    """Buffers, launches and one run of them; a context manager that frees the buffers."""

    def __init__(self, schedule: Interleaving, poison: int, *, concurrent: bool, patience: float) -> None:
        """`poison` (a byte) fills memory that wasn't written; see `launch.run` for the others."""
        policy = POLICIES.index(schedule.policy)
        self._library = _library()
        self._handle = self._library.kernwright_create(schedule.seed, policy, poison, concurrent, patience)
        self._modules: dict[Object, int] = {}

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.kernwright_destroy(self._handle)

    def buffer(self, buffer: DeviceBuffer, *, at_end: bool) -> NDArray[np.uint8]:
        """Guarded memory, poisoned, as bytes that can be filled before the run and read after it.

        Raises:
            MemoryError: the machine has none left.
        """
        name, rank, size = buffer.name, buffer.rank, buffer.array.nbytes
        access = ACCESS.index(buffer.access)
        address = self._library.kernwright_buffer(self._handle, name.encode(), rank, size, access, at_end)
        if address is None:
            raise MemoryError(f"The machine has no {size} bytes left for the buffer {name} of rank {rank}.")
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def add(self, launch: EmulatedLaunch, arguments: Sequence[bytes]) -> None:
        """Add a launch behind those of its rank and stream."""
        library = load(launch.kernel)
        if launch.kernel not in self._modules:
            shared, dynamic = (
                _address(library, name) for name in ("kernwright_shared", "kernwright_dynamic")
            )
            self._modules[launch.kernel] = self._library.kernwright_module(self._handle, shared, dynamic)
        ends = np.cumsum([len(argument) for argument in arguments], dtype=np.uint32)
        record = _LaunchRecord(
            symbol=launch.symbol.encode(),
            call=_address(library, f"kernwright_call_{launch.symbol}"),
            module=self._modules[launch.kernel],
            rank=launch.rank,
            stream=launch.stream,
            programmatic=launch.programmatic,
            grid=tuple(launch.grid),
            block=tuple(launch.block),
            shared_bytes=launch.shared_bytes,
            arguments=b"".join(arguments),
            argument_ends=ends.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)),
            argument_count=len(arguments),
        )
        self._library.kernwright_add_launch(self._handle, ctypes.byref(record))

    def run(self) -> str:
        """Run all launches; returns the report, empty if nothing was found."""
        report: bytes = self._library.kernwright_run(self._handle)
        return report.decode(errors="replace")

    @property
    def switches(self) -> int:
        return int(self._library.kernwright_switches(self._handle))


def _address(library: ctypes.CDLL, name: str) -> int | None:
    function: Callable[[], object] | None = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
