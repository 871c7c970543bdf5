"""Which admitted candidate of a cell is dispatched: a change of winner needs a comparison of the two themselves.

Gains over a control come from different runs. That one is larger than another says less than a run of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .blocks import block_interval, block_ratios
from .pool import Pooled, pooled
from .reader import RecordFile
from .stale import Sources, failures, staleness
from .verdict import confidence_after

Cell = tuple[object, ...]
"""Spec, workload, part, device and compiler."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The candidate that the records of a cell put in front, and those that they would if it were confirmed."""

    name: str
    gain: float
    code: str | None
    unconfirmed: tuple[str, ...] = ()
    """Admitted with a larger gain, and not faster than the winner in a run of both."""


def winners(files: Iterable[RecordFile], current: Sources) -> dict[Cell, Winner]:
    """The winner of each cell, from the history of its records.

    Records from before version 6 came first, together: among them the largest gain wins. Then record by record, in
    the order measured, an admitted candidate with a larger gain than the winner's takes its place if its blocks
    against the winner, of all its runs, would admit it over that one, too. A winner that isn't admitted any more has
    no place to defend.
    """
    cells: dict[Cell, list[RecordFile]] = {}
    files = list(files)
    failed = failures(files, current)
    compilers = {file.record.compiler for file in files} - {None} or {None}
    for file in files:
        record = file.record
        if (record.spec, record.workload, record.candidate, record.code_sha256) in failed:
            continue
        for compiler in compilers if record.compiler is None else {record.compiler}:
            cells.setdefault((record.spec, record.workload, record.span, record.device, compiler), []).append(
                file
            )
    found = ((cell, _winner(mine, current)) for cell, mine in cells.items())
    return {cell: winner for cell, winner in found if winner is not None}


def _winner(files: Sequence[RecordFile], current: Sources) -> Winner | None:
    old = [file for file in files if file.record.rule.of_one_block]
    new = sorted(
        (file for file in files if not file.record.rule.of_one_block),
        # A time is to the second. Whoever was compared with another came after it.
        key=lambda file: (file.record.measured_at, file.record.head_to_head is not None, file.name),
    )
    winner: Winner | None = None
    for end in range(len(new) + 1):
        if end or old:
            winner = _next(winner, [*old, *new[:end]], current)
    return winner


def _next(winner: Winner | None, files: Sequence[RecordFile], current: Sources) -> Winner | None:
    """The winner once these records are there."""
    admitted = {
        entry.file.record.candidate: entry
        for entry in pooled(files, current)
        if entry.verdict == "admitted" and not staleness(entry.file.record, current)
    }
    ranked = sorted(admitted.values(), key=lambda entry: (-_gain(entry), entry.file.name))
    if not ranked:
        return None
    if winner is None or winner.name not in admitted:
        return _of(ranked[0])
    standing, unconfirmed = admitted[winner.name], []
    for entry in ranked:
        if _gain(entry) <= _gain(standing):
            break
        if confirmed(entry, standing):
            standing = entry
            break
        unconfirmed.append(entry.file.record.candidate)
    return _of(standing, tuple(unconfirmed))


def confirmed(challenger: Pooled, winner: Pooled) -> bool:
    """Whether all blocks of both together admit the challenger over the winner's code, by the rule for a control."""
    against = winner.file.record
    ratios: list[float] = []
    looks = 0
    for run in challenger.runs:
        both = run.record.head_to_head
        if both is None or (both.against, both.code_sha256) != (against.candidate, against.code_sha256):
            continue
        ratios += block_ratios(both.timing, run.record.rule.min_groups)
        looks += 1
    rule = challenger.file.record.rule
    if len(ratios) < max(2, rule.min_blocks):
        return False
    _, _, slowest = block_interval(ratios, confidence_after(rule.confidence, looks))
    return slowest < 1 - rule.threshold


def displaced_by(file: RecordFile, files: Sequence[RecordFile], current: Sources) -> Winner | None:
    """The winner of a record's cell that it would displace; None where it displaces none.

    It is the one that a run of both has to compare with.
    """
    record = file.record
    cell = (record.spec, record.workload, record.span, record.device)
    before = {
        key[:-1]: winner for key, winner in winners(files, current).items() if _fits(key[-1], record.compiler)
    }
    standing = before.get(cell)
    if standing is None or standing.name == record.candidate:
        return None
    after = pooled([*files, file], current)
    mine = [
        entry
        for entry in after
        if (entry.file.record.candidate, *_cell(entry)) == (record.candidate, *cell)
        and entry.file.record.compiler == record.compiler
        and entry.verdict == "admitted"
        and not staleness(entry.file.record, current)
    ]
    return standing if any(_gain(entry) > standing.gain for entry in mine) else None


def _fits(compiler: object, own: str | None) -> bool:
    return own is None or compiler in (None, own)


def _cell(entry: Pooled) -> Cell:
    record = entry.file.record
    return record.spec, record.workload, record.span, record.device


def _gain(entry: Pooled) -> float:
    return entry.gain or 0.0


def _of(entry: Pooled, unconfirmed: tuple[str, ...] = ()) -> Winner:
    record = entry.file.record
    return Winner(record.candidate, _gain(entry), record.code_sha256, unconfirmed)


def unconfirmed_in(found: Mapping[Cell, Winner], entry: Pooled) -> str:
    """Name of the winner that a candidate isn't confirmed against; empty where it is."""
    record = entry.file.record
    for cell, winner in found.items():
        if (
            cell[:-1] == _cell(entry)
            and _fits(cell[-1], record.compiler)
            and record.candidate in winner.unconfirmed
        ):
            return winner.name
    return ""
