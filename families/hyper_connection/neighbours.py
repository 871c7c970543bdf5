"""The kernel in front of a boundary on its stream: what it must do, and whether both fit on an SM.

A boundary of route `one_kernel` or `two_kernels` fetches its weights while the kernel in front of it runs, if that
kernel allows it: by an instruction, a carveout, and room on every SM (docs/hopper.md). The instruction is in that
kernel's text. The carveout is set by `share_sm`, and `coresidency` computes from the driver's attributes if there
is room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...runtime.launch import CudaModule
from ...table import Kernel

if TYPE_CHECKING:
    from ...runtime.plan import Plan

TRIGGER = "griddepcontrol.launch_dependents"
"""PTX that a neighbour begins with, in every CTA; `cudaTriggerProgrammaticLaunchCompletion()` in C++."""
WAIT = "griddepcontrol.wait"
"""PTX that it executes before it ends, in every CTA, if it is itself launched programmatically."""
CARVEOUT = 100
"""Percent of an SM's memory that programmatic boundaries ask for as shared: an SM that differs drains first."""

_STATIC_SHARED, _REGISTERS, _CARVEOUT = 1, 4, 9  # CU_FUNC_ATTRIBUTE_...
WARP = 32
_WARPS_TOGETHER = 4
"""Warps of a CTA are spread over an SM's four schedulers, each with registers of its own."""
_REGISTERS_TOGETHER, _SHARED_TOGETHER = 256, 128
"""Units in which a warp gets registers and a CTA shared memory, bytes."""


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What an SM has."""

    count: int
    """SMs of the device."""
    shared_bytes: int
    reserved_bytes: int
    """Of shared memory, that the driver keeps for every CTA."""
    registers: int
    threads: int
    ctas: int

    @classmethod
    def of(cls, index: int) -> Multiprocessor:
        """Ask the driver about device `index`."""
        import cupy

        of: Any = cupy.cuda.Device(index).attributes
        return cls(
            count=of["MultiProcessorCount"],
            shared_bytes=of["MaxSharedMemoryPerMultiprocessor"],
            reserved_bytes=of["ReservedSharedMemoryPerBlock"],
            registers=of["MaxRegistersPerMultiprocessor"],
            threads=of["MaxThreadsPerMultiProcessor"],
            ctas=of["MaxBlocksPerMultiprocessor"],
        )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a kernel takes of an SM."""

    name: str
    ctas: int
    """In its grid."""
    threads: int
    """Of a CTA."""
    registers: int
    """Of a thread."""
    shared_bytes: int
    """Of a CTA, static and dynamic."""
    carveout: int = -1
    """Preferred percentage of shared memory; -1 leaves it to the driver."""

    @classmethod
    def of(cls, function: Any, ctas: int, threads: int, dynamic_bytes: int = 0, name: str = "") -> Footprint:
        """Ask the driver about a kernel.

        Args:
            function: CuPy's function or RawKernel, or a CUfunction's address.
            ctas: of the launch.
            threads: of a CTA.
            dynamic_bytes: of shared memory.
            name: for messages; by default CuPy's.
        """
        from cupy_backends.cuda.api import driver

        pointer = address_of(function)
        return cls(
            name=name or getattr(function, "name", "") or f"the kernel at {pointer:#x}",
            ctas=ctas,
            threads=threads,
            registers=driver.funcGetAttribute(_REGISTERS, pointer),
            shared_bytes=driver.funcGetAttribute(_STATIC_SHARED, pointer) + dynamic_bytes,
            carveout=driver.funcGetAttribute(_CARVEOUT, pointer),
        )

    def cta_registers(self) -> int:
        """Registers that a CTA takes."""
        warps = _round_up(-(-self.threads // WARP), _WARPS_TOGETHER)
        return warps * _round_up(self.registers * WARP, _REGISTERS_TOGETHER)

    def cta_shared(self, sm: Multiprocessor) -> int:
        """Shared memory that a CTA takes, bytes."""
        return _round_up(self.shared_bytes, _SHARED_TOGETHER) + sm.reserved_bytes

    def on_an_sm(self, sm: Multiprocessor) -> int:
        """CTAs that share the fullest SM while the kernel has the device to itself."""
        most = min(
            sm.ctas,
            sm.threads // self.threads,
            sm.registers // self.cta_registers(),
            sm.shared_bytes // self.cta_shared(sm),
        )
        return min(most, -(-self.ctas // sm.count))


@dataclass(frozen=True, slots=True)
class Coresidency:
    """Whether a boundary's CTAs find room beside a neighbour's."""

    obstacles: tuple[str, ...]
    """What is in the way, a sentence each; none if both fit."""

    def __bool__(self) -> bool:
        """Whether they do."""
        return not self.obstacles

    def __str__(self) -> str:
        """All of it."""
        return " ".join(self.obstacles) or "Both fit an SM at the same time."


def share_sm(function: Any) -> None:
    """Give a neighbour the shared-memory carveout of a boundary, so that neither waits for the other to end.

    Args:
        function: CuPy's function or RawKernel, or a CUfunction's address; on the current device.
    """
    from cupy_backends.cuda.api import driver

    driver.funcSetAttribute(address_of(function), _CARVEOUT, CARVEOUT)


def coresidency(plan: Plan, neighbour: Footprint) -> Coresidency:
    """Whether the first kernel of a plan fits onto SMs that a neighbour is running on.

    It says nothing of the trigger, which no attribute shows: without it the boundary begins when the neighbour has
    ended, whatever the room.

    Args:
        plan: of a programmatic candidate, on a CUDA device.
        neighbour: the kernel in front, by `Footprint.of`.

    Raises:
        ValueError: the plan isn't programmatic, or isn't a CUDA device's.
    """
    boundary, index = footprint(plan)
    return fits(boundary, neighbour, Multiprocessor.of(index))


def footprint(plan: Plan) -> tuple[Footprint, int]:
    """The first kernel of a plan, and the ordinal of its device.

    Raises:
        ValueError: as `coresidency`.
    """
    import torch

    from ...runtime.device import current
    from ...runtime.loader import load

    kernel = first_kernel(plan)
    if plan.device is None:
        raise ValueError(
            f"the plan of {plan.candidate.name} is the emulator's, which has no SMs: make it on a GPU"
        )
    here = current(torch.device("cuda", plan.device))
    # The plan's module is loaded, so that nothing is read from a folder.
    module = cast(CudaModule, load(Path(), plan.candidate.builds[plan.arch], plan.arch, here))
    pointer, threads = module.address(kernel.symbol), math.prod(kernel.block)
    found = Footprint.of(pointer, math.prod(kernel.grid), threads, kernel.shared_bytes, kernel.symbol)
    return found, plan.device


def first_kernel(plan: Plan) -> Kernel:
    """The kernel that stands behind the neighbour.

    Raises:
        ValueError: it isn't launched programmatically.
    """
    kernel = plan.candidate.kernels[plan.candidate.steps[plan.kind][0]]
    if not kernel.programmatic:
        raise ValueError(
            f"kernel {kernel.symbol} of candidate {plan.candidate.name} isn't launched programmatically: it begins "
            "when the kernel in front has ended, whatever that leaves; take a candidate of route one_kernel or "
            "two_kernels"
        )
    return kernel


def fits(boundary: Footprint, neighbour: Footprint, sm: Multiprocessor) -> Coresidency:
    """The arithmetic of `coresidency`: one CTA of the boundary, beside all of the neighbour's that share an SM."""
    return Coresidency(tuple(_obstacles(boundary, neighbour, sm)))


def _obstacles(boundary: Footprint, neighbour: Footprint, sm: Multiprocessor) -> Iterator[str]:
    each = neighbour.on_an_sm(sm)
    mine = -(-boundary.ctas // sm.count)
    counted, verb = ("one CTA", "takes") if each == 1 else (f"{each} CTAs", "take")
    needs = {
        "bytes of shared memory": (
            mine * boundary.cta_shared(sm),
            each * neighbour.cta_shared(sm),
            sm.shared_bytes,
        ),
        "registers": (mine * boundary.cta_registers(), each * neighbour.cta_registers(), sm.registers),
        "threads": (mine * boundary.threads, each * neighbour.threads, sm.threads),
        "CTAs": (mine, each, sm.ctas),
    }
    for what, (ours, theirs, most) in needs.items():
        if ours + theirs > most:
            yield (
                f"An SM has {most} {what}: {boundary.name} needs {ours}, and {counted} of {neighbour.name} "
                f"{verb} {theirs}; let it take at most {max(0, most - ours)}."
            )
    if neighbour.carveout != CARVEOUT:
        found = "left to the driver" if neighbour.carveout < 0 else f"{neighbour.carveout}%"
        yield (
            f"The preferred shared-memory carveout of {neighbour.name} is {found}, that of {boundary.name} is "
            f"{CARVEOUT}%: an SM drains before it changes; call share_sm on the kernel once."
        )


def address_of(function: Any) -> int:
    """The CUfunction's address.

    Raises:
        ValueError: it is no function of the driver.
    """
    if isinstance(function, int):
        return function
    kernel = getattr(function, "kernel", function)  # a RawKernel holds its function
    pointer = getattr(kernel, "ptr", None)
    if not isinstance(pointer, int):
        raise ValueError(
            f"{function!r} is no kernel that the driver knows; pass CuPy's function or RawKernel, or the address of "
            "a CUfunction"
        )
    return pointer


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
