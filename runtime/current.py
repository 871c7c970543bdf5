"""What is current in torch: stream, device, capture, memory; asked in the ways that cost a call least."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Allocate = Callable[[tuple[int, ...], tuple[int, ...], Any], "torch.Tensor"]
"""Shape, strides and dtype to a tensor without values, on the current device."""


@cache
def _torch() -> Any:
    """torch, once something needs it: an import statement in every call is expensive."""
    import torch

    return torch


def current_stream(index: int) -> int:
    """Handle of torch's current stream on device `index`."""
    return stream_query()(index)


def current_device() -> int:
    """Ordinal of torch's current CUDA device, where CUDA is in use already."""
    # torch.cuda.current_device() also asks whether CUDA has been initialised, which costs as much as the answer.
    device: int = _torch()._C._cuda_getDevice()
    return device


def stream_query() -> Callable[[int], int]:
    """`current_stream` for callers that keep it and call it often: the function of torch itself."""
    # The raw handle costs a tenth of torch.cuda.current_stream(), which makes a Python object of it; Triton
    # and torch's own compiler launch through the same function.
    query: Callable[[int], int] = _torch()._C._cuda_getCurrentRawStream
    return query


def device_query() -> Callable[[], int] | None:
    """`current_device` in the same way; None where CUDA has one device, which is current always."""
    torch = _torch()
    if torch.cuda.device_count() == 1:
        return None
    query: Callable[[], int] = torch._C._cuda_getDevice
    return query


def device_guard(index: int | None) -> AbstractContextManager[object]:
    """Inside it, device `index` is torch's current one; None stands for the CPU."""
    if index is None:
        return nullcontext()
    guard: AbstractContextManager[object] = _torch().cuda.device(index)
    return guard


def capturing() -> bool:
    """Whether torch's current stream is being captured into a CUDA graph."""
    cuda = _torch().cuda
    # is_available() asks the driver, which is expensive; where CUDA is in use already, it is available.
    found: bool = (cuda.is_initialized() or cuda.is_available()) and cuda.is_current_stream_capturing()
    return found


def capture_query() -> Callable[[], bool]:
    """As `capturing`, for callers that ask often, where CUDA is in use already."""
    query: Callable[[], bool] = _torch()._C._cuda_isCurrentStreamCapturing
    return query


def allocator(device: str) -> Allocate:
    """The cheapest way to allocate on the current device of a type, `cuda` or `cpu`."""
    torch = _torch()
    # What torch's compiler puts into the code that it generates: a third of the cost of torch.empty.
    found: Allocate | None = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", None)
    if found is not None:
        return found
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)
