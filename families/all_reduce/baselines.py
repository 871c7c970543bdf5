"""Baselines of the all-reduce: NCCL, and PyTorch's one-shot and two-shot ops in symmetric memory.

Each works on copies of the chain's payloads, in memory of the kind that it wants. NCCL and two-shot reduce in place,
as their callers do; `restore` writes their inputs again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from ...evidence.family_evidence import Call, Chain
    from .evidence import Calls

PYTORCH_DTYPES = ("bfloat16", "float32")
"""What PyTorch's ops take."""


def of(dtype: str) -> Mapping[str, Callable[[Chain], Call]]:
    """The baselines that are installed here and take the dtype."""
    found: dict[str, Callable[[Chain], Call]] = {"NCCL": nccl}
    if dtype in PYTORCH_DTYPES and hasattr(torch.ops.symm_mem, "one_shot_all_reduce"):
        found["PyTorch one_shot"] = symmetric("one_shot_all_reduce")  # gives a fresh tensor
        found["PyTorch two_shot"] = symmetric("two_shot_all_reduce_")  # in place
    return found


class OnCopies:
    """A call that finds its own copy of each payload of the chain."""

    def __init__(
        self,
        chain: Calls,
        empty: Callable[[torch.Tensor], torch.Tensor],
        reduce: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Copy every distinct payload as often as calls use it: a call in place overwrites its own copy only.

        Args:
            chain: whose payloads.
            empty: memory for a payload like the one given.
            reduce: the baseline; gives the sum, which may be the tensor that it was given.
        """
        self._given = chain.inputs
        self._copies = [empty(tensor) for tensor in chain.inputs]
        self._reduce, self._next = reduce, 0
        self.restore()

    def restore(self) -> None:
        """Write the payloads again."""
        for copy, tensor in zip(self._copies, self._given, strict=True):
            copy.copy_(tensor)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The next call of the chain."""
        del inputs
        copy = self._copies[self._next % len(self._copies)]
        self._next += 1
        return [self._reduce(copy)]


def nccl(chain: Chain) -> Call:
    """`torch.distributed.all_reduce` on the GPUs of the job."""

    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    return OnCopies(cast("Calls", chain), torch.empty_like, reduce)


def symmetric(op: str) -> Callable[[Chain], Call]:
    """An op of `torch.ops.symm_mem`, on copies in symmetric memory."""

    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = getattr(torch.ops.symm_mem, op)(tensor, "sum", group_name())
        return summed

    return lambda chain: OnCopies(cast("Calls", chain), shared, reduce)


def shared(like: torch.Tensor) -> torch.Tensor:
    """Contiguous memory of the same shape that is symmetric; collective."""
    symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
    tensor: torch.Tensor = symmetric.empty(like.numel(), dtype=like.dtype, device=like.device)
    symmetric.rendezvous(tensor, dist.group.WORLD)
    return tensor.view(like.shape)


def group_name() -> str:
    """Of the job's process group."""
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)
