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


def host_bits(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.unsignedinteger[Any]]]:
    """Tensors of the CPU as NumPy's unsigned integers."""
    return {
        name: words(tensor.contiguous()).numpy().view(f"uint{8 * tensor.element_size()}")
        for name, tensor in tensors.items()
    }


def device_bits(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Tensors of a GPU as CuPy's unsigned integers, which share their memory."""
    import cupy

    return {
        name: cupy.from_dlpack(words(tensor)).view(f"uint{8 * tensor.element_size()}")
        for name, tensor in tensors.items()
    }


def array_library(device: torch.device) -> Any:
    """CuPy on a GPU, NumPy elsewhere."""
    if device.type != "cuda":
        return np
    import cupy

    cupy.cuda.Device(device.index or 0).use()
    return cupy
