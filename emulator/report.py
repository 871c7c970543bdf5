"""What a run can find, as values. `str()` of each is a sentence."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Where:
    """The CUDA thread that was running, and the line of the text if it is known."""

    kernel: str
    launch: int
    """Position among the launches of the run."""
    rank: int
    block: tuple[int, ...]
    thread: tuple[int, ...]
    line: str = ""
    """`file:line`, or empty."""

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"{self.kernel} (launch {self.launch}, rank {self.rank}), CTA {self.block}, thread {self.thread}{at}"


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """An access outside of a buffer, of a fixed array, or of dynamic shared memory."""

    where: Where | None
    """None if the write was only found after the run, next to a buffer."""
    write: bool
    buffer: str
    """Name of the nearest buffer; empty if the address is near none."""
    buffer_rank: int
    offset: int
    """Bytes from the buffer's beginning."""
    detail: str

    def __str__(self) -> str:
        if not self.buffer:
            return f"Out of bounds: {self.where} uses {self.detail}."
        rank = f" of rank {self.buffer_rank}" if self.buffer_rank >= 0 else ""
        return (
            f"Out of bounds: {self.where or 'some thread'} {'writes' if self.write else 'reads'} byte "
            f"{self.offset} of {self.buffer}{rank}; {self.detail}."
        )


@dataclass(frozen=True, slots=True)
class InputWritten:
    """A write to a buffer that was given as an input."""

    where: Where
    buffer: str
    buffer_rank: int
    offset: int

    def __str__(self) -> str:
        return (
            f"Input written: {self.where} writes byte {self.offset} of {self.buffer} of rank "
            f"{self.buffer_rank}, which is an input."
        )


@dataclass(frozen=True, slots=True)
class _Detailed:
    where: Where
    detail: str

    sentence: ClassVar[str]

    def __str__(self) -> str:
        return self.sentence.format(self)


class MisalignedAccess(_Detailed):
    """An access whose address isn't a multiple of what its type needs."""

    sentence = "Misaligned: {0.where} makes {0.detail}."


class Divergence(_Detailed):
    """Threads that should meet in one barrier, shuffle or vote don't."""

    sentence = "Divergence: {0.where}: {0.detail}."


class ScopeTooNarrow(_Detailed):
    """An atomic whose scope doesn't cover all threads that use the word."""

    sentence = "Scope too narrow: {0.where} does {0.detail}."


@dataclass(frozen=True, slots=True)
class Deadlock:
    """No thread can go on."""

    waits: tuple[str, ...]
    """Where the threads wait, a line for each group of them."""

    def __str__(self) -> str:
        return "Deadlock: no thread can go on.\n  " + "\n  ".join(self.waits)


@dataclass(frozen=True, slots=True)
class Misuse:
    """A rule of an instruction broken, a stack overflow, a trap or a conversion that saturates."""

    where: Where | None
    detail: str

    def __str__(self) -> str:
        return f"Misuse: {self.where}: {self.detail}." if self.where else f"Misuse: {self.detail}."


@dataclass(frozen=True, slots=True)
class _Elements:
    buffer: str
    rank: int
    count: int
    first: int
    """Flat index of the first such element."""

    sentence: ClassVar[str]

    def __str__(self) -> str:
        return self.sentence.format(self)


class Uninitialised(_Elements):
    """An output that depends on unwritten memory: it changes with what that memory held before."""

    sentence = (
        "Uninitialised: {0.count} elements of {0.buffer} of rank {0.rank} depend on memory that no thread wrote; "
        "the first is element {0.first}."
    )


class Unwritten(_Elements):
    """Elements of an output that no thread wrote."""

    sentence = (
        "Unwritten: no thread writes {0.count} elements of the output {0.buffer} of rank {0.rank}; the first is "
        "element {0.first}."
    )


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses that nothing orders, as ThreadSanitizer found them."""

    first: str
    """What it is, by whom and where: `write of 4 bytes by ... at file:line`."""
    second: str

    def __str__(self) -> str:
        return f"Race: {self.first}; {self.second}."


Fault = OutOfBounds | InputWritten | _Detailed | Deadlock | Misuse | _Elements | Race


class FaultKind(enum.IntEnum):
    """`FaultKind` of native/state.h, as far as it has a class of its own."""

    OUT_OF_BOUNDS = 1
    READ_ONLY = 2
    MISALIGNED = 3
    DEADLOCK = 4
    DIVERGENCE = 5
    SCOPE = 6


_DETAILED: Mapping[int, Callable[[Where, str], Fault]] = {
    FaultKind.MISALIGNED: MisalignedAccess,
    FaultKind.DIVERGENCE: Divergence,
    FaultKind.SCOPE: ScopeTooNarrow,
}


def parse_report(report: str, line_of_pc: str = "") -> Fault | None:
    """The fault in the runtime's report (`key<TAB>value` lines); None if it is empty.

    `line_of_pc` is `file:line` of the reported program counter, for faults that the hardware found.
    """
    if not report:
        return None
    pairs = [line.partition("\t")[::2] for line in report.splitlines()]
    value = dict(pairs)
    kind = int(value["kind"])
    if kind == FaultKind.DEADLOCK:
        return Deadlock(tuple(text for key, text in pairs if key == "wait"))
    buffer, buffer_rank, offset = value["buffer"], int(value["buffer_rank"]), int(value["offset"])
    if not value["kernel"]:
        if kind == FaultKind.OUT_OF_BOUNDS:
            return OutOfBounds(None, True, buffer, buffer_rank, offset, value["text"])
        return Misuse(None, value["text"])
    line = f"{value['file']}:{value['line']}" if value["file"] else line_of_pc
    block, thread = (tuple(map(int, value[key].split(","))) for key in ("block", "thread"))
    where = Where(value["kernel"], int(value["launch"]), int(value["rank"]), block, thread, line)
    if kind == FaultKind.OUT_OF_BOUNDS:
        return OutOfBounds(where, value["write"] == "1", buffer, buffer_rank, offset, value["text"])
    if kind == FaultKind.READ_ONLY:
        return InputWritten(where, buffer, buffer_rank, offset)
    return _DETAILED.get(kind, Misuse)(where, value["text"])


def program_counter(report: str) -> int:
    """The program counter in a report, relative to its object; 0 if there is none."""
    return next((int(line[3:]) for line in report.splitlines() if line.startswith("pc\t")), 0)
