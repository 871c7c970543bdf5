"""From samples to a verdict, by a stated rule; pure, without seeds, the same on every machine.

What is compared is the ratio of a group, candidate over control. A group samples control, candidate,
candidate, control: a drift that is linear in time slows both sums by one factor and leaves the ratio.

Groups of one captured graph share its memory and its state, so they repeat one another more than they repeat
the measurement. The sample is the block, allocated and captured anew: the interval is over blocks (`blocks.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..table import Verdict
from .blocks import GainInterval, block_interval, block_ratios, group_ratios, median
from .facts import Exactness, Rule, Timing


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
    judged = _of_one_block(timing, rule) if rule.of_one_block else judge_blocks([timing], rule)
    if exactness.closeness is None or judged.verdict == "invalid":
        return judged
    return replace(judged, reason=f"{judged.reason} It is {compared}.")


def judge_blocks(runs: Sequence[Timing], rule: Rule) -> Judgement:
    """Judge the times of all runs of one source by the blocks of all of them; the scope is the same in each.

    The more runs, the wider the interval: see `confidence_after`.
    """
    ratios = [ratio for timing in runs for ratio in block_ratios(timing, rule.min_groups)]
    tried = sum(len({group.block for group in timing.groups}) for timing in runs)
    if len(ratios) < rule.min_blocks:
        found = f"{len(ratios)} of {_count(tried, 'block')} valid, {rule.min_blocks} are needed"
        return Judgement("invalid", None, None, found + _remedy(runs, "take more blocks"))
    confidence = confidence_after(rule.confidence, len(runs))
    ratio, low, high = block_interval(ratios, confidence)
    gain, interval = 1 - ratio, (1 - high, 1 - low)
    verdict, where = _place(interval, rule.threshold)
    of = "" if len(runs) == 1 else f" of {len(runs)} runs"
    found = (
        f"{gain:+.2%} {runs[0].scope.replace('_', ' ')} time saved over the control, "
        f"{interval[0]:+.2%} to {interval[1]:+.2%} with {100 * confidence:.4g}% confidence "
        f"over {len(ratios)} valid of {_count(tried, 'block')}{of}"
    )
    return Judgement(verdict, gain, interval, f"{found}: {where}.")


def confidence_after(confidence: float, runs: int) -> float:
    """Confidence of the interval after so many runs, each followed by a verdict.

    Whoever measures until the verdict pleases takes every run as another chance. The k-th gets an error of
    alpha / (k (k - 1)), the first one alpha: their sum stays below 2 alpha, of which one side admits. So at 95% a
    candidate that isn't above the threshold is admitted by one run with 2.5%, and by any number of runs with 5%.
    """
    return 1 - (1 - confidence) / max(1, runs * (runs - 1))


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


def _remedy(runs: Sequence[Timing], otherwise: str) -> str:
    problems = Counter(
        group.problem for timing in runs for group in timing.groups if group.problem is not None
    )
    if not problems:
        return f": {otherwise}."
    problem, times = problems.most_common(1)[0]
    return f"; the commonest problem, in {_count(times, 'group')}: {problem}."


def _of_one_block(timing: Timing, rule: Rule) -> Judgement:
    """The rule before version 6: the interval of the groups, which are of one block."""
    ratios = group_ratios(timing.valid)
    if len(ratios) < rule.min_groups:
        found = f"{len(ratios)} of {_count(len(timing.groups), 'group')} valid, {rule.min_groups} are needed"
        return Judgement("invalid", None, None, found + _remedy([timing], "take more groups"))
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
