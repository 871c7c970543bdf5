"""Paired timing: control and candidate in one process, A B B A, group by group, each group checked for health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ledger import Group
from .graphs import Graph, replay_ms
from .health import Monitor, UnderPowerCap, problem
from .ranks import agreed, slowest

if TYPE_CHECKING:
    import torch

STABLE = 0.01
"""Warm-up ends when two replays in a row differ by less."""
MAX_WARM_UP = 20


@dataclass(frozen=True)
class Pace:
    groups: int = 5
    """Valid groups wanted in a block."""
    replays: int = 20
    """Replays behind one sample."""
    most: int = 10
    """Groups tried in a block, valid or not, before it gives up."""


def paired(
    control: Graph[Any],
    candidate: Graph[Any],
    watch: Monitor | UnderPowerCap,
    pace: Pace,
    sample: Callable[[Graph[Any], int], float] = replay_ms,
    block: int = 0,
) -> tuple[Group, ...]:
    """Groups of samples in the order A B B A and B A A B by turns, so that a drift falls on both alike.

    Each group begins with a replay that isn't counted: asking NVML leaves the GPU idle for a moment, and the
    first sample would include the time until it is busy again.

    A group during which the GPU wasn't ours alone or slowed down keeps its samples and says so; it is repeated
    until `pace.groups` are valid or `pace.most` were tried. With several ranks a sample is the slowest rank's.
    `block` is the number of the block that the two graphs were captured for.
    """
    for graph in (control, candidate):
        warm(graph, pace.replays, sample)
    groups: list[Group] = []
    valid = 0
    while valid < pace.groups and len(groups) < pace.most:
        outer, inner = (candidate, control) if len(groups) % 2 else (control, candidate)
        before = watch.snapshot()
        sample(outer, pace.replays)
        times = [slowest(sample(graph, pace.replays)) for graph in (outer, inner, inner, outer)]
        fault = agreed(problem(before, watch.snapshot()))
        valid += fault is None
        by_place = {id(outer): (times[0], times[3]), id(inner): (times[1], times[2])}
        control_ms, candidate_ms = by_place[id(control)], by_place[id(candidate)]
        groups.append(Group(control=control_ms, candidate=candidate_ms, problem=fault, block=block))
    return tuple(groups)


def alone(
    graph: Graph[Any],
    watch: Monitor | UnderPowerCap,
    pace: Pace,
    sample: Callable[[Graph[Any], int], float] = replay_ms,
) -> tuple[float, ...]:
    """Samples of one entry from valid groups only: for baselines and the floor, which decide nothing."""
    warm(graph, pace.replays, sample)
    samples: list[float] = []
    for _ in range(pace.most):
        before = watch.snapshot()
        time = slowest(sample(graph, pace.replays))
        if agreed(problem(before, watch.snapshot())) is None:
            samples.append(time)
        if len(samples) == pace.groups:
            break
    return tuple(samples)


def warm(graph: Graph[Any], replays: int, sample: Callable[[Graph[Any], int], float]) -> None:
    """Replay until the time settles: clocks rise, caches and the instruction cache fill."""
    last = slowest(sample(graph, replays))
    for _ in range(MAX_WARM_UP):
        now = slowest(sample(graph, replays))  # so that all ranks stop at the same replay
        if abs(now - last) < STABLE * last:
            return
        last = now


def flat(results: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for outputs in results for tensor in outputs]
