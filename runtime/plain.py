"""Which tensors have memory of their own that kernels can read, and which stand for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is what it says: a strided tensor or parameter."""
    import torch

    # isinstance() isn't asked: Parameter answers yes for subclasses that wrap something. Those that engines
    # derive from it, to say how a weight is sharded, are plain.
    kind = type(tensor)
    if kind is not torch.Tensor and (torch.nn.Parameter not in kind.__mro__ or is_traced(tensor)):
        return False
    return tensor.layout is torch.strided


def is_traced(value: object) -> bool:
    """Whether it is a tensor that stands for something else: a FakeTensor claims a device, and has no memory.

    Such a tensor goes to the operators of torch, which handle it.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return False
    return type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def described(value: object) -> str:
    """`a Tensor`, `an int`, `a tuple of 3`: for messages about arguments."""
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return f"{article} {name}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
