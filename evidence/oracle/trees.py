"""The reduction trees of docs/numerics.md, for any `[segments, lanes, chunk]` and any batch shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...table import Tree
from .arrays import F32, F64, namespace
from .fma import add_product
from .single import add, widen

_WARP = 32
_LANES_PER_BLOCK = {"numpy": 1 << 15, "cupy": 1 << 24}
"""Accumulators worked on at once: few enough for a CPU's cache, enough to fill a GPU."""


def check(tree: Tree, length: int) -> None:
    """Refuse a tree that can't reduce `length` elements.

    Raises:
        ValueError: if S, L or V is out of range, or S x V does not divide the length.
    """
    segments, lanes, chunk = tree
    if segments < 1 or chunk < 1 or length < 1:
        raise ValueError(
            f"Tree {list(tree)} over {length} elements: segments, chunk and length must be at least 1."
        )
    power_of_two = lanes >= 1 and lanes & (lanes - 1) == 0
    if not (lanes >= _WARP and lanes % _WARP == 0) and not (power_of_two and lanes < _WARP):
        raise ValueError(
            f"Tree {list(tree)} has {lanes} lanes; use a power of two up to {_WARP} or a multiple of {_WARP}."
        )
    if length % (segments * chunk):
        raise ValueError(
            f"Tree {list(tree)} can't cut {length} elements: segments x chunk is {segments * chunk}, "
            f"which must divide {length}."
        )


def dot(a: F32, b: F32, tree: Tree) -> F32:
    """Dot products over the last axis, in the order that the tree fixes: float32 [..., K] and [..., K] to [...].

    Leading axes broadcast, and are never materialised as a whole.

    Raises:
        ValueError: if the lengths differ or the tree doesn't fit K.
    """
    xp = namespace(a, b)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"A dot product of {a.shape[-1]} with {b.shape[-1]} elements: lengths must be equal."
        )
    check(tree, a.shape[-1])
    batch = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    rank = max(len(batch), 1)
    a, b = (x.reshape((1,) * (rank + 1 - x.ndim) + x.shape) for x in (a, b))
    result: F32 = xp.empty(batch or (1,), dtype=xp.float32)
    lanes_per_row = math.prod(batch[:-1]) * tree[0] * tree[1]
    for rows in _blocks(result.shape[-1], _LANES_PER_BLOCK[xp.__name__] // max(lanes_per_row, 1)):
        result[..., rows] = _dot(_rows(a, rows), _rows(b, rows), tree)
    return result.reshape(batch)


def squares(a: F32, tree: Tree) -> F32:
    """Sums of squares over the last axis: float32 [..., K] to float32 [...]."""
    return dot(a, a, tree)


def _blocks(rows: int, size: int) -> Iterator[slice]:
    """Cut `rows` into slices of at most `size`, at least one row each."""
    size = max(size, 1)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _rows(x: F32, rows: slice) -> F32:
    """Those rows of [..., rows, K]; an operand that broadcasts over the rows stays whole."""
    return x if x.shape[-2] == 1 else x[..., rows, :]


def _dot(a: F32, b: F32, tree: Tree) -> F32:
    """Steps 1 to 5 of the contract for one block of rows."""
    xp = namespace(a, b)
    segments, lanes, chunk = tree
    wide_a, wide_b = _by_position(a, tree), _by_position(b, tree)
    chunks = wide_a.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    acc: F32 = xp.zeros((*batch, segments, lanes), dtype=xp.float32)
    with np.errstate(all="ignore"):
        for start in range(0, chunks, lanes):
            taken = min(lanes, chunks - start)  # in the last round some lanes may have no element
            for position in range(chunk):
                product = (
                    wide_a[position, ..., start : start + taken]
                    * wide_b[position, ..., start : start + taken]
                )
                acc[..., :taken] = add_product(product, acc[..., :taken])
        return _in_order(_in_order(_butterfly(acc)))


def _by_position(x: F32, tree: Tree) -> F64:
    """[..., K] as float64 [V, ..., S, K / (S V)]: what all lanes take at once lies side by side."""
    xp = namespace(x)
    segments, _, chunk = tree
    cut = x.reshape(*x.shape[:-1], segments, -1, chunk)
    return widen(xp.ascontiguousarray(xp.moveaxis(cut, -1, 0)))


def _butterfly(acc: F32) -> F32:
    """[..., L] to group sums [..., L / 32].

    Addition commutes, so lanes i and i xor d hold the same sum after a step: lane 0 needs only half of them.
    """
    width = min(acc.shape[-1], _WARP)
    acc = acc.reshape(*acc.shape[:-1], -1, width)
    while width > 1:
        width //= 2
        acc = add(acc[..., :width], acc[..., width:])
    return acc[..., 0]


def _in_order(parts: F32) -> F32:
    """Add over the last axis in increasing order, starting from element 0."""
    acc: F32 = parts[..., 0]
    for index in range(1, parts.shape[-1]):
        acc = add(acc, parts[..., index])
    return acc
