"""Races, found by ThreadSanitizer: a sanitized build in a process of its own, on a miniature workload."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .build import TEXT_FILE, compile_text, sanitized_runner
from .launch import DeviceBuffer, EmulatedLaunch, buffers_of, fault_of, pointed
from .native import ACCESS
from .report import Fault, Race
from .schedule import POLICIES, Interleaving

MAX_THREADS = 2000
"""CUDA threads of all launches together: ThreadSanitizer holds some 8,000 fibers, at 0.8 MB each."""

_NO_RANDOM_ADDRESSES = 0x0040000
_TIMEOUT = 300.0
_OPTIONS = "report_bugs=1 halt_on_error=0 exitcode=0 history_size=5 report_signal_unsafe=0 detect_deadlocks=0"

_WARNING = re.compile(r"WARNING: ThreadSanitizer: data race.*?\n(.*?)\n={18}", re.DOTALL)
_ACCESS = re.compile(
    r"^  (?:Previous )?(?P<what>(?:atomic )?(?:write|read)) of size (?P<bytes>\d+) at \w+ by "
    r"(?:main thread|thread (?P<thread>T\d+))[^\n]*\n(?P<stack>(?:    #[^\n]*\n?)*)",
    re.MULTILINE | re.IGNORECASE,
)
_NAME = re.compile(r"^  Thread (T\d+) '([^']*)'", re.MULTILINE)
_ALLOCATION = "tsan_new_delete"
"""A frame of `new` or `delete`: kernels allocate nothing."""
_FRAME = re.compile(r"#\d+ .*? (/\S+):(\d+)")


class TooLarge(ValueError):
    """The launches have more threads than ThreadSanitizer can hold."""


def find_races(
    launches: Sequence[EmulatedLaunch],
    schedule: Interleaving = Interleaving(),  # noqa: B008
) -> tuple[Fault, ...]:
    """Run launches once under ThreadSanitizer; races, and the fault that ended the run if there was one.

    Raises:
        TooLarge: more than `MAX_THREADS` threads; run a smaller workload.
        CompilerMissing, CompileFailed: as `compile_text`.
    """
    threads = sum(int(np.prod(launch.grid)) * int(np.prod(launch.block)) for launch in launches)
    if threads > MAX_THREADS:
        raise TooLarge(
            f"The launches have {threads} threads; ThreadSanitizer takes up to {MAX_THREADS}. Look for races "
            "on a smaller workload of the same family."
        )
    objects = {
        launch.kernel: compile_text(launch.kernel.text, launch.kernel.name, "sanitized")
        for launch in launches
    }
    sanitized = [replace(launch, kernel=objects[launch.kernel]) for launch in launches]
    with tempfile.TemporaryDirectory(prefix="kernwright-race-") as folder:
        return _run(sanitized, schedule, Path(folder))


def _run(launches: Sequence[EmulatedLaunch], schedule: Interleaving, folder: Path) -> tuple[Fault, ...]:
    plan, report = folder / "plan", folder / "report"
    plan.write_text("\n".join(_plan(launches, schedule, folder)) + "\n")
    done = subprocess.run(
        [str(sanitized_runner()), str(plan), str(report)],
        env={**os.environ, "TSAN_OPTIONS": _OPTIONS},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT,
        check=False,
        preexec_fn=_fixed_addresses,
    )
    if done.returncode != 0 or not report.is_file():
        raise RuntimeError(
            f"ThreadSanitizer's runner ended with status {done.returncode} and without a report; its last "
            f"words: {done.stderr[-2000:].strip()!r}"
        )
    names = {str(launch.kernel.path.parent / TEXT_FILE): launch.kernel.name for launch in launches}
    found = list(dict.fromkeys(_races(done.stderr, names)))
    fault = fault_of(report.read_text(), launches)
    return (*found, *([fault] if fault is not None else []))


def _fixed_addresses() -> None:
    """Without address randomisation: ThreadSanitizer needs fixed addresses, which random ones may take."""
    ctypes.CDLL(None).personality(_NO_RANDOM_ADDRESSES)


def _plan(launches: Sequence[EmulatedLaunch], schedule: Interleaving, folder: Path) -> Iterator[str]:
    """The lines that native/runner.cpp reads."""
    yield f"{schedule.seed} {POLICIES.index(schedule.policy)} 1"
    objects = list(dict.fromkeys(launch.kernel for launch in launches))
    yield str(len(objects))
    yield from (str(kernel.path) for kernel in objects)
    buffers = buffers_of(launches)
    position = {buffer: index for index, buffer in enumerate(buffers)}
    yield str(len(buffers))
    for index, buffer in enumerate(buffers):
        file = "-"
        if buffer.access != "out":
            file = str(folder / f"{index}.bin")
            Path(file).write_bytes(np.ascontiguousarray(buffer.array).tobytes())
        name = re.sub(r"\s", "_", buffer.name)
        yield f"{name} {buffer.rank} {buffer.array.nbytes} {ACCESS.index(buffer.access)} {file}"
    yield str(len(launches))
    for launch in launches:
        yield from _launch_lines(launch, objects.index(launch.kernel), position)


def _launch_lines(launch: EmulatedLaunch, module: int, position: dict[DeviceBuffer, int]) -> Iterator[str]:
    yield launch.symbol
    sizes = " ".join(map(str, (*launch.grid, *launch.block, launch.shared_bytes)))
    yield f"{module} {launch.rank} {launch.stream} {int(launch.programmatic)} {sizes} {len(launch.args)}"
    for argument in launch.args:
        if isinstance(argument, np.generic):
            yield f"scalar {argument.tobytes().hex()}"
        else:
            places = [position[buffer] for buffer in pointed(argument)]
            yield f"pointers {' '.join(map(str, (len(places), *places)))}"


def _races(output: str, names: dict[str, str]) -> Iterator[Race]:
    for report in _WARNING.findall(output):
        if TEXT_FILE not in report or _ALLOCATION in report:
            continue  # the runtime's own memory, which belongs to the thread that holds the baton
        threads = dict(_NAME.findall(report))
        sides = [_side(access, threads, names) for access in _ACCESS.finditer(report)]
        if len(sides) >= 2:
            yield Race(sides[0], sides[1])


def _side(access: re.Match[str], threads: dict[str, str], names: dict[str, str]) -> str:
    lines = [(file, line) for file, line in _FRAME.findall(access["stack"]) if file in names]
    at = " < ".join(f"{names[file]}:{line}" for file, line in lines) or "an unknown line"
    who = threads.get(access["thread"], "a thread")
    return f"{access['what'].lower()} of {access['bytes']} bytes by {who} at {at}"
