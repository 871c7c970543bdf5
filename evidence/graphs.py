"""CUDA graphs of a run, and how long a replay takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

WARM_UP_RUNS = 3
BALLAST = (3 * 512, 17 << 20)
"""Bytes for each block before: torch places tensors below 1 MiB in steps of 512, and large ones in steps of 2 MiB."""


class Graph(Generic[Result]):
    """A captured run with what it returned: the tensors that every replay writes again."""

    def __init__(self, run: Callable[[], Result]) -> None:
        """Warm up on a side stream, as capture wants it, then capture on it: scratch may belong to a stream."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        self._kept = run  # it has whatever a replay reads, which must live as long as the graph
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self.result = run()

    def replay(self) -> None:
        self._graph.replay()


def capture(run: Callable[[], Result]) -> Graph[Result]:
    return Graph(run)


def placed_anew(block: int) -> object:
    """Give unused memory back to the driver and take some that moves what is allocated next; hold the result.

    torch would give the next block the very memory of the last one. A block's number decides how far it moves, in
    the segments of small tensors and in those of large ones.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return [torch.empty(block * step, dtype=torch.uint8, device="cuda") for step in BALLAST]


def replay_ms(graph: Graph[Result], replays: int) -> float:
    """Milliseconds a replay, by events around `replays` of them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / replays
