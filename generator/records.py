"""What the dispatch table takes from the ledger: the record that counts of each candidate and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ledger import Pooled, Record, RecordFile, pooled, staleness, unconfirmed_in, winners
from ..ledger.stale import Sources
from ..table import Verdict
from .sources import GeneratedWorkload


@dataclass(frozen=True)
class TableRecord:
    """A record as dispatch sees it: the verdict of all runs of its source."""

    file: RecordFile
    verdict: Verdict
    gain: float | None
    basis: str
    """What the verdict rests on where it isn't settled, in words."""
    unconfirmed: str
    """The candidate that it isn't confirmed against, which stays in front; empty where there is none."""

    @property
    def distances(self) -> dict[str, tuple[float, float | None]]:
        """Relative L2 from FP64 by tensor, and torch eager's; empty of an exact candidate."""
        near = self.file.record.exactness.closeness
        return {} if near is None else {name: (d.candidate, d.eager) for name, d in near.distances.items()}


def current_sources(workloads: Iterable[GeneratedWorkload]) -> dict[tuple[str, str, str, str], str]:
    """Digest of the code that is generated today, by (spec, workload, candidate, architecture).

    It decides which records are of today (`identity`).
    """
    return {
        (entry.spec, entry.workload.label(), generated.candidate.name, source.arch): source.code
        for entry in workloads
        for generated in entry.candidates
        for source in generated.sources
    }


def table_records(
    entry: GeneratedWorkload, files: Sequence[RecordFile], current: Sources
) -> list[TableRecord]:
    """Give the records of a workload that its dispatch goes by (`ledger.pooled`), by candidate, the newest last.

    Of code that failed exactness anywhere only the failures enter.

    A time is a time against a control: where the control isn't the same any more, its code changed or
    another candidate in its place, the verdict is *invalid* for dispatch, and only exactness counts. The control
    of a part is the first candidate of the part's route.
    """
    mine = [
        file
        for file in files
        if (file.record.family, file.record.spec, file.record.workload)
        == (entry.family.name, entry.spec, entry.workload.label())
    ]
    own = {key: code for key, code in current.items() if key[:2] == (entry.spec, entry.workload.label())}
    found = winners(mine, own)
    lines = [_table_record(entry, one, current, unconfirmed_in(found, one)) for one in pooled(mine, current)]
    return sorted(lines, key=_order)


def _order(line: TableRecord) -> tuple[str, tuple[int, int], str, str]:
    record = line.file.record
    return record.candidate, record.span or (0, 0), record.measured_at, line.file.name


def _table_record(entry: GeneratedWorkload, found: Pooled, current: Sources, unconfirmed: str) -> TableRecord:
    file, record = found.file, found.file.record
    compared = record.timing is not None and record.exactness.exact
    if (compared and record.control not in _controls(entry, record)) or staleness(record, current).control:
        return TableRecord(file, "invalid", None, "", "")
    basis = found.basis if found.verdict != "invalid" else ""
    return TableRecord(file, found.verdict, found.gain, basis, unconfirmed)


def _controls(entry: GeneratedWorkload, record: Record) -> set[str]:
    """Names of what a record may have been timed against: its cell's control, or a kernel of a team's own."""
    names = [generated.candidate.name for generated in entry.candidates]
    routes = {generated.candidate.name: generated.candidate.route for generated in entry.candidates}
    own = routes.get(record.candidate)
    of_route = names if record.part is None else [name for name in names if routes[name] == own]
    return {*of_route[:1], *({record.control} - set(names))}
