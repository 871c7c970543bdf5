"""What the oracle's single implementation needs to run on NumPy and on CuPy: the library of an array."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
Bits: TypeAlias = NDArray[np.uint16]
"""A tensor in its storage dtype, as bit patterns. CuPy arrays stand under the same names."""


def namespace(*arrays: object) -> ModuleType:
    """`cupy` if any of the arrays is CuPy's, else `numpy`; the caller that holds a CuPy array has imported it."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and any(isinstance(array, cupy.ndarray) for array in arrays):
        return cupy
    return np
