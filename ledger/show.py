"""Records as rows: what `kernwright ledger` prints, the same for users and programs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .blocks import median
from .facts import Timing
from .pool import Pooled, with_all_runs
from .reader import RecordFile
from .record import Record

Row = dict[str, str | int | float | None]


def rows(files: Iterable[RecordFile]) -> list[Row]:
    """Give each record as it states itself, in the order given; also an inconsistent one.

    `control_ms` and `candidate_ms` are medians over the valid groups, milliseconds a replay; `of_floor` is
    `candidate_ms` over the floor of the same run; `groups` are valid of all; None is what wasn't measured.
    `all_runs` is the verdict of all runs of the same code, and what it rests on. Numbers are rounded for reading;
    the files hold them in full.
    """
    return [_row(entry) for entry in with_all_runs(files)]


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
            row["device"] if row["nvrtc"] is None else f"{row['device']}, NVRTC {row['nvrtc']}",
            row["control_ms"],
            row["candidate_ms"],
            row["of_floor"],
            gain,
            row["verdict"] if row["all_runs"] is None else f"{row['verdict']} (all runs: {row['all_runs']})",
            row["reason"],
        )
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def stale_rows_of(files: Iterable[RecordFile]) -> list[Row]:
    """Give stale records as what to measure again: which candidate where, and what was measured when."""
    return [
        {
            **_place(file.record),
            "verdict": file.record.verdict,
            "code": (file.record.code_sha256 or "")[:12],
            "file": file.name,
        }
        for file in files
    ]


def _row(entry: Pooled) -> Row:
    file, record, timing = entry.file, entry.file.record, entry.file.record.timing
    control_ms, candidate_ms = _times(timing)
    floor = None if timing is None else timing.floor_ms
    return {
        **_place(record),
        "nvrtc": record.compiler,
        "cases": record.exactness.cases,
        "mismatches": record.exactness.mismatches,
        "scope": None if timing is None else timing.scope,
        "control_ms": None if control_ms is None else round(control_ms, 5),
        "candidate_ms": None if candidate_ms is None else round(candidate_ms, 5),
        "of_floor": None if candidate_ms is None or floor is None else round(candidate_ms / floor, 2),
        "groups": None if timing is None else f"{len(timing.valid)} of {len(timing.groups)}",
        "gain_percent": None if record.gain is None else round(100 * record.gain, 2),
        "interval_percent": None
        if record.interval is None
        else "{:.2f} to {:.2f}".format(*(100 * g for g in record.interval)),
        "verdict": record.verdict,
        "all_runs": _all_runs(entry),
        "reason": record.reason,
        "file": file.name,
    }


def _all_runs(entry: Pooled) -> str | None:
    """`admitted; one block; measured before blocks were taken anew`, or `admitted, 8 blocks of 2 runs`."""
    if not entry.runs:
        return None
    verdict = entry.verdict.replace("_", " ")
    if not entry.settled:
        return f"{verdict}; {entry.basis}"
    of = "" if len(entry.runs) == 1 else f" of {len(entry.runs)} runs"
    return f"{verdict}, {entry.blocks} blocks{of}"


def _place(record: Record) -> Row:
    device, part = record.device, record.part
    return {
        "spec": record.spec,
        "workload": record.workload,
        "part": None if part is None else f"{part.field} {part.low} to {part.high}",
        "candidate": record.candidate,
        "control": record.control,
        "arch": device.arch,
        "sm_count": device.sm_count,
        "device": device.name,
        "measured_at": record.measured_at,
    }


def _times(timing: Timing | None) -> tuple[float | None, float | None]:
    """Medians of the control's and the candidate's means in the valid groups."""
    groups = () if timing is None else timing.valid
    if not groups:
        return None, None
    control = median([math.fsum(group.control) / len(group.control) for group in groups])
    return control, median([math.fsum(group.candidate) / len(group.candidate) for group in groups])
