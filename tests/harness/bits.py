"""Comparing tensors that are held as bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from kernwright.evidence.gate import differing
from kernwright.evidence.oracle.arrays import Bits
from kernwright.evidence.oracle.dtypes import Storage, on_host


@dataclass(frozen=True, slots=True)
class ElementMismatch:
    """One element that differs."""

    index: tuple[int, ...]
    found: float
    found_bits: int
    expected: float
    expected_bits: int

    def __str__(self) -> str:
        return (
            f"at {list(self.index)}: found {self.found!r} (0x{self.found_bits:04x}), "
            f"expected {self.expected!r} (0x{self.expected_bits:04x})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many elements differ, of how many, and the first one in row-major order."""

    count: int
    size: int
    first: ElementMismatch | None


def mismatches(found: Bits, expected: Bits, dtype: Storage) -> Comparison:
    """Compare bit for bit: any NaN equals any NaN, everything else as integers (-0.0 differs from +0.0).

    Raises:
        ValueError: if the shapes differ.
    """
    if found.shape != expected.shape:
        raise ValueError(
            f"Shape {found.shape} can't be compared with shape {expected.shape}; both must be the same."
        )
    differs = dtype.canonical(found) != dtype.canonical(expected)
    count = int(differs.sum())
    if count == 0:
        return Comparison(0, found.size, None)
    flat = int(differs.ravel().argmax())
    pair = on_host(found.ravel()[flat : flat + 1]), on_host(expected.ravel()[flat : flat + 1])
    values = [float(dtype.load(bits)[0]) for bits in pair]
    index = tuple(int(i) for i in np.unravel_index(flat, found.shape))
    first = ElementMismatch(index, values[0], int(pair[0][0]), values[1], int(pair[1][0]))
    return Comparison(count, found.size, first)


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors have the same bits."""
    return all(not bool(differing(one, other).any()) for one, other in zip(found, expected, strict=True))
