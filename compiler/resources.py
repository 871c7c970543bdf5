"""What a kernel uses of the chip, read from the log of `ptxas -v`, and whether that is within its budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Resources:
    """Compile-time resources of one kernel."""

    registers: int
    """32-bit registers of one thread."""
    shared_bytes: int
    """Static shared memory of one CTA."""
    stack_bytes: int
    """Local memory of one thread for its stack, called functions included."""
    spill_bytes: int
    """Bytes of spill stores plus spill loads, called functions included."""


class LogUnreadable(ValueError):
    """The log of ptxas has an unexpected format; budgets can't be checked."""


_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_PROPERTIES = re.compile(r"Function properties for '?([^\s']+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")

_UNITS = {
    "registers": "registers",
    "shared_bytes": "bytes of static shared memory",
    "stack_bytes": "bytes of stack",
    "spill_bytes": "bytes of spill stores and loads",
}


def parse_log(log: str) -> dict[str, Resources]:
    """Resources by kernel symbol, in the order of the log.

    ptxas prints the properties of device functions that it didn't inline after the kernel that calls them
    (once for each such kernel, since it clones them): their spills count for that kernel.

    Raises:
        LogUnreadable: a kernel is named, but its registers or its stack frame aren't given.
    """
    parts = _ENTRY.split(log)
    return {
        symbol: _parse_kernel(symbol, text) for symbol, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _parse_kernel(symbol: str, text: str) -> Resources:
    """`text` is what the log says from this kernel's heading up to the next one's."""
    function = ""
    stack, spills = None, 0
    used = ""
    for line in text.splitlines():
        if properties := _PROPERTIES.search(line):
            function = properties[1]
        elif frame := _FRAME.search(line):
            spills += int(frame[2]) + int(frame[3])
            if function == symbol:
                stack = int(frame[1])
        elif _USED.search(line) and not used:
            used = line
    if stack is None or not used:
        raise LogUnreadable(
            f"The log of ptxas names the kernel {symbol}, but doesn't give its registers and stack frame; "
            f"its format is not the one that this version knows. What it says of the kernel: {text.strip()!r}"
        )
    return Resources(
        registers=_number(_USED, used),
        shared_bytes=_number(_SHARED, used),
        stack_bytes=max(stack, _number(_CUMULATIVE, used)),
        spill_bytes=spills,
    )


def _number(pattern: re.Pattern[str], line: str) -> int:
    """The number that `pattern` finds; ptxas leaves out what is zero."""
    found = pattern.search(line)
    return int(found[1]) if found else 0


def over_budget(resources: Mapping[str, Resources], budget: Mapping[str, int]) -> list[str]:
    """One sentence, with both numbers, for each limit that a kernel exceeds; empty when all is within.

    Args:
        resources: by kernel symbol; pass one kernel alone to check a budget of its own.
        budget: upper limits by the names of the fields of `Resources`; a field without a limit is free.

    Raises:
        ValueError: `budget` limits something that isn't a field of `Resources`.
    """
    if unknown := budget.keys() - _UNITS.keys():
        raise ValueError(
            f"A budget limits {', '.join(sorted(unknown))}; it can limit {', '.join(_UNITS)}, nothing else."
        )
    return [
        f"{symbol} uses {asdict(used)[name]} {unit}; its budget is {budget[name]}"
        for symbol, used in resources.items()
        for name, unit in _UNITS.items()
        if name in budget and asdict(used)[name] > budget[name]
    ]
