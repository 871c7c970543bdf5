"""Devices as values, so that selection can be asked about hardware that isn't here.

A CPU is a device without an architecture. Which build serves which device is decided by `serves`
(docs/spec_files.md): the exact architecture first, else the same major version with a lower minor one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..table import DeviceKind

if TYPE_CHECKING:
    import torch

_ARCH = re.compile(r"sm_(\d+)(\d)(a?)")


@dataclass(frozen=True, slots=True)
class Device:
    """Where a call runs, or is imagined to run."""

    arch: str | None
    """`sm_90` and the like; None for a CPU and for whatever isn't an NVIDIA GPU."""
    sm_count: int | None = None
    """Streaming multiprocessors; None where it isn't known."""
    name: str | None = None
    """The driver's name of the GPU, or the kind of a device that has no architecture."""
    index: int | None = None
    """CUDA ordinal; None for a device that is only imagined."""

    @property
    def kind(self) -> DeviceKind | None:
        """What measurements on this device are valid for; None where that isn't known."""
        if self.arch is None or self.sm_count is None or self.name is None:
            return None
        return DeviceKind(self.arch, self.sm_count, self.name)

    def __str__(self) -> str:
        """`sm_90, 132 SMs, NVIDIA H200`, as far as known."""
        if self.arch is None:
            return self.name or "a CPU"
        parts = [self.arch]
        if self.sm_count is not None:
            parts.append(f"{self.sm_count} SMs")
        if self.name is not None:
            parts.append(self.name)
        return ", ".join(parts)


CPU = Device(arch=None, name="cpu")


def fake(arch: str | None, sm_count: int | None = None, name: str | None = None) -> Device:
    """A device that isn't here, for `explain` and for tests; ValueError where `arch` isn't written like `sm_90`."""
    if arch is None:
        return CPU
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ValueError(f"the architecture is {arch!r}; it is written like sm_70 or sm_90: correct it")
    # A device is not an `a` variant: sm_90 and sm_90a name the same hardware.
    return Device(f"sm_{match[1]}{match[2]}", sm_count, name)


def current(device: torch.device) -> Device:
    """The device of a tensor; properties are asked of the driver once per GPU."""
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        return CPU if device.type == "cpu" else Device(arch=None, name=device.type)
    return _cuda(torch.cuda.current_device() if device.index is None else device.index)


def placed(device: torch.device) -> torch.device:
    """The device that is meant, where `cuda` alone means torch's current one."""
    import torch

    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


@cache
def _cuda(index: int) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(index)
    arch = f"sm_{properties.major}{properties.minor}"
    return Device(arch, properties.multi_processor_count, properties.name, index)


def serves(build_archs: Iterable[str], device_arch: str | None) -> str | None:
    """The build that a device of `device_arch` takes, or None.

    An exact match wins, the `a` variant before the plain one where a candidate lists both; else the
    same major version with the highest lower minor one. `a` variants never serve another device.
    """
    if device_arch is None:
        return None
    wanted = _parse(device_arch)
    best: tuple[int, bool, str] | None = None
    for arch in build_archs:
        major, minor, variant = _parse(arch)
        exact = (major, minor) == wanted[:2]
        if major != wanted[0] or minor > wanted[1] or (variant and not exact):
            continue
        candidate = (minor, variant, arch)
        best = candidate if best is None else max(best, candidate)
    return best[2] if best else None


def _parse(arch: str) -> tuple[int, int, bool]:
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ValueError(f"the architecture is {arch!r}; it is written like sm_70 or sm_90a: correct it")
    return int(match[1]), int(match[2]), bool(match[3])
