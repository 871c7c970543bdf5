"""The order of events: slice s is reduced on a side stream while slice s + 1 is multiplied on the caller's.

Everything here is written against protocols, so that a recorder can stand in for streams and show the order for
any number of rows, slices and delays. What must hold, and how it does:

- a slice is reduced after its GEMM: the side waits for an event that the main stream records behind that GEMM;
- the result is read after all reductions: the main stream waits for the side before the call returns, whatever
  happens in between, so that a capture never ends with a side that isn't joined;
- partial sums aren't overwritten early: those of one call lie side by side, and the next call on the same scratch
  is on the same stream, behind that wait;
- nothing is allocated inside: partial sums are scratch that outlives the call, the result is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .rows import Slice


class Stream(Protocol):
    """Work in order."""

    def record(self, event: Any) -> None:
        """Let `event` happen behind what has been enqueued so far."""

    def wait(self, event: Any) -> None:
        """Let what is enqueued from now on come after `event`."""

    def enqueue(self) -> AbstractContextManager[None]:
        """What is launched inside goes here."""


class Lanes(Protocol):
    """The caller's stream, and one beside it."""

    @property
    def main(self) -> Stream:
        """The caller's, which is current when the pipeline begins."""

    @property
    def side(self) -> Stream:
        """Where slices are reduced; the same as `main` where nothing is to overlap."""

    def events(self, count: int) -> Sequence[Any]:
        """So many events; they may be those of an earlier call."""


class Reduction(Protocol):
    """How partial sums of all ranks become a result; its methods enqueue on the current stream."""

    def reduce(self, part: Slice) -> None:
        """Add the ranks' partial sums of a slice, into its rows of the result."""

    def close(self) -> None:
        """End the call: its partial sums may be overwritten, here and by peers."""


def run(
    slices: Sequence[Slice], lanes: Lanes, multiply: Callable[[Slice], None], reduction: Reduction
) -> None:
    """Multiply and reduce all slices; on return the caller's stream is behind all of it.

    Args:
        slices: at least one.
        lanes: where work is enqueued.
        multiply: enqueues the GEMM of a slice, into its partial sums.
        reduction: enqueues the rest.
    """
    main, side = lanes.main, lanes.side
    if side is main:
        for part in slices:
            multiply(part)
            reduction.reduce(part)
        reduction.close()
        return
    *produced, done = lanes.events(len(slices) + 1)
    try:
        for part, event in zip(slices, produced, strict=True):
            multiply(part)
            main.record(event)
            side.wait(event)
            with side.enqueue():
                reduction.reduce(part)
        with side.enqueue():
            reduction.close()
    finally:
        side.record(done)
        main.wait(done)
