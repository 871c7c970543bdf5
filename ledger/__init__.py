"""Evidence: the record model and its reader. Records are written by commands, never by hand."""

from .reader import RecordFile, read_record, read_records
from .record import SCHEMA, Device, Exactness, Record, Verdict

__all__ = ["SCHEMA", "Device", "Exactness", "Record", "RecordFile", "Verdict", "read_record", "read_records"]
