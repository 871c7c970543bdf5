"""Events that a warm process shouldn't have (compiling, loading, deciding): for tests and diagnosis.

with watch() as events:
    serve()
assert events == []
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_watching: list[list[str]] = []


@contextmanager
def watch() -> Iterator[list[str]]:
    """A list that gets a sentence for whatever a warm call must not do while the block runs, by any thread.

    That is: a kernel is compiled or loaded, a call is decided anew, or, known at the end of the block, torch asks
    the driver for device memory (what its cache holds already isn't asked for).
    """
    events: list[str] = []
    before = _device_allocations()
    _watching.append(events)
    try:
        yield events
    finally:
        _watching[:] = [other for other in _watching if other is not events]
        asked = _device_allocations() - before
        if asked:
            events.append(f"torch asked the driver {asked} times for device memory")


def note(event: str) -> None:
    """Report an event to all watchers."""
    for events in _watching:
        events.append(event)


def _device_allocations() -> int:
    torch = sys.modules.get("torch")  # not loaded for this
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(
        torch.cuda.memory_stats(index).get("num_device_alloc", 0)
        for index in range(torch.cuda.device_count())
    )
