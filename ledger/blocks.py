"""Blocks: the samples that a verdict is computed from, and their confidence interval.

A block is allocated and captured anew and holds several groups. Where memory lies and how a graph was captured is
drawn once a block, and moves all of its groups alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from .facts import Group, Timing

GainInterval = tuple[float, float]

DIGITS = 12
"""Decimals of results: the ledger must not depend on the last bit of a machine's `log` and `exp`."""


def group_ratios(groups: Sequence[Group]) -> list[float]:
    """Candidate's time over the control's in each group, in the order taken."""
    # fsum, because sum() of floats is compensated from Python 3.12 on: the ledger must not depend on that.
    return [math.fsum(group.candidate) / math.fsum(group.control) for group in groups]


def block_ratios(timing: Timing, min_groups: int) -> list[float]:
    """The median ratio of each block that has at least `min_groups` valid groups, in the order taken."""
    blocks: dict[int, list[Group]] = {}
    for group in timing.valid:
        blocks.setdefault(group.block, []).append(group)
    return [median(group_ratios(groups)) for groups in blocks.values() if len(groups) >= min_groups]


def block_interval(ratios: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Geometric mean of two ratios or more, and its interval: Student's t on their logarithms.

    Three blocks are too few for order statistics (75% confidence at most), so the logarithms of blocks are taken as
    normal. The spread is that between blocks alone: more groups in a block narrow nothing but its median.
    """
    logs, n = [math.log(ratio) for ratio in ratios], len(ratios)
    mean = math.fsum(logs) / n
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in logs) / (n - 1))
    half = t_quantile(n - 1, confidence) * spread / math.sqrt(n)
    low, middle, high = (round(math.exp(mean + side), DIGITS) for side in (-half, 0.0, half))
    return middle, low, high


@cache
def t_quantile(freedom: int, confidence: float) -> float:
    """The t that a Student's t of so many degrees of freedom stays within, on both sides, with that probability.

    To four decimals, rounded up: 4.3027 for 2 at 0.95.
    """
    high = 1.0
    while _within(freedom, high) < confidence:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(freedom, middle) < confidence else (low, middle)
    return math.ceil(round(high * 1e4, 3)) / 1e4


def _within(freedom: int, t: float) -> float:
    """P(|T| <= t), in closed form (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def median(values: Sequence[float]) -> float:
    """Middle value, or the mean of the two middle ones. `values` isn't empty."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
