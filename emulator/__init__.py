"""Runs generated CUDA on the CPU: exactness, schedule fuzzing and race detection without a GPU.

docs/emulator.md describes it. Faults are values (`report`). Importing this loads neither torch nor CuPy.
"""

from .build import HostCompileFailed, Object, compile_text
from .candidate import Program, candidate_program
from .check import Fuzzed, check, fuzz
from .compare import BufferMismatch, compare
from .launch import Argument, DeviceBuffer, EmulatedLaunch, run
from .race import TooLarge, find_races
from .report import Fault
from .schedule import Interleaving, schedules
from .text import TextUnsupported
from .toolchain import CompilerMissing

__all__ = [
    "Argument",
    "BufferMismatch",
    "CompilerMissing",
    "DeviceBuffer",
    "EmulatedLaunch",
    "Fault",
    "Fuzzed",
    "HostCompileFailed",
    "Interleaving",
    "Object",
    "Program",
    "TextUnsupported",
    "TooLarge",
    "candidate_program",
    "check",
    "compare",
    "compile_text",
    "find_races",
    "fuzz",
    "run",
    "schedules",
]
