"""The dispatch table as plain data: the generator writes it, the runtime reads it. Imports nothing.

Buffers are known by the names of the op's tensors and of the candidate's own scratch; a kernel's `args` are such
names in the order of its parameters.
"""

from .candidate import Candidate, Contract
from .channel import ALIGNMENT, DISAGREEMENT, OVERLAP, aligned, laid_out
from .dtypes import ITEM_BYTES, SHORT_DTYPE
from .family import CTA_FIELDS, CtaRecord, FamilyEntry
from .kernel import Buffer, Build, Kernel, Launch
from .record import DeviceKind, RecordLine, Scope, Verdict
from .tree import MAX_LANES, WARP, default_lanes, legal_lanes
from .workload import FORMAT, FieldValue, Part, Table, Tree, Workload, low_end

__all__ = [
    "ALIGNMENT",
    "CTA_FIELDS",
    "DISAGREEMENT",
    "FORMAT",
    "ITEM_BYTES",
    "MAX_LANES",
    "OVERLAP",
    "SHORT_DTYPE",
    "WARP",
    "Buffer",
    "Build",
    "Candidate",
    "Contract",
    "CtaRecord",
    "DeviceKind",
    "FamilyEntry",
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
