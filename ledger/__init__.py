"""Evidence: records of what was measured, the verdict they give, and which records are stale.

Records are written by commands, never by hand; a verdict is computed from samples, never typed.
"""

from ..table import Scope, Verdict
from .check import check, usable
from .closeness import Closeness, Distance
from .names import device_slug, record_name
from .reader import RecordFile, read_record, read_records
from .record import (
    SCHEMA,
    Exactness,
    Group,
    Record,
    RecordedDevice,
    RecordedPart,
    Rekeyed,
    Rule,
    Timing,
    Toolkit,
    make_record,
)
from .show import columns, markdown, rows, stale_rows_of
from .stale import Staleness, newest, source_of, stale, staleness
from .verdict import Judgement, group_ratios, judge, median, median_interval
from .writer import LedgerRefused, replace_record, write_record

__all__ = [
    "SCHEMA",
    "Closeness",
    "Distance",
    "Exactness",
    "Group",
    "Judgement",
    "LedgerRefused",
    "Record",
    "RecordFile",
    "RecordedDevice",
    "RecordedPart",
    "Rekeyed",
    "Rule",
    "Scope",
    "Staleness",
    "Timing",
    "Toolkit",
    "Verdict",
    "check",
    "columns",
    "device_slug",
    "group_ratios",
    "judge",
    "make_record",
    "markdown",
    "median",
    "median_interval",
    "newest",
    "read_record",
    "read_records",
    "record_name",
    "replace_record",
    "rows",
    "source_of",
    "stale",
    "stale_rows_of",
    "staleness",
    "usable",
    "write_record",
]
