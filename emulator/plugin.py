"""A pytest fixture that runs all checks of the emulator on a kernel of your own.

pytest_plugins = ["kernwright.emulator.plugin"]  # in the top conftest.py

def test_mine(check_kernels):
    kernel = compile_text(Path("mine.cu").read_text(), "mine.cu")
    out = DeviceBuffer.output("out", (256,), "float32")
    launch = EmulatedLaunch(kernel, "mine", (2, 1, 1), (128, 1, 1), (DeviceBuffer.input("x", x), out))
    check_kernels([launch], {out: expected})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from .check import Expected, check, fuzz
from .launch import EmulatedLaunch
from .race import find_races


def _check_kernels(
    launches: Sequence[EmulatedLaunch],
    expected: Expected | None = None,
    *,
    seeds: int = 20,
    sanitize: bool = True,
) -> None:
    """Fail the test with the first problems found: by memory checks, by fuzzing, by ThreadSanitizer.

    Without `expected`, bit for bit, schedules are compared with each other; a failing one of `seeds` is printed.

    Raises:
        TooLarge: `sanitize` with more than `race.MAX_THREADS` threads.
    """
    checked = check(launches, expected)
    if checked.problems:
        pytest.fail("\n".join(map(str, checked.problems)), pytrace=False)
    fuzzed = fuzz(launches, expected, seeds)
    if fuzzed.problems:
        pytest.fail(str(fuzzed), pytrace=False)
    races = find_races(launches) if sanitize else ()
    if races:
        pytest.fail("\n".join(map(str, races)), pytrace=False)


@pytest.fixture
def check_kernels() -> Callable[..., None]:
    """All checks of the emulator; see the module."""
    return _check_kernels
