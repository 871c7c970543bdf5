"""Memory that outlives the call that allocates it: never from a pool that this thread's allocations are directed to.

`torch.compile(mode="reduce-overhead")` runs a step once with all of its allocations in the pool of the graph to come,
and refuses the graph if anything but the step's outputs is alive then; `torch.cuda.use_mem_pool` directs them, too.
A pool is set for a thread, in older versions for a stream: so another thread allocates, on another stream. It is
another thread's mode of capturing, too, that counts: `beside_captures` stands inside of it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from .captures import beside_captures, side_stream
from .current import capturing

if TYPE_CHECKING:
    import torch


def unpooled(nbytes: int, device: torch.device | str) -> torch.Tensor:
    """uint8 `[nbytes]`, zero for what the current stream runs from now on; not while it is being captured.

    Raises:
        torch.OutOfMemoryError: there isn't as much.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return _on_cpu(nbytes, device)
    current, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)

    def make() -> torch.Tensor:
        # A new thread's stream is the default one; a context of streams would end by making device 0 current, which
        # costs memory there.
        with beside_captures(), torch.cuda.device(default.device):
            return torch.empty(nbytes, dtype=torch.uint8, device=default.device)

    memory = _by_another_thread(make)
    with torch.inference_mode(False), beside_captures():
        if current != default:
            current.wait_stream(default)  # where its last user was
            memory.record_stream(current)
        return memory.zero_()


def zeroed(nbytes: int, device: torch.device | str) -> torch.Tensor:
    """uint8 `[nbytes]`, all of them zero when this returns, for the current stream or for the capture that it is in.

    What is made inside a capture isn't part of it: no replay zeroes it again. It must never be freed.

    Raises:
        torch.OutOfMemoryError: there isn't as much.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return _on_cpu(nbytes, device)
    current = torch.cuda.current_stream(device)
    side = side_stream(current.device.index)

    def make() -> torch.Tensor:
        with beside_captures(), torch.cuda.device(side.device):
            torch.cuda.set_stream(side)  # of this thread, which ends
            memory = torch.zeros(nbytes, dtype=torch.uint8, device=side.device)
            side.synchronize()
            return memory

    memory = _by_another_thread(make)
    if not capturing():
        memory.record_stream(current)  # so that it is reused when the stream's work has ended
    return memory


def _on_cpu(nbytes: int, device: torch.device) -> torch.Tensor:
    import torch

    with torch.inference_mode(False):  # what is made inside of it can't be written to outside
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)


def _by_another_thread(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
