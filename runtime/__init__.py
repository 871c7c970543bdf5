"""What generated dispatch modules import: the table, selection, plans, policies and the torch references.

Importing this loads neither torch nor CuPy; both come with the first call.
"""

from .communicator import Communicator
from .device import Device
from .dispatch import Dispatch, bind
from .errors import (
    ChannelError,
    CtasApart,
    Disagreement,
    ForkedProcess,
    FormatMismatch,
    InvalidSetting,
    LoadError,
    Misaligned,
    NotExact,
    NotWarm,
    Overlap,
    PeerTimeout,
    StaleSource,
    Unsupported,
)
from .explanation import Explanation
from .plan import Plan
from .policy import Policy
from .request import Buffer, Operator, Request, Signature
from .selection import Choice, Decision, Selection, select
from .statistics import Stats
from .table import (
    FORMAT,
    Build,
    Candidate,
    Contract,
    DeviceKind,
    FieldValue,
    Kernel,
    Part,
    Record,
    Table,
    Verdict,
    Workload,
)
from .watch import watch

__all__ = [
    "FORMAT",
    "Buffer",
    "Build",
    "Candidate",
    "ChannelError",
    "Choice",
    "Communicator",
    "Contract",
    "CtasApart",
    "Decision",
    "Device",
    "DeviceKind",
    "Disagreement",
    "Dispatch",
    "Explanation",
    "FieldValue",
    "ForkedProcess",
    "FormatMismatch",
    "InvalidSetting",
    "Kernel",
    "LoadError",
    "Misaligned",
    "NotExact",
    "NotWarm",
    "Operator",
    "Overlap",
    "Part",
    "PeerTimeout",
    "Plan",
    "Policy",
    "Record",
    "Request",
    "Selection",
    "Signature",
    "StaleSource",
    "Stats",
    "Table",
    "Unsupported",
    "Verdict",
    "Workload",
    "bind",
    "select",
    "watch",
]
