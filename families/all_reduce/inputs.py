"""Inputs in a channel that producers write to, and their bookkeeping until they are reduced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...runtime.communicator.owner import ChannelOwner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Acquired:
    """Consecutive tensors that a producer may write; one payload."""

    tensors: tuple[torch.Tensor, ...]
    numel: int
    """Elements that a rank contributes, of all tensors."""
    channel: str | None
    """None: ordinary memory, for ranks that share none."""
    slot: int
    joint: torch.Tensor
    """All of them as one, [local ranks, numel]."""


class Inputs:
    """The acquired inputs of one communicator, by the address of their first tensor."""

    def __init__(self) -> None:
        """Begin with none."""
        self._acquired: dict[int, Acquired] = {}

    def acquire(
        self, shapes: Sequence[Sequence[int]], dtype: torch.dtype, comm: ChannelOwner, channel: str | None
    ) -> tuple[torch.Tensor, ...]:
        """Take a free slot of `channel`, or ordinary memory where that is None.

        Raises:
            ValueError: no or empty tensors, or more than the channel holds.
            RuntimeError: all slots are waiting to be reduced.
        """
        import torch

        sizes = [math.prod(shape) * dtype.itemsize for shape in shapes]
        for index, size in enumerate(sizes):
            if size == 0:
                raise ValueError(f"shape {tuple(shapes[index])} has no elements; every output must have some")
        if not sizes:
            raise ValueError("no shapes were given; acquire at least one output")
        total, ranks = sum(sizes), comm.local_ranks
        slot = 0
        if channel is None:
            block = torch.empty((ranks, total), dtype=torch.uint8, device=comm.device)
        else:
            slot, block = self._slot(total, comm, channel)
        tensors, begin = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            part = block[:, begin : begin + size].view(dtype)
            tensors.append(part.view(ranks, *shape) if ranks > 1 else part.view(*shape))
            begin += size
        found = Acquired(tuple(tensors), total // dtype.itemsize, channel, slot, block.view(dtype))
        self._acquired[tensors[0].data_ptr()] = found
        return found.tensors

    def _slot(self, size: int, comm: ChannelOwner, name: str) -> tuple[int, torch.Tensor]:
        channel = comm.channel(name)
        offsets = channel.plan.offsets
        capacity, begin = offsets["capacity"], offsets["inputs"]
        if size > capacity:
            raise ValueError(
                f"the outputs have {size} bytes; channel {name} holds {capacity}: acquire less, raise "
                "payload_bytes.max of the spec, or call all_reduce on tensors of your own"
            )
        slots = (offsets["size"] - begin) // capacity
        taken = {entry.slot for entry in self._acquired.values() if entry.channel == name}
        free = [slot for slot in range(slots) if slot not in taken]
        if not free:
            raise RuntimeError(
                f"all {slots} inputs of channel {name} are acquired and not reduced yet; call all_reduce_symmetric "
                "on one, or release it"
            )
        at = begin + free[0] * capacity
        return free[0], channel.memory[:, at : at + size]

    def of(self, tensors: Sequence[torch.Tensor]) -> Acquired:
        """What was acquired as exactly these tensors.

        Raises:
            ValueError: they weren't acquired together, in this order and whole, or were reduced already.
        """
        found = self._acquired.get(tensors[0].data_ptr()) if tensors else None
        if found is None:
            raise ValueError(
                "these tensors weren't acquired from this communicator, or were reduced already; call "
                "acquire_outputs for every reduction, or all_reduce on tensors of your own"
            )
        if len(found.tensors) != len(tensors):
            raise ValueError(
                f"{len(tensors)} tensors were given of {len(found.tensors)} that were acquired together; give all"
            )
        for index, (mine, given) in enumerate(zip(found.tensors, tensors, strict=True)):
            if given is not mine and not _same(mine, given):
                raise ValueError(
                    f"tensor {index} is {given.dtype} of shape {tuple(given.shape)} at {given.data_ptr():#x}, but "
                    f"{mine.dtype} of shape {tuple(mine.shape)} at {mine.data_ptr():#x} was acquired: give the "
                    "tensors as they were acquired, in that order"
                )
        return found

    def release(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give acquired inputs back without reducing them; raises as `of`."""
        self.of(tensors)
        del self._acquired[tensors[0].data_ptr()]


def _same(mine: torch.Tensor, given: torch.Tensor) -> bool:
    return (
        given.data_ptr() == mine.data_ptr()
        and given.dtype == mine.dtype
        and given.shape == mine.shape
        and given.stride() == mine.stride()
    )


def split_like(flat: torch.Tensor, like: Sequence[torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """Parts of `[ranks, elements]`, of the shapes of `like`."""
    results, begin = [], 0
    for tensor in like:
        count = tensor.numel() // ranks
        part = flat[:, begin : begin + count]
        results.append(part.view(tensor.shape))
        begin += count
    return results
