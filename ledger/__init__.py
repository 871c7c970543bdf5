"""Evidence: records of what was measured, the verdict they give, and which records are stale.

Records are written by commands, never by hand; a verdict is computed from samples, never typed.
"""

from .blocks import median
from .check import check, usable
from .closeness import Closeness, Distance
from .facts import (
    Exactness,
    Group,
    HeadToHead,
    RecordedDevice,
    RecordedPart,
    Rule,
    Timing,
    Toolkit,
)
from .history import NoHistory, added
from .index import Index, enter, missing, read_index, unlawful, vanished, written
from .names import device_slug
from .pool import Pooled, pooled
from .reader import RecordFile, read_records
from .record import Record, Rekeyed, make_record
from .show import markdown, rows, stale_rows_of
from .stale import newest, stale, staleness
from .verdict import judge
from .winner import Winner, displaced_by, unconfirmed_in, winners
from .writer import LedgerRefused, replace_record, write_record

__all__ = [
    "Closeness",
    "Distance",
    "Exactness",
    "Group",
    "HeadToHead",
    "Index",
    "LedgerRefused",
    "NoHistory",
    "Pooled",
    "Record",
    "RecordFile",
    "RecordedDevice",
    "RecordedPart",
    "Rekeyed",
    "Rule",
    "Timing",
    "Toolkit",
    "Winner",
    "added",
    "check",
    "device_slug",
    "displaced_by",
    "enter",
    "judge",
    "make_record",
    "markdown",
    "median",
    "missing",
    "newest",
    "pooled",
    "read_index",
    "read_records",
    "replace_record",
    "rows",
    "stale",
    "stale_rows_of",
    "staleness",
    "unconfirmed_in",
    "unlawful",
    "usable",
    "vanished",
    "winners",
    "write_record",
    "written",
]
