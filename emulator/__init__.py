"""Runs generated CUDA on the CPU: exactness, schedule fuzzing and race detection without a GPU.

- `compile_text`: a `.cu` text, unchanged, to an object (host compiler, cached by content);
- `Buffer`, `Launch`, `run`: launches over ranks and streams on NumPy arrays, under one `Schedule`;
- `check`, `fuzz`: every check of one schedule; many schedules until one fails;
- `find_races`: ThreadSanitizer, in a process of its own;
- `candidate_program`, `run_candidate`: a candidate of the dispatch table.

Faults are values (`report`). Importing this loads neither torch nor CuPy.
"""

from .build import CompileFailed, Object, Variant, compile_text
from .candidate import CandidateRun, Program, candidate_program, run_candidate
from .check import Checked, Fuzzed, Problem, check, fuzz
from .compare import Mismatch, compare
from .launch import Argument, Buffer, Launch, Outcome, run
from .race import TooLarge, find_races
from .report import (
    Deadlock,
    Divergence,
    Fault,
    InputWritten,
    Misaligned,
    Misuse,
    OutOfBounds,
    Race,
    ScopeTooNarrow,
    Uninitialised,
    Unwritten,
    Where,
)
from .schedule import POLICIES, Policy, Schedule, schedules
from .text import TextUnsupported
from .toolchain import EXIT_STATUS, CompilerMissing, compiler

__all__ = [
    "EXIT_STATUS",
    "POLICIES",
    "Argument",
    "Buffer",
    "CandidateRun",
    "Checked",
    "CompileFailed",
    "CompilerMissing",
    "Deadlock",
    "Divergence",
    "Fault",
    "Fuzzed",
    "InputWritten",
    "Launch",
    "Misaligned",
    "Mismatch",
    "Misuse",
    "Object",
    "OutOfBounds",
    "Outcome",
    "Policy",
    "Problem",
    "Program",
    "Race",
    "Schedule",
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
