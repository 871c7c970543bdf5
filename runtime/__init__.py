"""What generated dispatch modules import: the table, selection, plans, policies and the torch references.

Importing this loads neither torch nor CuPy; both come with the first call.
"""

from .call_options import CallOptions
from .communicator import Communicator
from .declaration import Kind
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
from .op import Op
from .plan import Plan
from .policy import Policy
from .request import Operator, Request, Signature
from .selection import Choice, Decision, Selection, select
from .statistics import Stats
from .watch import watch

__all__ = [
    "CallOptions",
    "ChannelError",
    "Choice",
    "Communicator",
    "CtasApart",
    "Decision",
    "Device",
    "Disagreement",
    "Dispatch",
    "Explanation",
    "ForkedProcess",
    "FormatMismatch",
    "InvalidSetting",
    "Kind",
    "LoadError",
    "Misaligned",
    "NotExact",
    "NotWarm",
    "Op",
    "Operator",
    "Overlap",
    "PeerTimeout",
    "Plan",
    "Policy",
    "Request",
    "Selection",
    "Signature",
    "StaleSource",
    "Stats",
    "Unsupported",
    "bind",
    "select",
    "watch",
]
