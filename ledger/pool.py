"""What all valid runs of one source say together: none replaces another, so that repeating a run until it pleases
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..table import Verdict
from .blocks import GainInterval, block_ratios
from .facts import Rule
from .reader import RecordFile
from .record import Record
from .stale import Sources, newest
from .verdict import judge_blocks


@dataclass(frozen=True, slots=True)
class Pooled:
    """The verdict on a source in one cell on one kind of device, by one compiler."""

    file: RecordFile
    """The run that the record line is of: the newest that counts (`newest`)."""
    runs: tuple[RecordFile, ...]
    """All valid runs of the same source, control, scope and cell, the oldest first; none of what wasn't timed."""
    verdict: Verdict
    gain: float | None
    interval: GainInterval | None
    reason: str
    blocks: int
    """Valid blocks of all runs."""
    settled: bool
    """Whether the interval is over blocks; False where only records from before version 6 support the verdict."""

    @property
    def basis(self) -> str:
        """What an unsettled verdict rests on, in words; empty otherwise."""
        if self.settled:
            return ""
        number = "one block" if self.blocks == 1 else f"{self.blocks} blocks of {len(self.runs)} runs"
        differ = " whose verdicts differ" if len({run.record.verdict for run in self.runs}) > 1 else ""
        return f"{number}{differ}; measured before blocks were taken anew"


def pooled(files: Iterable[RecordFile], current: Sources) -> list[Pooled]:
    """What dispatch goes by, by file name: for each record of `newest` the verdict of all runs with its key.

    A record from before version 6 counts as one block. As long as there are fewer than three blocks in all, the
    newest such record says what it said, and `settled` is false; a new verdict needs three.
    """
    files = list(files)
    return _together(newest(files, current), files)


def with_all_runs(files: Iterable[RecordFile]) -> list[Pooled]:
    """Each record, in the order given, with the verdict of all runs of the code that it measured."""
    files = list(files)
    return _together(files, files)


def _together(chosen: Sequence[RecordFile], files: Iterable[RecordFile]) -> list[Pooled]:
    runs: dict[tuple[object, ...], list[RecordFile]] = {}
    for file in files:
        if _ratios(file.record):
            runs.setdefault(_run_key(file.record), []).append(file)
    return [_pooled(file, runs.get(_run_key(file.record), [])) for file in chosen]


def _pooled(file: RecordFile, runs: list[RecordFile]) -> Pooled:
    record = file.record
    runs = sorted(runs, key=lambda run: (run.record.measured_at, run.name))
    stated = Pooled(file, (), record.verdict, record.gain, record.interval, record.reason, 0, settled=True)
    if record.is_control or not record.exactness.exact or not runs:
        return stated
    blocks = sum(len(_ratios(run.record)) for run in runs)
    old = [run.record for run in runs if run.record.rule.of_one_block]
    rule = _rule_of(runs)
    if blocks < rule.min_blocks and old:
        last = old[-1]
        return Pooled(
            file, tuple(runs), last.verdict, last.gain, last.interval, last.reason, blocks, settled=False
        )
    judged = judge_blocks([run.record.timing for run in runs if run.record.timing is not None], rule)
    return Pooled(
        file, tuple(runs), judged.verdict, judged.gain, judged.interval, judged.reason, blocks, settled=True
    )


def _rule_of(runs: Sequence[RecordFile]) -> Rule:
    """The rule of the last run that has one of blocks."""
    rules = [run.record.rule for run in runs if not run.record.rule.of_one_block]
    return rules[-1] if rules else Rule()


def _ratios(record: Record) -> list[float]:
    """The blocks of a valid run; none of what wasn't timed, was inexact, or is the control itself."""
    if record.timing is None or not record.exactness.exact or record.is_control:
        return []
    return block_ratios(record.timing, record.rule.min_groups)


def _run_key(record: Record) -> tuple[object, ...]:
    """What two runs have in common that measured the same."""
    scope = None if record.timing is None else record.timing.scope
    return (
        *(record.spec, record.workload, record.span, record.candidate, record.code_sha256),
        *(record.control, record.control_code_sha256, record.device, record.compiler, scope),
    )
