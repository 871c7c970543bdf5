"""What the commands ask of a workspace's ledger: its check, what is stale, and what a benchmark needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..generator import ledger_folder, plan_generation
from ..generator.records import current_sources
from ..ledger import (
    NoHistory,
    Record,
    RecordFile,
    added,
    check,
    displaced_by,
    missing,
    read_index,
    read_records,
    stale,
    stale_rows_of,
    unlawful,
    usable,
    vanished,
    write_record,
)
from ..ledger.names import record_name
from ..specs import Workspace
from ..specs.errors import Problem
from ..table import Workload
from .bench import Ledger
from .session import Session


def ledger_of(session: Session, workload: Workload, *, writes: bool) -> Ledger:
    """The workspace's ledger as a benchmark of a workload asks it."""
    folder = ledger_folder(session.generation.workspace)
    current = current_sources(
        entry
        for entry in session.generation.workloads
        if (entry.spec, entry.workload.label()) == (workload.spec, workload.label)
    )

    def keep(record: Record) -> None:
        if writes:
            write_record(folder, record)

    def displaced(record: Record, others: Sequence[Record]) -> str:
        files = [
            file
            for file in usable(read_records(folder))
            if (file.record.spec, file.record.workload) == (workload.spec, workload.label)
        ]
        known = {file.name for file in files}  # those that were kept
        files += [file for file in _named(others) if file.name not in known]
        standing = displaced_by(RecordFile(record_name(record), record), files, current)
        return "" if standing is None else standing.name

    return Ledger(keep, displaced)


def _named(records: Sequence[Record]) -> list[RecordFile]:
    return [RecordFile(record_name(record), record) for record in records]


def check_ledger(workspace: Workspace) -> tuple[list[Problem], list[str]]:
    """What is wrong with the ledger, and what it was compared with, in sentences.

    Every record must agree with its samples, be what the index names, and be there, unless it was removed with its
    source; where git has a history, no record of it may be missing from the index.
    """
    folder = ledger_folder(workspace)
    files, index = read_records(folder), read_index(folder)
    problems = [*check(files), *missing(files, index)]
    said = [f"{len(files)} records are consistent, and all {len(index.paths)} of the index are accounted for"]
    if index.removed:
        made = (made for work in plan_generation(workspace).workloads for made in work.candidates)
        digests = {
            digest for one in made for source in one.sources for digest in (source.code, source.sha256)
        }
        problems += unlawful(index, {file.name for file in files}, digests)
        said.append(
            f"{len(index.removed)} records were removed with their sources, which are generated no more"
        )
    try:
        history = added(folder)
        problems += vanished(index, history)
        said.append(f"none of the {len(history)} records in the history of git is missing")
    except NoHistory as error:
        said.append(f"not compared with the history of git: {error}")
    return problems, said


def stale_rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Records whose candidate has other code today."""
    current = current_sources(plan_generation(workspace).workloads)
    return stale_rows_of(stale(read_records(ledger_folder(workspace)), current))
