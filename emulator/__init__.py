"""Runs generated CUDA on the CPU: exactness, schedule fuzzing and race detection without a GPU.

docs/emulator.md describes it. Faults are values (`report`). Importing this loads neither torch nor CuPy.
"""

from .build import HostCompileFailed, Object, compile_text
from .candidate import Program, candidate_program, run_candidate
from .check import Fuzzed, check, fuzz
from .compare import BufferMismatch, compare
from .launch import Argument, DeviceBuffer, EmulatedLaunch, run
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
from .schedule import Interleaving, schedules
from .text import TextUnsupported
from .toolchain import CompilerMissing, compiler

__all__ = [
    "Argument",
    "BufferMismatch",
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
    "Program",
    "Race",
    "ScopeTooNarrow",
    "TextUnsupported",
    "TooLarge",
    "Uninitialised",
    "Unwritten",
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
