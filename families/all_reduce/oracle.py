"""All-reduce, bit for bit (docs/numerics.md): FP32, in rank order from rank 0's value, one rounding.

Tensors are bit patterns: uint16 for float16 and bfloat16, uint32 for float32; NumPy's or CuPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ...evidence.oracle.arrays import F32, namespace
from ...evidence.oracle.dtypes import storage
from ...evidence.oracle.single import add

AnyBits: TypeAlias = NDArray[Any]
"""uint16, or uint32 for float32."""


def all_reduce(contributions: Sequence[AnyBits], dtype: str) -> AnyBits:
    """The sum of what the ranks contribute; every rank gets the same bits.

    Args:
        contributions: a tensor of each rank, in rank order, all of one shape.
        dtype: float16, bfloat16 or float32.

    Raises:
        ValueError: no contribution, shapes that differ, or another dtype.
    """
    shapes = {tensor.shape for tensor in contributions}
    if len(shapes) != 1:
        raise ValueError(
            f"found contributions of {len(shapes)} shapes; every rank contributes one of the same shape"
        )
    total = _load(contributions[0], dtype)
    for tensor in contributions[1:]:
        total = add(total, _load(tensor, dtype))
    return _store(total, dtype)


def local_sum(a: AnyBits, b: AnyBits, dtype: str) -> AnyBits:
    """What a rank contributes to a two-input reduction: `a + b`, rounded to the dtype."""
    return _store(add(_load(a, dtype), _load(b, dtype)), dtype)


def all_reduce_sum2(a: Sequence[AnyBits], b: Sequence[AnyBits], dtype: str) -> AnyBits:
    """The sum of the ranks' local sums; `a` and `b` hold a tensor of each rank, in rank order.

    Raises:
        ValueError: as `all_reduce`.
    """
    return all_reduce([local_sum(x, y, dtype) for x, y in zip(a, b, strict=True)], dtype)


def _load(bits: AnyBits, dtype: str) -> F32:
    if dtype == "float32":
        single: F32 = bits.view(namespace(bits).float32)
        return single
    return storage(dtype).load(bits)


def _store(values: F32, dtype: str) -> AnyBits:
    if dtype == "float32":
        xp = namespace(values)
        bits: AnyBits = xp.ascontiguousarray(values, dtype=xp.float32).view(xp.uint32)
        return bits
    return storage(dtype).store(values)
