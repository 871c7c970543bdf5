"""Where one route overtakes another: thresholds that fit a measured curve best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise


@dataclass(frozen=True)
class Curve:
    """How long a call takes, by route and size: the value of the workload's interval."""

    sizes: tuple[int, ...]
    """Increasing."""
    times: Mapping[str, tuple[float | None, ...]]
    """Microseconds a call, by route in the order in which they serve growing sizes; None where one can't."""
    most: Mapping[str, int]
    """Largest size that a route serves."""


@dataclass(frozen=True)
class Crossings:
    """From which size on each route but the first is taken; None: never."""

    begins: Mapping[str, int | None]
    loss: float
    """Time over that of the fastest route, the mean of all sizes as a fraction: what fixed thresholds cost."""


def crossings(curve: Curve, low: int) -> Crossings:
    """The thresholds whose routes take the least time, each size counting by its ratio to the fastest route.

    A threshold lies at the geometric middle of the sizes between which routes change, but never where the route
    before it can't serve. A route that is best from the first size on begins at `low`.

    Raises:
        ValueError: no order of the routes serves all sizes.
    """
    routes, count = list(curve.times), len(curve.sizes)
    best = [
        min(time for time in column if time is not None) for column in zip(*curve.times.values(), strict=True)
    ]
    losses = {
        route: [math.inf if time is None else time / best[i] - 1 for i, time in enumerate(times)]
        for route, times in curve.times.items()
    }

    def loss(starts: Sequence[int]) -> float:
        edges = (0, *starts, count)
        spans = zip(routes, pairwise(edges), strict=True)
        return sum(sum(losses[route][begin:end]) for route, (begin, end) in spans)

    # Of equal losses the latest change wins: a route that waits for less is the better one in other company.
    starts = min(
        combinations_with_replacement(range(count, -1, -1), len(routes) - 1),
        key=lambda starts: loss(starts[::-1]),
    )[::-1]
    if not math.isfinite(loss(starts)):
        raise ValueError("no order of the routes serves all sizes; widen what one of them serves")
    begins: dict[str, int | None] = {}
    before = routes[0]
    for route, (start, end) in zip(routes[1:], pairwise((*starts, count)), strict=True):
        if start == end:
            begins[route] = None
            continue
        middle = math.isqrt(curve.sizes[start - 1] * curve.sizes[start])
        begins[route] = min(middle, curve.most[before] + 1) if start else low
        before = route
    return Crossings(begins, loss(starts) / count)
