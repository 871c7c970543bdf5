"""Runs generated CUDA on the CPU: exactness, schedule fuzzing and race detection without a GPU.

- `compile_text`: a `.cu` text, unchanged, to an object (host compiler, cached by content);
- `DeviceBuffer`, `EmulatedLaunch`, `run`: launches over ranks and streams on NumPy arrays, under one `Interleaving`;
- `check`, `fuzz`: every check of one schedule; many schedules until one fails;
- `find_races`: ThreadSanitizer, in a process of its own;
- `candidate_program`, `run_candidate`: a candidate of the dispatch table.

Faults are values (`report`). Importing this loads neither torch nor CuPy.
"""

from .build import HostCompileFailed, Object, Variant, compile_text
from .candidate import CandidateRun, Program, candidate_program, run_candidate
from .check import Checked, CheckProblem, Fuzzed, check, fuzz
from .compare import BufferMismatch, compare
from .launch import Argument, DeviceBuffer, EmulatedLaunch, Outcome, run
from .race import TooLarge, find_races
from .report import (
    Deadlock,
    Divergence,
    Fault,
    InputWritten,
    MisalignedAccess,
    Misuse,
    OutOfBounds,
    Race,
    ScopeTooNarrow,
    Uninitialised,
    Unwritten,
    Where,
)
from .schedule import POLICIES, Interleaving, SchedulerPolicy, schedules
from .text import TextUnsupported
from .toolchain import EXIT_STATUS, CompilerMissing, compiler

__all__ = [
    "EXIT_STATUS",
    "POLICIES",
    "Argument",
    "BufferMismatch",
    "CandidateRun",
    "CheckProblem",
    "Checked",
    "CompilerMissing",
    "Deadlock",
    "DeviceBuffer",
    "Divergence",
    "EmulatedLaunch",
    "Fault",
    "Fuzzed",
    "HostCompileFailed",
    "InputWritten",
    "Interleaving",
    "MisalignedAccess",
    "Misuse",
    "Object",
    "OutOfBounds",
    "Outcome",
    "Program",
    "Race",
    "SchedulerPolicy",
    "ScopeTooNarrow",
    "TextUnsupported",
    "TooLarge",
    "Uninitialised",
    "Unwritten",
    "Variant",
    "Where",
    "candidate_program",
    "check",
    "compare",
    "compile_text",
    "compiler",
    "find_races",
    "fuzz",
    "run",
    "run_candidate",
    "schedules",
]
