"""The read floor: how long it takes just to read so many bytes from device memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ..runtime.current import current_stream
from ..runtime.device import current
from .external import load_kernel

if TYPE_CHECKING:
    import torch

SOURCE = r"""
extern "C" __global__ void read_all(const uint4* data, size_t words, unsigned int* sink) {
  unsigned int seen = 0;
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < words; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride);
    const uint4 c = __ldcs(data + i + 2 * stride), d = __ldcs(data + i + 3 * stride);
    seen ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < words; i += stride) { const uint4 a = __ldcs(data + i); seen ^= a.x ^ a.y ^ a.z ^ a.w; }
  if (seen == 0x9e3779b9u) *sink = seen;  // never true for what is read, but the compiler can't know
}
"""

CTAS_PER_SM, THREADS = 8, 512
"""Enough loads in flight for the full bandwidth of the GPUs tried."""


def reader(size: int, device: torch.device) -> Callable[[], None]:
    """A function that reads `size` bytes of a block of its own on torch's current stream, capturable."""
    import torch

    block = torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device=device)
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    here = current(device)
    function = load_kernel(SOURCE, "read_all.cu", "read_all", here)
    grid = (CTAS_PER_SM * (here.sm_count or 1), 1, 1)
    arguments = [block.data_ptr(), size // 16, sink.data_ptr()]

    def read() -> None:
        assert here.index is not None
        function(grid, (THREADS, 1, 1), arguments, 0, SimpleNamespace(ptr=current_stream(here.index)))

    read.keeps = (block, sink)  # type: ignore[attr-defined]  # the kernel holds their addresses, not them
    return read
