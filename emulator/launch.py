"""Launches of compiled kernels on NumPy arrays, over ranks and streams, under one schedule."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .build import TEXT_FILE, Object
from .native import World, parameter_sizes
from .report import Fault, parse_report, program_counter
from .schedule import Interleaving

Array = NDArray[Any]
POISONS = (0xFF, 0x3C)
"""NaN in every float format and -1; a number near 1 or 0.01."""
MAX_THREADS = 1024
MAX_SHARED = 227 * 1024


@dataclass(frozen=True, eq=False)
class DeviceBuffer:
    """Device memory of one rank. Two buffers are the same only if they are the same object."""

    name: str
    array: Array
    """What it holds before the run; of an output only shape and dtype count."""
    access: Literal["in", "out", "inout"]
    rank: int = 0
    dtype: str = ""
    """What the bits mean (`float16`, `bfloat16`, `float32`), so that any NaN equals any NaN; empty: integers."""

    @classmethod
    def input(cls, name: str, array: Array, rank: int = 0) -> DeviceBuffer:
        """A buffer that kernels may only read."""
        return cls(name, np.ascontiguousarray(array), "in", rank, _float_name(array.dtype))

    @classmethod
    def output(cls, name: str, shape: tuple[int, ...], dtype: str, rank: int = 0) -> DeviceBuffer:
        """A buffer without contents; `dtype` is NumPy's name or `bfloat16`, whose arrays are uint16."""
        array = np.empty(shape, np.uint16 if dtype == "bfloat16" else dtype)
        return cls(name, array, "out", rank, dtype if dtype == "bfloat16" else _float_name(array.dtype))

    @classmethod
    def inout(cls, name: str, array: Array, rank: int = 0) -> DeviceBuffer:
        """A buffer with contents that kernels may change."""
        return cls(name, np.ascontiguousarray(array), "inout", rank, _float_name(array.dtype))


def _float_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind == "f" else ""


Argument = DeviceBuffer | np.generic | tuple[DeviceBuffer, ...]
"""A pointer, a scalar of a NumPy type, or a struct of pointers passed by value."""


@dataclass(frozen=True)
class EmulatedLaunch:
    """One kernel launch. Launches of a rank and stream run in order; others may overlap."""

    kernel: Object
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    shared_bytes: int = 0
    """Dynamic shared memory, bytes."""
    rank: int = 0
    stream: int = 0
    programmatic: bool = False
    """Programmatic dependent launch: may begin once every CTA of the launch before it has let dependents
    launch or has ended; `griddepcontrol.wait` waits for its end."""


@dataclass(frozen=True)
class Outcome:
    schedule: Interleaving
    arrays: Mapping[DeviceBuffer, Array]
    """Outputs and changed buffers as they were at the end."""
    fault: Fault | None
    """The first fault; the run ended there."""
    switches: int
    """Switches between CUDA threads."""


