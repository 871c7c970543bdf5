"""From samples to a verdict, by a stated rule; pure, without seeds, the same on every machine.

What is compared is the ratio of a group, candidate over control. A group samples control, candidate,
candidate, control: a drift that is linear in time slows both sums by one factor and leaves the ratio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..table import Verdict
from .facts import Exactness, Rule, Timing

GainInterval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rule makes of a run. `ledger check` recomputes all of it, the wording of `reason` too."""

    verdict: Verdict
    gain: float | None
    """Time saved over the control, as a fraction of the control's time; None if it can't be told."""
    interval: GainInterval | None
    """Confidence interval of the gain; None where there is no comparison."""
    reason: str


def judge(exactness: Exactness, timing: Timing | None, rule: Rule, is_control: bool) -> Judgement:
    """Judge a candidate: *rejected* if inexact or outside its tolerance, whatever its time; else by its gain.

    *admitted* if the interval lies wholly above +threshold, *rejected* if wholly below -threshold, else
    *no_difference*, also where it was only verified; *invalid* with too few valid groups, and where
    nothing was compared. The control is no different from itself. Source: docs/evidence.md#the-verdict.
    """
    if not exactness.exact:
        return _inexact(exactness)
    compared = _compared(exactness)
    if is_control:
        return Judgement("no_difference", 0.0, None, f"The control itself, {compared}.")
    if timing is None:
        return Judgement("no_difference", None, None, f"Only verified, not timed: {compared}.")
    ratios = group_ratios(timing)
    if len(ratios) < rule.min_groups:
        return Judgement("invalid", None, None, _too_few(timing, len(ratios), rule))
    judged = _timed(ratios, timing, rule)
    if exactness.closeness is None:
        return judged
    return replace(judged, reason=f"{judged.reason} It is {compared}.")


def group_ratios(timing: Timing) -> list[float]:
    """Candidate's time over the control's in each valid group, in the order taken."""
    # fsum, because sum() of floats is compensated from Python 3.12 on: the ledger must not depend on that.
    return [math.fsum(group.candidate) / math.fsum(group.control) for group in timing.valid]


def median(values: Sequence[float]) -> float:
    """Middle value, or the mean of the two middle ones. `values` isn't empty."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float], confidence: float) -> GainInterval | None:
    """Confidence interval of the median from order statistics, free of any assumption on the distribution.

    The k-th smallest and the k-th largest of n independent values enclose the true median with probability
    1 - 2 P(B < k), B binomial with n tries of 1/2, or more where values tie (Thompson 1936; David and
    Nagaraja, Order Statistics, section 7.1). The largest k that still reaches `confidence` is taken, so that
    the coverage is at least that: at 0.95, 98.4% with 7 values, which span from the smallest to the largest;
    96.1% with 9, the first number that leaves one outlier out on each side; 95.1% with 17. None where even
    the extremes don't reach it.
    """
    ordered, n = sorted(values), len(values)
    outside, k = 0, 0  # outcomes of 2^n with B < k: integers, so the choice of k has no rounding
    while 2 * k < n:
        outside += math.comb(n, k)
        if 1 - 2 * outside / 2**n < confidence:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def _compared(exactness: Exactness) -> str:
    cases, near = _count(exactness.cases, "case"), exactness.closeness
    if near is None:
        return f"exact in {cases} against {exactness.against}"
    return f"within {near.bounds} of {exactness.against} in {cases}: {near.measured}"


def _inexact(exactness: Exactness) -> Judgement:
    if not exactness.inexact:
        return Judgement("invalid", None, None, "Exactness wasn't checked: no case was compared.")
    near = exactness.closeness
    one = exactness.mismatches == 1
    if near is None:
        wrong = f"{'differs' if one else 'differ'} in bits from {exactness.against}"
    else:
        wrong = f"{'lies' if one else 'lie'} outside {near.bounds} of {exactness.against}"
    first = "" if exactness.first is None else f"; first: {exactness.first}"
    return Judgement(
        "rejected",
        None,
        None,
        f"{exactness.mismatches} of {exactness.values} stored values {wrong} in "
        f"{_count(exactness.cases, 'case')}{first}.",
    )


def _too_few(timing: Timing, valid: int, rule: Rule) -> str:
    found = f"{valid} of {_count(len(timing.groups), 'group')} valid, {rule.min_groups} are needed"
    problems = Counter(group.problem for group in timing.groups if group.problem is not None)
    if not problems:
        return f"{found}: take more groups."
    problem, times = problems.most_common(1)[0]
    return f"{found}; the commonest problem, in {_count(times, 'group')}: {problem}."


def _timed(ratios: list[float], timing: Timing, rule: Rule) -> Judgement:
    bounds = median_interval(ratios, rule.confidence)
    assert bounds is not None, "a Rule's min_groups reach its confidence"
    gain, interval = 1 - median(ratios), (1 - bounds[1], 1 - bounds[0])
    verdict, where = _place(interval, rule.threshold)
    found = (
        f"{gain:+.2%} {timing.scope.replace('_', ' ')} time saved over the control, "
        f"{interval[0]:+.2%} to {interval[1]:+.2%} with at least {100 * rule.confidence:.4g}% confidence "
        f"in {len(ratios)} valid of {_count(len(timing.groups), 'group')}"
    )
    return Judgement(verdict, gain, interval, f"{found}: {where}.")


def _place(interval: GainInterval, threshold: float) -> tuple[Verdict, str]:
    low, high = interval
    if low > threshold:
        return "admitted", f"wholly above {threshold:+.2%}"
    if high < -threshold:
        return "rejected", f"wholly below {-threshold:+.2%}"
    return "no_difference", f"neither wholly above {threshold:+.2%} nor wholly below {-threshold:+.2%}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
