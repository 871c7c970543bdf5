"""Evidence: records of what was measured, the verdict they give, and which records are stale.

Records are written by commands, never by hand; a verdict is computed from samples, never typed.
"""

from .check import check, usable
from .closeness import Closeness, Distance
from .facts import Exactness, Group, RecordedDevice, RecordedPart, Rule, Timing, Toolkit
from .names import device_slug
from .reader import RecordFile, read_records
from .record import Record, Rekeyed, make_record
from .show import markdown, rows, stale_rows_of
from .stale import newest, stale, staleness
from .verdict import judge, median
from .writer import LedgerRefused, replace_record, write_record

__all__ = [
    "Closeness",
    "Distance",
    "Exactness",
    "Group",
    "LedgerRefused",
    "Record",
    "RecordFile",
    "RecordedDevice",
    "RecordedPart",
    "Rekeyed",
    "Rule",
    "Timing",
    "Toolkit",
    "check",
    "device_slug",
    "judge",
    "make_record",
    "markdown",
    "median",
    "newest",
    "read_records",
    "replace_record",
    "rows",
    "stale",
    "stale_rows_of",
    "staleness",
    "usable",
    "write_record",
]
