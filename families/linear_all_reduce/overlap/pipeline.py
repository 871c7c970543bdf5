"""The order of events: slice s is reduced on a side stream while slice s + 1 is multiplied on the caller's.

Streams and reductions are given, so that a test can record the order for any rows, slices and delays. What must hold,
and why it does:

- a slice is reduced after its GEMM: the side waits for an event that the main stream records behind that GEMM;
- a slice that is added on the main stream is fetched before, and its sums are fetched after: each side waits for the
  other's event;
- the result is read after all reductions: the main stream waits for the side before the call returns, whatever
  happens in between, so that a capture never ends with a side that isn't joined;
- partial sums aren't overwritten early: those of one call lie side by side, and the next call on the same scratch
  is on the same stream, behind that wait;
- nothing is allocated inside: partial sums are scratch that outlives the call, the result is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .lanes import Lanes
from .reductions import Reduction
from .rows import Additions, Slice


def run(
    slices: Sequence[Slice],
    lanes: Lanes,
    multiply: Callable[[Slice], None],
    reduction: Reduction,
    additions: Additions = "side",
) -> None:
    """Multiply and reduce all slices; on return the caller's stream is behind all of it.

    Args:
        slices: at least one.
        lanes: where work is enqueued.
        multiply: enqueues the GEMM of a slice, into its partial sums.
        reduction: enqueues the rest.
        additions: on the side stream a slice is added as soon as it can be, beside a GEMM that leaves SMs free; on
            the main stream it is added behind the next slice's GEMM, on all SMs.
    """
    main, side = lanes.main, lanes.side
    if side is main:
        for part in slices:
            multiply(part)
            _reduce(reduction, part)
        reduction.close()
        return
    count = len(slices)
    events = lanes.events(3 * count + 1)
    produced, fetched, added = events[:count], events[count : 2 * count], events[2 * count : 3 * count]
    done = events[-1]

    def add(index: int) -> None:
        main.wait(fetched[index])
        reduction.add(slices[index])
        main.record(added[index])
        side.wait(added[index])
        with side.enqueue():
            reduction.end(slices[index])

    try:
        for index, part in enumerate(slices):
            multiply(part)
            main.record(produced[index])
            side.wait(produced[index])
            with side.enqueue():
                if additions == "side":
                    _reduce(reduction, part)
                else:
                    reduction.begin(part)
                    side.record(fetched[index])
            if additions == "main" and index:
                add(index - 1)
        if additions == "main":
            add(count - 1)
        with side.enqueue():
            reduction.close()
    finally:
        side.record(done)
        main.wait(done)


def _reduce(reduction: Reduction, part: Slice) -> None:
    reduction.begin(part)
    reduction.add(part)
    reduction.end(part)
