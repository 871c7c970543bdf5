"""Records as rows: what `kernwright ledger` prints, the same for users and programs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .facts import Timing
from .reader import RecordFile
from .record import Record
from .verdict import median

Row = dict[str, str | int | float | None]

COLUMNS = (
    "spec",
    "workload",
    "part",
    "candidate",
    "control",
    "arch",
    "sm_count",
    "device",
    "measured_at",
    "cases",
    "mismatches",
    "scope",
    "control_ms",
    "candidate_ms",
    "of_floor",
    "groups",
    "gain_percent",
    "interval_percent",
    "verdict",
    "reason",
    "file",
)


def columns() -> tuple[str, ...]:
    """Names of what `rows` gives, in its order."""
    return COLUMNS


def rows(files: Iterable[RecordFile]) -> list[Row]:
    """Give each record as it states itself, in the order given; also an inconsistent one.

    `control_ms` and `candidate_ms` are medians over the valid groups, milliseconds a replay; `of_floor` is
    `candidate_ms` over the floor of the same run; `groups` are valid of all; None is what wasn't measured.
    Numbers are rounded for reading; the files hold them in full.
    """
    return [_row(file) for file in files]


def markdown(files: Iterable[RecordFile]) -> str:
    """The records as a table for a document: what was measured, where, and the verdict."""
    title = (
        "| workload | candidate | on | control, ms | candidate, ms | of the floor | gain | verdict | why |"
    )
    lines = [title, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows(files):
        gain = (
            "" if row["interval_percent"] is None else f"{row['gain_percent']}% ({row['interval_percent']})"
        )
        part = f", {row['part']}" if row["part"] else ""
        cells = (
            f"`{row['workload']}`{part}",
            f"`{row['candidate']}`",
            row["device"],
            row["control_ms"],
            row["candidate_ms"],
            row["of_floor"],
            gain,
            row["verdict"],
            row["reason"],
        )
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def stale_rows_of(files: Iterable[RecordFile]) -> list[Row]:
    """Give stale records as what to measure again: which candidate where, and what was measured when."""
    return [_stale_row(file) for file in files]


def _row(file: RecordFile) -> Row:
    record, timing = file.record, file.record.timing
    control_ms, candidate_ms = _times(timing)
    floor = None if timing is None else timing.floor_ms
    values = (
        *_place(record),
        record.measured_at,
        record.exactness.cases,
        record.exactness.mismatches,
        None if timing is None else timing.scope,
        _rounded(control_ms, 5),
        _rounded(candidate_ms, 5),
        None if candidate_ms is None or floor is None else round(candidate_ms / floor, 2),
        None if timing is None else f"{len(timing.valid)} of {len(timing.groups)}",
        None if record.gain is None else round(100 * record.gain, 2),
        None if record.interval is None else "{:.2f} to {:.2f}".format(*(100 * g for g in record.interval)),
        record.verdict,
        record.reason,
        file.name,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _place(record: Record) -> tuple[str | int | None, ...]:
    device, part = record.device, record.part
    return (
        record.spec,
        record.workload,
        None if part is None else f"{part.field} {part.low} to {part.high}",
        record.candidate,
        record.control,
        device.arch,
        device.sm_count,
        device.name,
    )


def _stale_row(file: RecordFile) -> Row:
    record = file.record
    place: Row = dict(zip(COLUMNS, _place(record), strict=False))
    return place | {
        "measured_at": record.measured_at,
        "verdict": record.verdict,
        "code": (record.code_sha256 or "")[:12],
        "file": file.name,
    }


def _times(timing: Timing | None) -> tuple[float | None, float | None]:
    """Medians of the control's and the candidate's means in the valid groups."""
    groups = () if timing is None else timing.valid
    if not groups:
        return None, None
    control = median([math.fsum(group.control) / len(group.control) for group in groups])
    return control, median([math.fsum(group.candidate) / len(group.candidate) for group in groups])


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
