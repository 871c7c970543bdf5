"""Launches with attributes: `cuLaunchKernelEx`, which CuPy's driver module doesn't have.

The driver's library is called through `ctypes` with a configuration that is filled once: making an object of
cuda-bindings for every launch costs more than the launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from ..table import Kernel
from .errors import LoadError

PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: programmatic dependent launch."""


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute`: 72 bytes, whose value is a union of 64."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


def extended_launcher(pointer: int, kernel: Kernel) -> Callable[[int, int, int], None]:
    """A launcher of the function at `pointer`, with the attributes of `kernel`, for one call at a time."""
    library = driver()
    attribute = LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    config = LaunchConfig(kernel.grid, kernel.block, kernel.shared_bytes)
    config.attributes = ctypes.pointer(attribute)
    config.attribute_count = 1
    address = ctypes.addressof(config)
    call = library.cuLaunchKernelEx

    def launch(stream: int, parameters: int, extra: int) -> None:
        config.stream = stream
        status = call(address, pointer, parameters, extra)
        if status:
            raise RuntimeError(f"kernel {kernel.symbol} wasn't launched: {error_name(status)}")

    return launch


def error_name(status: int) -> str:
    """The driver's name of a status, `CUDA_ERROR_...`."""
    name = ctypes.c_char_p()
    driver().cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode() if name.value else f"CUDA error {status}"


@cache
def driver() -> Any:
    """The driver's library; LoadError where it isn't installed, or is older than CUDA 11.8."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.cuLaunchKernelEx.argtypes = (ctypes.c_void_p,) * 4
    except (OSError, AttributeError) as error:
        raise LoadError(
            "programmatic dependent launch needs the driver of CUDA 11.8 or newer, which could not be loaded "
            f"({error}); install or update NVIDIA's driver"
        ) from error
    return library
