"""The dispatch table as plain data: the generator writes it, the runtime reads it. Imports nothing.

Buffers are known by the names of the op's tensors (`residual`, `down_weight`, ...) and of the candidate's own scratch
(`y`, `lora`, ...); a kernel's `args` are such names in the order of its parameters.
"""

from .candidate import Candidate, Contract
from .channel import aligned, laid_out
from .dtypes import ITEM_BYTES, SHORT_DTYPE
from .kernel import Buffer, Build, Dim3, Kernel, Launch
from .record import DeviceKind, RecordLine, Scope, Verdict
from .tree import MAX_LANES, WARP, default_lanes, legal_lanes
from .workload import FORMAT, FieldValue, Part, Table, Tree, Workload, low_end

__all__ = [
    "FORMAT",
    "ITEM_BYTES",
    "MAX_LANES",
    "SHORT_DTYPE",
    "WARP",
    "Buffer",
    "Build",
    "Candidate",
    "Contract",
    "DeviceKind",
    "Dim3",
    "FieldValue",
    "Kernel",
    "Launch",
    "Part",
    "RecordLine",
    "Scope",
    "Table",
    "Tree",
    "Verdict",
    "Workload",
    "aligned",
    "default_lanes",
    "laid_out",
    "legal_lanes",
    "low_end",
]
