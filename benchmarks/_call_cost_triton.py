"""The smallest Triton kernel: Triton reads a kernel's source from its file."""

import triton
import triton.language as tl


@triton.jit
def add_one(x, SIZE: tl.constexpr):
    """Add 1 to SIZE elements."""
    at = tl.arange(0, SIZE)
    tl.store(x + at, tl.load(x + at) + 1.0)
