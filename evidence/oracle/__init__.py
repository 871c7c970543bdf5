"""Arithmetic of the array oracles: the operations that docs/numerics.md allows, bit for bit, in NumPy or CuPy.

- `fma`, `dtypes`, `single`, `trees`, `functions`: what the contract is made of;
- `philox`: seeded bits, the same on every machine;
- `closeness`: how near a result is to FP64, for candidates under a tolerance.

The oracle of a family is in the family's own folder.
"""

from ...table import Tree
from .dtypes import (
    BFLOAT16,
    FLOAT16,
    Comparison,
    ElementMismatch,
    Storage,
    digest,
    mismatches,
    on_host,
    storage,
)
from .fma import fma
from .functions import exp, sigmoid, silu
from .trees import dot, squares, total

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "Comparison",
    "ElementMismatch",
    "Storage",
    "Tree",
    "digest",
    "dot",
    "exp",
    "fma",
    "mismatches",
    "on_host",
    "sigmoid",
    "silu",
    "squares",
    "storage",
    "total",
]
