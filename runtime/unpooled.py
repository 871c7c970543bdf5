"""Memory that outlives the call that allocates it: never from a pool that this thread's allocations are directed to.

`torch.compile(mode="reduce-overhead")` runs a step once with all of its allocations in the pool of the graph to come,
and refuses the graph if anything but the step's outputs is alive then; `torch.cuda.use_mem_pool` directs them, too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

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
        with torch.inference_mode(False):  # what is made inside of it can't be written to outside
            return torch.zeros(nbytes, dtype=torch.uint8, device=device)
    current, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)

    def make() -> torch.Tensor:
        # A pool is set for a thread, in older versions for a stream. This is another thread, whose stream is the
        # default one; a context of streams would end by making device 0 current, which costs memory there.
        with torch.cuda.device(default.device):
            return torch.empty(nbytes, dtype=torch.uint8, device=default.device)

    with ThreadPoolExecutor(1) as thread:
        memory = thread.submit(make).result()
    with torch.inference_mode(False):
        if current != default:
            current.wait_stream(default)  # where its last user was
            memory.record_stream(current)
        return memory.zero_()
