"""Where a channel's memory comes from: PyTorch's symmetric memory, or CUDA's own handles between processes.

Each backend has the same steps, so that the ranks can agree after each: allocate (local), reach the peers' memory,
leave it (local), free the own (local, when all have left).
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Backend = Literal["symmetric_memory", "ipc"]

MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
_setting = threading.Lock()
_before: list[str | None] = []
"""The variable's values before those threads that need it now; the first one's is the process's own."""


class SharedMemory(ABC):
    """Memory of this rank for one channel, zeroed, which its peers can reach.

    Attributes:
        own: uint8 `[size]`.
        offer: what the peers need to reach it; pickled.
    """

    own: torch.Tensor
    offer: Any = None

    @abstractmethod
    def __init__(self, size: int, device: torch.device) -> None:
        """Allocate, and wait until it is zero: local, and may fail on one rank alone."""

    @abstractmethod
    def reach(self, offers: Sequence[Any], group: torch.distributed.ProcessGroup) -> tuple[int, ...]:
        """Addresses of all ranks' memory, in rank order, this rank's among them.

        Called on all ranks of `group` or on none, with what all have offered.
        """

    @abstractmethod
    def leave(self) -> None:
        """Give up the peers' memory; local, also after `reach` has failed."""

    @abstractmethod
    def free(self) -> None:
        """Free the own memory; all ranks have left it."""


@contextmanager
def without_multicast() -> Iterator[None]:
    """Let torch make no multicast object, which is a resource of the whole host and which nothing here needs.

    The variable is the whole process's, so it is restored; torch reads it when memory is made and exchanged. Threads
    may be inside at the same time, and the last one restores it: a lock would be held while peers are waited for.
    """
    with _setting:
        _before.append(os.environ.get(MULTICAST))
        os.environ[MULTICAST] = "1"
    try:
        yield
    finally:
        with _setting:
            before = _before.pop()  # of the last one out it is the first one's
            if not _before and before is None:
                os.environ.pop(MULTICAST, None)
            elif not _before and before is not None:
                os.environ[MULTICAST] = before


class SymmetricMemory(SharedMemory):
    """Memory by `torch.distributed._symmetric_memory`."""

    def __init__(self, size: int, device: torch.device) -> None:
        import torch
        import torch.distributed._symmetric_memory as symmetric

        with without_multicast():
            self.own = symmetric.empty(size, dtype=torch.uint8, device=device)
        self.own.zero_()
        torch.cuda.synchronize(device)  # before any peer can reach it
        self._mapped: list[torch.Tensor] = []

    def reach(self, offers: Sequence[Any], group: torch.distributed.ProcessGroup) -> tuple[int, ...]:
        """By torch's rendezvous, which is a collective of its own, through the group's store."""
        import torch
        import torch.distributed._symmetric_memory as symmetric

        with without_multicast():
            handle: Any = symmetric.rendezvous(self.own, group)
        shape = (self.own.numel(),)
        self._mapped = [handle.get_buffer(rank, shape, torch.uint8) for rank in range(len(offers))]
        return tuple(buffer.data_ptr() for buffer in self._mapped)

    def leave(self) -> None:
        # Torch unmaps when the last reference is gone; this one is not to be the last.
        self._mapped.clear()

    def free(self) -> None:
        """Nothing: torch frees it with the last tensor."""


class IpcMemory(SharedMemory):
    """Memory by `cudaMalloc` and handles that the ranks exchange.

    Not from torch's allocator: memory of its expandable segments has no such handle.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        import cupy
        import torch
        from cupy_backends.cuda.api import runtime

        self._runtime, self._device = runtime, device
        self._mapped: list[int] = []
        with torch.cuda.device(device):
            self._address = int(runtime.malloc(size))
            try:
                memory = cupy.cuda.UnownedMemory(self._address, size, None, torch.cuda.current_device())
                array = cupy.ndarray((size,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
                self.own = torch.as_tensor(array, device=device)
                self.own.zero_()
                torch.cuda.synchronize(device)  # before any peer can reach it
                self.offer = runtime.ipcGetMemHandle(self._address)
            except Exception:
                runtime.free(self._address)
                raise

    def reach(self, offers: Sequence[Any], group: torch.distributed.ProcessGroup) -> tuple[int, ...]:
        """By opening the peers' handles: local."""
        import torch
        import torch.distributed as distributed

        rank, addresses = distributed.get_rank(group), []
        with torch.cuda.device(self._device):
            for peer, handle in enumerate(offers):
                if peer != rank:
                    self._mapped.append(int(self._runtime.ipcOpenMemHandle(handle)))
                addresses.append(self._address if peer == rank else self._mapped[-1])
        return tuple(addresses)

    def leave(self) -> None:
        import torch

        with torch.cuda.device(self._device):
            while self._mapped:
                self._runtime.ipcCloseMemHandle(self._mapped.pop())

    def free(self) -> None:
        import torch

        with torch.cuda.device(self._device):
            self._runtime.free(self._address)


MAKERS: dict[Backend, type[SharedMemory]] = {"symmetric_memory": SymmetricMemory, "ipc": IpcMemory}
