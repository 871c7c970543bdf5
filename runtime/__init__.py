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
    OtherCall,
    Overlap,
    PeerFailed,
    PeerTimeout,
    StaleSource,
    Unsupported,
)
from .op import Op
from .plan import Plan
from .watch import watch

__all__ = [
    "CallOptions",
    "ChannelError",
    "Communicator",
    "CtasApart",
    "Device",
    "Disagreement",
    "Dispatch",
    "ForkedProcess",
    "FormatMismatch",
    "InvalidSetting",
    "Kind",
    "LoadError",
    "Misaligned",
    "NotExact",
    "NotWarm",
    "Op",
    "OtherCall",
    "Overlap",
    "PeerFailed",
    "PeerTimeout",
    "Plan",
    "StaleSource",
    "Unsupported",
    "bind",
    "watch",
]
