"""The verdict rule of one block on samples as GPUs give them, by which records before version 6 are judged.

What doesn't depend on the rule is tested here, too; blocks are in test_blocks.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.ledger import Exactness, Group, Rule, Timing, judge, median
from kernwright.ledger.verdict import Judgement, median_interval
from pydantic import ValidationError

EXACT = Exactness(cases=16, values=1000, mismatches=0, against="control replicated")
RULE = Rule(min_groups=7, min_blocks=0)


def timed(groups: Iterable[Group]) -> Timing:
    return Timing(scope="chain", calls=96, replays=20, groups=tuple(groups))


def judged(groups: Iterable[Group], rule: Rule = RULE) -> Judgement:
    return judge(EXACT, timed(groups), rule, is_control=False)


def noisy(random: random.Random, saved: float, noise: float, count: int = 11) -> list[Group]:
    """Groups with normal noise of `noise` on every sample; the candidate saves the fraction `saved`."""
    a, b, c, d = ((lambda: random.gauss(1, noise)) for _ in range(4))
    return [
        Group(control=(2 * a(), 2 * d()), candidate=(2 * (1 - saved) * b(), 2 * (1 - saved) * c()))
        for _ in range(count)
    ]


def of_ratios(ratios: Iterable[float]) -> list[Group]:
    return [Group(control=(1.0, 1.0), candidate=(ratio, ratio)) for ratio in ratios]


def test_two_percent_in_little_noise_is_admitted_and_half_a_percent_is_not() -> None:
    source = random.Random(1)
    two = judged(noisy(source, 0.02, 0.003))
    assert two.verdict == "admitted"
    assert two.gain == pytest.approx(0.02, abs=0.003)
    assert two.interval is not None
    assert 0.01 < two.interval[0] < two.gain < two.interval[1]
    assert {judged(noisy(source, 0.005, 0.003)).verdict for _ in range(200)} == {"no_difference"}


def test_two_percent_slower_is_rejected() -> None:
    found = judged(noisy(random.Random(2), -0.02, 0.003))
    assert found.verdict == "rejected"
    assert found.interval is not None
    assert found.interval[1] < -0.01
    assert found.reason.endswith("wholly below -1.00%.")


def test_a_candidate_against_itself_never_differs() -> None:
    source = random.Random(3)
    verdicts = {judged(noisy(source, 0, 0.005, count)).verdict for _ in range(1000) for count in (7, 11)}
    assert verdicts == {"no_difference"}


def test_identical_samples_are_no_difference_with_no_gain() -> None:
    found = judged(of_ratios([1.0] * 7))
    assert (found.verdict, found.gain, found.interval) == ("no_difference", 0.0, (0.0, 0.0))


def test_a_drift_that_both_share_cancels() -> None:
    # 30% slower from the first sample to the last: far more than the 2% at stake.
    clock = iter(1 + 0.3 * step / 43 for step in range(44))
    groups = []
    for _ in range(11):
        first, second, third, last = (next(clock) for _ in range(4))
        groups.append(Group(control=(first, last), candidate=(0.98 * second, 0.98 * third)))
    found = judged(groups)
    assert found.verdict == "admitted"
    assert found.interval == pytest.approx((0.02, 0.02), abs=1e-12)


def test_clocks_that_switch_between_groups_leave_the_ratio() -> None:
    slow = [Group(control=(2.6, 2.6), candidate=(2.6 * 0.97, 2.6 * 0.97))] * 5
    fast = [Group(control=(2.0, 2.0), candidate=(2.0 * 0.97, 2.0 * 0.97))] * 6
    found = judged([*slow, *fast])
    assert found.verdict == "admitted"
    assert found.gain == pytest.approx(0.03)


def test_clocks_that_switch_within_groups_decide_nothing() -> None:
    source = random.Random(4)

    def sample() -> float:
        return source.choice((2.0, 2.6))

    for _ in range(500):
        groups = [Group(control=(sample(), sample()), candidate=(sample(), sample())) for _ in range(11)]
        assert judged(groups).verdict == "no_difference"


def test_one_outlier_is_left_out_from_nine_groups_on() -> None:
    steady = [0.97, 0.971, 0.972, 0.969, 0.97, 0.968, 0.9705, 0.9695]
    nine = judged(of_ratios([*steady, 3.0]))
    assert (nine.verdict, nine.interval) == ("admitted", pytest.approx((0.028, 0.031)))
    eight = judged(of_ratios([*steady[:7], 3.0]))
    assert (eight.verdict, eight.interval) == ("no_difference", pytest.approx((-2.0, 0.032)))
    assert judged(of_ratios([1.0] * 8 + [0.1])).verdict == "no_difference"


def test_the_interval_must_lie_wholly_beyond_the_threshold() -> None:
    assert judged(of_ratios([0.98] * 6 + [0.9901])).verdict == "no_difference"
    assert judged(of_ratios([0.98] * 6 + [0.9899])).verdict == "admitted"
    assert judged(of_ratios([1.02] * 6 + [1.0099])).verdict == "no_difference"
    assert judged(of_ratios([1.02] * 6 + [1.0101])).verdict == "rejected"
    assert (
        judged(of_ratios([0.98] * 7), Rule(threshold=0.03, min_groups=7, min_blocks=0)).verdict
        == "no_difference"
    )


@pytest.mark.parametrize("n", [0, 1, 6])
def test_too_few_groups_give_no_verdict(n: int) -> None:
    found = judged(of_ratios([0.5] * n))
    assert (found.verdict, found.gain, found.interval) == ("invalid", None, None)
    plural = "group" if n == 1 else "groups"
    assert found.reason == f"{n} of {n} {plural} valid, 7 are needed: take more groups."


def test_invalid_groups_dont_count_and_the_commonest_problem_is_named() -> None:
    bad = [
        Group(control=(1.0, 1.0), candidate=(0.1, 0.1), problem=p) for p in ("ECC", "throttled", "throttled")
    ]
    found = judged([*of_ratios([0.9] * 6), *bad])
    assert found.verdict == "invalid"
    assert found.reason == "6 of 9 groups valid, 7 are needed; the commonest problem, in 2 groups: throttled."
    assert judged([*of_ratios([0.9] * 7), *bad]).gain == pytest.approx(0.1)


def test_inexact_is_rejected_whatever_its_time() -> None:
    wrong = Exactness(
        cases=16,
        values=1000,
        mismatches=3,
        against="control replicated",
        first="x[0, 5]: 1.5 (0x3e00), not 2 (0x4000)",
    )
    for timing in (None, timed(of_ratios([0.5] * 9)), timed([])):
        for is_control in (False, True):
            found = judge(wrong, timing, RULE, is_control)
            assert (found.verdict, found.gain, found.interval) == ("rejected", None, None)
            assert found.reason == (
                "3 of 1000 stored values differ in bits from control replicated in 16 cases; "
                "first: x[0, 5]: 1.5 (0x3e00), not 2 (0x4000)."
            )


def test_what_was_not_compared_is_neither_exact_nor_wrong() -> None:
    unchecked = Exactness(cases=0, values=0, mismatches=0, against="control replicated")
    found = judge(unchecked, timed(of_ratios([0.5] * 9)), RULE, is_control=False)
    assert (found.verdict, found.gain) == ("invalid", None)
    assert found.reason == "Exactness wasn't checked: no case was compared."


def test_only_verified_and_the_control_itself() -> None:
    verified = judge(EXACT, None, RULE, is_control=False)
    assert (verified.verdict, verified.gain) == ("no_difference", None)
    assert verified.reason == "Only verified, not timed: exact in 16 cases against control replicated."
    control = judge(EXACT, timed(of_ratios([0.5] * 9)), RULE, is_control=True)
    assert (control.verdict, control.gain, control.interval) == ("no_difference", 0.0, None)


def test_the_reason_says_all_that_was_decided_on() -> None:
    assert judged(of_ratios([0.9] * 7)).reason == (
        "+10.00% chain time saved over the control, +10.00% to +10.00% with at least 95% confidence "
        "in 7 valid of 7 groups: wholly above +1.00%."
    )


@pytest.mark.parametrize(
    ("n", "k"),
    [(5, 0), (6, 1), (7, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (17, 5), (20, 6), (101, 41)],
)
def test_the_interval_is_of_the_right_order_statistics(n: int, k: int) -> None:
    # The ranks of the tables for the sign test at 5%, two-sided.
    values = random.Random(n).sample(range(1, n + 1), n)
    assert median_interval(values, 0.95) == ((k, n + 1 - k) if k else None)


@pytest.mark.parametrize("n", [7, 9, 11, 17, 25])
@pytest.mark.parametrize("shape", ["normal", "skewed", "bimodal"])
def test_the_interval_covers_the_median_as_often_as_it_promises(n: int, shape: str) -> None:
    source = random.Random(n)
    draw, truth = {
        "normal": (lambda: source.gauss(1, 0.1), 1.0),
        "skewed": (lambda: source.expovariate(1), math.log(2)),
        # Three in ten from another clock: the median is where the first mode reaches 5/7.
        "bimodal": (lambda: source.random() + (2 if source.random() < 0.3 else 0), 5 / 7),
    }[shape]
    runs = 2000
    covered = 0
    for _ in range(runs):
        interval = median_interval([draw() for _ in range(n)], 0.95)
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    promised = 1 - 2 * sum(math.comb(n, below) for below in range(_rank(n))) / 2**n
    assert promised >= 0.95
    assert covered / runs == pytest.approx(promised, abs=4 * math.sqrt(promised * (1 - promised) / runs))


def _rank(n: int) -> int:
    interval = median_interval(list(range(1, n + 1)), 0.95)
    assert interval is not None
    return round(interval[0])


RATIOS = st.lists(st.floats(0.5, 2), min_size=7, max_size=30)


@given(RATIOS, st.randoms())
def test_order_doesnt_matter_and_the_gain_lies_in_its_interval(
    ratios: list[float], shuffle: random.Random
) -> None:
    found = judged(of_ratios(ratios))
    assert found.gain is not None
    assert found.interval is not None
    assert found.interval[0] <= found.gain <= found.interval[1]
    shuffled = shuffle.sample(ratios, len(ratios))
    assert judged(of_ratios(shuffled)) == found


@given(RATIOS, st.floats(1e-3, 1e3))
def test_the_unit_of_time_doesnt_matter(ratios: list[float], unit: float) -> None:
    scaled = judged(Group(control=(unit, unit), candidate=(unit * r, unit * r)) for r in ratios)
    assert scaled.gain == pytest.approx(judged(of_ratios(ratios)).gain, abs=1e-9)


@given(RATIOS, st.floats(0.001, 0.3))
def test_a_faster_candidate_never_fares_worse(ratios: list[float], faster: float) -> None:
    order = {"rejected": 0, "no_difference": 1, "admitted": 2}
    before, after = judged(of_ratios(ratios)), judged(of_ratios(r * (1 - faster) for r in ratios))
    assert order[after.verdict] >= order[before.verdict]


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert median([7.0]) == 7.0


def test_a_rule_that_no_sample_can_meet_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"so few groups reach 0\.9375 at most"):
        Rule(min_groups=5, min_blocks=0)
    assert Rule(min_groups=6, min_blocks=0).min_groups == 6
    with pytest.raises(ValidationError, match="Ask for more groups or less confidence"):
        Rule(confidence=0.99, min_groups=7, min_blocks=0)
    assert Rule(confidence=0.99, min_groups=8, min_blocks=0).confidence == 0.99
    with pytest.raises(ValidationError, match="found min_blocks 1; the spread of blocks needs two at least"):
        Rule(min_blocks=1)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"control": (1.0, 1.0), "candidate": (1.0,)}, "2 samples of the control and 1 of the candidate"),
        ({"control": (1.0,), "candidate": (1.0,)}, "at least two"),
        ({"control": (1.0, 0.0), "candidate": (1.0, 1.0)}, "greater than 0"),
        ({"control": (1.0, math.inf), "candidate": (1.0, 1.0)}, "finite"),
    ],
)
def test_samples_that_no_clock_gives_are_refused(group: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Group.model_validate(group)
    assert Group(control=(), candidate=(), problem="a foreign process, 4242").problem is not None