def run(
    launches: Sequence[EmulatedLaunch],
    schedule: Interleaving = Interleaving(),  # noqa: B008
    poison: int | None = None,
    patience: float = 30.0,
) -> Outcome:
    """Run launches once.

    If a kernel may wait for other CTAs, or a launch is programmatic, all CTAs that the streams allow are alive
    at the same time and are interleaved; else they run one after the other, which is faster. The byte `poison`
    fills shared memory, outputs and what surrounds buffers; it follows from the seed unless given, as does whether
    buffers end at a guard page or begin at one. A thread that lets no other run is stopped after `patience` seconds.

    Raises:
        ValueError: a launch doesn't fit its kernel or the hardware's limits.
    """
    for launch in launches:
        _check(launch)
    concurrent = any(launch.kernel.waits or launch.programmatic for launch in launches)
    if poison is None:
        poison = POISONS[schedule.seed // 2 % 2]
    with World(schedule, poison, concurrent=concurrent, patience=patience) as world:
        memory = {
            buffer: world.buffer(buffer, at_end=schedule.seed % 2 == 0) for buffer in buffers_of(launches)
        }
        addresses = {buffer: view.ctypes.data for buffer, view in memory.items()}
        for buffer, view in memory.items():
            if buffer.access != "out":
                view[:] = buffer.array.reshape(-1).view(np.uint8)
        for launch in launches:
            world.add(launch, [packed(argument, addresses) for argument in launch.args])
        report = world.run()
        arrays = {
            buffer: view.copy().view(buffer.array.dtype).reshape(buffer.array.shape)
            for buffer, view in memory.items()
            if buffer.access != "in"
        }
        return Outcome(schedule, arrays, fault_of(report, launches), world.switches)


def buffers_of(launches: Sequence[EmulatedLaunch]) -> list[DeviceBuffer]:
    """Every buffer that the launches take, each once, in order of appearance."""
    given = (argument for launch in launches for argument in launch.args)
    return list(dict.fromkeys(buffer for argument in given for buffer in pointed(argument)))


def pointed(argument: Argument) -> tuple[DeviceBuffer, ...]:
    """The buffers whose addresses an argument holds; none of a scalar."""
    if isinstance(argument, np.generic):
        return ()
    return argument if isinstance(argument, tuple) else (argument,)


def packed(argument: Argument, addresses: Mapping[DeviceBuffer, int]) -> bytes:
    """An argument's bytes, as the driver would copy them."""
    if isinstance(argument, np.generic):
        return argument.tobytes()
    return b"".join(addresses[buffer].to_bytes(8, "little") for buffer in pointed(argument))


def _check(launch: EmulatedLaunch) -> None:
    kernel = launch.kernel
    if launch.symbol not in kernel.symbols:
        raise ValueError(f"{kernel.name} has no kernel {launch.symbol}; it has {', '.join(kernel.symbols)}.")
    if min(*launch.grid, *launch.block) < 1:
        raise ValueError(
            f"{launch.symbol}: grid {launch.grid} and block {launch.block} must be at least 1 each."
        )
    threads = int(np.prod(launch.block))
    if threads > MAX_THREADS:
        raise ValueError(f"{launch.symbol}: a CTA of {threads} threads; {MAX_THREADS} are allowed.")
    if launch.shared_bytes > MAX_SHARED:
        raise ValueError(
            f"{launch.symbol}: {launch.shared_bytes} bytes of dynamic shared memory; {MAX_SHARED} are allowed."
        )
    for position, argument in enumerate(launch.args):
        if not isinstance(argument, DeviceBuffer | np.generic | tuple):
            raise ValueError(
                f"{launch.symbol}: argument {position} is a Python {type(argument).__name__}; give a DeviceBuffer, a "
                "tuple of buffers, or a scalar with a NumPy type, e.g. np.int32(3)."
            )
    expected = parameter_sizes(kernel, launch.symbol) if kernel.variant != "sanitized" else None
    given = tuple(
        argument.nbytes if isinstance(argument, np.generic) else 8 * len(pointed(argument))
        for argument in launch.args
    )
    if expected is not None and given != expected:
        raise ValueError(
            f"{launch.symbol} takes {len(expected)} arguments of {list(expected)} bytes; "
            f"{len(given)} of {list(given)} bytes were given."
        )


def fault_of(report: str, launches: Sequence[EmulatedLaunch]) -> Fault | None:
    """The fault in the runtime's report, under the names of the launches' texts; None if it is empty."""
    fault = parse_report(report)
    if fault is None:
        return None
    where = getattr(fault, "where", None)
    kernel = launches[where.launch if where is not None else 0].kernel
    pc = program_counter(report)
    fault = parse_report(report.replace(TEXT_FILE, kernel.name), _line(kernel, pc) if pc else "")
    assert fault is not None
    return fault


@functools.cache
def _line(kernel: Object, pc: int) -> str:
    """`file:line` of a place in an object, by binutils; empty where that isn't installed."""
    tool = shutil.which("addr2line")
    if tool is None:
        return ""
    command = [tool, "-i", "-s", "-e", str(kernel.path), hex(pc)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    known = [line.partition(" ")[0] for line in lines if line and not line.startswith("?")]
    inlined = [line for line in known if line.startswith(TEXT_FILE)] or known
    return " < ".join(line.replace(TEXT_FILE, kernel.name) for line in inlined)
