"""Where a channel's memory comes from: PyTorch's symmetric memory, or CUDA's own handles between processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Backend = Literal["symmetric_memory", "ipc"]


@dataclass(frozen=True)
class Shared:
    """Memory of this rank, zeroed, and where that of all ranks is."""

    own: torch.Tensor
    """uint8 `[size]`."""
    addresses: tuple[int, ...]
    """In rank order, this rank's among them."""
    close: Callable[[], None]


def symmetric_memory(size: int, device: torch.device, group: torch.distributed.ProcessGroup) -> Shared:
    """Memory by `torch.distributed._symmetric_memory`; collective."""
    import torch
    import torch.distributed._symmetric_memory as symmetric

    # The rendezvous would make a multicast object of its own accord, which nothing here needs.
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    own = symmetric.empty(size, dtype=torch.uint8, device=device)
    own.zero_()
    torch.cuda.synchronize(device)  # before any peer can reach it
    handle: Any = symmetric.rendezvous(own, group)
    ranks = range(torch.distributed.get_world_size(group))
    mapped = [handle.get_buffer(rank, (size,), torch.uint8) for rank in ranks]

    def close() -> None:
        # Torch unmaps when the last reference is gone; this one is not to be the last.
        mapped.clear()

    return Shared(own, tuple(buffer.data_ptr() for buffer in mapped), close)


def ipc(size: int, device: torch.device, group: torch.distributed.ProcessGroup) -> Shared:
    """Memory by `cudaMalloc` and handles that the ranks exchange; collective.

    Not from torch's allocator: memory of its expandable segments has no such handle.
    """
    import cupy
    import torch
    import torch.distributed as distributed
    from cupy_backends.cuda.api import runtime

    rank = distributed.get_rank(group)
    with torch.cuda.device(device):
        address = int(runtime.malloc(size))
        memory = cupy.cuda.UnownedMemory(address, size, None, torch.cuda.current_device())
        array = cupy.ndarray((size,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        own: torch.Tensor = torch.as_tensor(array, device=device)
        own.zero_()
        torch.cuda.synchronize(device)  # before any peer can reach it
        handles: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(handles, runtime.ipcGetMemHandle(address), group=group)
        addresses = [
            address if peer == rank else int(runtime.ipcOpenMemHandle(handle))
            for peer, handle in enumerate(handles)
        ]

    def close() -> None:
        with torch.cuda.device(device):
            for peer, mapped in enumerate(addresses):
                if peer != rank:
                    runtime.ipcCloseMemHandle(mapped)
            distributed.barrier(group)  # memory that a peer still maps must not be freed
            runtime.free(address)

    return Shared(own, tuple(addresses), close)


MAKERS: dict[Backend, Callable[..., Shared]] = {"symmetric_memory": symmetric_memory, "ipc": ipc}
