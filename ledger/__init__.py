"""Evidence: the record model and its reader. Records are written by commands, never by hand."""

from .reader import read_record, read_records
from .record import SCHEMA, Device, Exactness, Record, Verdict

__all__ = ["SCHEMA", "Device", "Exactness", "Record", "Verdict", "read_record", "read_records"]
