"""Paired timing by CUDA graph replay: everything in one process, in alternating order, medians of groups."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one replay, one value a group."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the groups."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / self.median

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"median_ms": self.median, "iqr_over_median": self.spread, "samples_ms": list(self.samples)}


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Capture `run` after warming it up on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def replay_time(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Milliseconds a replay, by events around `replays` of them."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays


def paired(
    graphs: Mapping[str, torch.cuda.CUDAGraph], *, groups: int = 11, replays: int = 20
) -> dict[str, Timing]:
    """Time all graphs against each other: every group runs each once, forwards and backwards in turn."""
    names = list(graphs)
    for name in names:
        replay_time(graphs[name], 5)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for group in range(groups):
        for name in names if group % 2 == 0 else reversed(names):
            samples[name].append(replay_time(graphs[name], replays))
    return {name: Timing(tuple(values)) for name, values in samples.items()}
