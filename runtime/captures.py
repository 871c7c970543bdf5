"""What a call does beside captures of CUDA graphs: its own thread's, and those of all others.

While a thread captures in torch's default mode, the driver refuses every thread what could wait for the device
(querying an event, allocating, pinning memory, loading code) and invalidates the capture. A thread whose mode is
relaxed may do so, as long as it touches no stream that is captured. So rare work of calls runs inside
`beside_captures`, and on `side_stream`, which nobody else has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from . import extended_launch
from .errors import LoadError

if TYPE_CHECKING:
    import torch

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


@contextmanager
def beside_captures() -> Iterator[None]:
    """Inside it, unsafe calls of this thread are allowed, whoever captures, and become part of no capture."""
    try:
        library = extended_launch.driver()
    except LoadError:  # nothing can be captured here
        yield
        return
    mode = ctypes.c_int(RELAXED)
    library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def capture_number(stream: int) -> int:
    """The driver's number of the capture that the stream `stream`, a handle, is in; no other capture has it.

    Raises:
        RuntimeError: the stream isn't being captured, or its capture is invalid.
    """
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    rest: tuple[None, ...] = (None,) * 3  # the graph and its dependencies
    _check(
        extended_launch.driver().cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), *rest
        ),
        "tell the number of a capture",
    )
    if status.value != 1:  # CU_STREAM_CAPTURE_STATUS_ACTIVE
        raise RuntimeError(
            "a CUDA graph's capture has become invalid, or has ended during a call: see what this thread or another "
            "one did on the stream, and capture again"
        )
    return number.value


@cache
def side_stream(index: int) -> torch.cuda.Stream:
    """A stream of device `index` for short copies; it waits for no other, and no user can have and capture it.

    torch's own streams are 32 that are handed out in turns.
    """
    import torch

    library: Any = extended_launch.driver()
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    with beside_captures():
        # The driver's call, unlike torch's, needs a context, which a thread may not have yet.
        _check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "give a device's context")
        _check(library.cuCtxPushCurrent_v2(context), "take a device's context")
        status = library.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
        library.cuCtxPopCurrent_v2(ctypes.byref(context))
        _check(status, "make a stream")
        return torch.cuda.ExternalStream(stream.value, torch.device("cuda", index))  # type: ignore[no-untyped-call]


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"the driver doesn't {what}: {extended_launch.error_name(status)}")
