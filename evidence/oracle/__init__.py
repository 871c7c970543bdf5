"""The array oracle: the one right answer of a workload, in NumPy or CuPy, and its FP64 truth.

- `fma`, `dtypes`, `trees`, `functions`: the arithmetic of the numerics contract;
- `shape`, `hyper_connection`: the workload and its answer, bit for bit;
- `philox`, `inputs`: seeded tensors, the same on every machine;
- `truth`: the mathematical function in FP64 (torch).
"""

from .dtypes import BFLOAT16, FLOAT16, Comparison, Mismatch, Storage, digest, mismatches, on_host, storage
from .fma import fma
from .functions import exp, sigmoid, silu
from .hyper_connection import OUTPUTS, boundary
from .inputs import INPUT_KINDS, InputKind, tensors, weights
from .shape import Kind, NormWeight, Shape
from .trees import Tree, dot, squares, total

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "INPUT_KINDS",
    "OUTPUTS",
    "Comparison",
    "InputKind",
    "Kind",
    "Mismatch",
    "NormWeight",
    "Shape",
    "Storage",
    "Tree",
    "boundary",
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
    "tensors",
    "total",
    "weights",
]
