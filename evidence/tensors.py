"""Tensors as arrays of bits and back: unsigned integers of the dtype's own width, NumPy's or CuPy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def as_torch(bits: Any, dtype: str, device: torch.device) -> torch.Tensor:
    """An array of bits as a tensor of the storage dtype; shares memory where both are on the same device."""
    import torch

    signed = bits.view(f"int{8 * bits.itemsize}")
    flat = torch.utils.dlpack.from_dlpack(signed) if device.type == "cuda" else torch.from_numpy(signed)
    return flat.to(device).view(getattr(torch, dtype))


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as signed integers of the elements' width."""
    import torch

    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def bits_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    """Tensors as unsigned integers that share their memory: CuPy's on a GPU, else NumPy's."""
    return {name: _bits(tensor.contiguous()) for name, tensor in tensors.items()}


def _bits(tensor: torch.Tensor) -> NDArray[Any]:
    unsigned, held = f"uint{8 * tensor.element_size()}", words(tensor)
    if not tensor.is_cuda:
        bits: NDArray[Any] = held.numpy().view(unsigned)
        return bits
    import cupy

    on_device: NDArray[Any] = cupy.from_dlpack(held).view(unsigned)
    return on_device


def array_library(device: torch.device) -> Any:
    """CuPy on a GPU, NumPy elsewhere."""
    if device.type != "cuda":
        return np
    import cupy

    cupy.cuda.Device(device.index or 0).use()
    return cupy
