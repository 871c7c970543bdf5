"""Blocks are the samples: groups of one captured graph repeat one another, and add nothing to a verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from kernwright.ledger import Exactness, Group, Rule, Timing, judge
from kernwright.ledger.blocks import block_interval, block_ratios, t_quantile
from kernwright.ledger.verdict import Judgement, confidence_after, judge_blocks

EXACT = Exactness(cases=16, values=1000, mismatches=0, against="control replicated")
RULE = Rule()
ONE_BLOCK = Rule(min_groups=7, min_blocks=0)
REPEATS = 1000
SPREAD = 0.02
"""Standard deviation from block to block; within a block it is a tenth of that."""


def of_blocks(blocks: Sequence[Sequence[float]], problem: str | None = None) -> Timing:
    """Groups with these ratios, by block."""
    groups = tuple(
        Group(control=(1.0, 1.0), candidate=(ratio, ratio), block=number, problem=problem)
        for number, ratios in enumerate(blocks)
        for ratio in ratios
    )
    return Timing(scope="chain", calls=96, replays=20, groups=groups)


def drawn(source: random.Random, gain: float, blocks: int, groups: int) -> Timing:
    """A candidate that saves `gain`, measured where memory and capture move every block as a whole."""

    def block() -> list[float]:
        centre = (1 - gain) * math.exp(source.gauss(0, SPREAD))
        return [centre * math.exp(source.gauss(0, SPREAD / 10)) for _ in range(groups)]

    return of_blocks([block() for _ in range(blocks)])


def judged(timing: Timing, rule: Rule = RULE) -> Judgement:
    return judge(EXACT, timing, rule, is_control=False)


def admitted(measure: Callable[[], Judgement]) -> float:
    """How often it admits."""
    return sum(measure().verdict == "admitted" for _ in range(REPEATS)) / REPEATS


@pytest.mark.parametrize("blocks", [3, 5])
def test_groups_of_one_graph_are_no_samples(blocks: int) -> None:
    """At the threshold half of the runs of one block admit a candidate; of blocks one side of 5% does."""
    source = random.Random(17)
    before = admitted(lambda: judged(drawn(source, 0.01, 1, 11), ONE_BLOCK))
    assert before > 0.4
    now = admitted(lambda: judged(drawn(source, 0.01, blocks, 5)))
    assert now == pytest.approx(0.025, abs=4 * math.sqrt(0.025 * 0.975 / REPEATS))
    assert admitted(lambda: judged(drawn(source, 0.0, 1, 11), ONE_BLOCK)) > 0.25
    assert admitted(lambda: judged(drawn(source, 0.0, blocks, 5))) < 0.02


def test_a_real_gain_is_still_admitted() -> None:
    source = random.Random(18)
    assert admitted(lambda: judged(drawn(source, 0.1, 5, 5))) > 0.95


def test_measuring_until_it_is_admitted_doesnt_work() -> None:
    """Ten runs, stopped at the first that admits: the newest alone nearly always does, all together hardly ever."""
    source = random.Random(19)

    def until_admitted(decide: Callable[[list[Timing]], Judgement]) -> Judgement:
        runs: list[Timing] = []
        for _ in range(10):
            runs.append(drawn(source, 0.01, 3, 3))
            found = decide(runs)
            if found.verdict == "admitted":
                break
        return found

    newest = sum(
        any(judged(drawn(source, 0.01, 1, 11), ONE_BLOCK).verdict == "admitted" for _ in range(10))
        for _ in range(REPEATS)
    )
    assert newest / REPEATS > 0.9
    assert admitted(lambda: until_admitted(lambda runs: judge_blocks(runs, RULE))) <= 0.05


def test_confidence_is_spent_over_runs() -> None:
    assert confidence_after(0.95, 1) == 0.95
    assert confidence_after(0.95, 2) == pytest.approx(0.975)
    spent = sum(1 - confidence_after(0.95, runs) for runs in range(1, 10_000))
    assert spent == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize(
    ("freedom", "confidence", "t"),
    [
        # Tables of Student's t, two-sided.
        (1, 0.95, 12.7062),
        (2, 0.95, 4.3027),
        (2, 0.975, 6.2053),
        (3, 0.95, 3.1824),
        (4, 0.95, 2.7764),
        (5, 0.99, 4.0321),
        (10, 0.95, 2.2281),
        (29, 0.95, 2.0452),
        (120, 0.95, 1.9799),
    ],
)
def test_students_t(freedom: int, confidence: float, t: float) -> None:
    found = t_quantile(freedom, confidence)
    assert t - 1e-9 <= found <= t + 1.01e-4


def test_the_interval_is_over_blocks() -> None:
    ratio, low, high = block_interval([0.9, 0.9, 0.9], 0.95)
    assert (ratio, low, high) == (0.9, 0.9, 0.9)
    ratio, low, high = block_interval([math.exp(x) for x in (-0.1, 0.0, 0.1)], 0.95)
    assert ratio == pytest.approx(1.0)
    assert math.log(high) == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert low * high == pytest.approx(1.0)


def test_a_block_is_the_median_of_its_valid_groups() -> None:
    timing = of_blocks([[0.9, 0.91, 5.0], [0.8, 0.8], [0.7, 0.7, 0.7]])
    assert block_ratios(timing, 3) == [0.91, 0.7]
    assert block_ratios(timing, 2) == [0.91, 0.8, 0.7]
    bad = of_blocks([[0.9] * 3] * 3, "throttled")
    assert block_ratios(bad, 3) == []


def test_more_groups_in_a_block_narrow_nothing() -> None:
    blocks = [0.9, 0.92, 0.94]
    few, many = (judged(of_blocks([[ratio] * groups for ratio in blocks])) for groups in (3, 300))
    assert few.interval == many.interval


def test_a_verdict_needs_three_blocks_and_says_what_it_rests_on() -> None:
    assert judged(of_blocks([[0.9] * 5] * 2)).reason == (
        "2 of 2 blocks valid, 3 are needed: take more blocks."
    )
    assert judged(of_blocks([[0.9] * 5] * 2)).verdict == "invalid"
    assert judged(of_blocks([[0.9] * 3] * 3, "throttled")).reason == (
        "0 of 3 blocks valid, 3 are needed; the commonest problem, in 9 groups: throttled."
    )
    assert judged(of_blocks([[0.9] * 3] * 3)).reason == (
        "+10.00% chain time saved over the control, +10.00% to +10.00% with 95% confidence over 3 valid of 3 "
        "blocks: wholly above +1.00%."
    )
    both = judge_blocks([of_blocks([[0.9] * 3] * 3), of_blocks([[0.9] * 3] * 2)], RULE)
    assert "with 97.5% confidence over 5 valid of 5 blocks of 2 runs: wholly above" in both.reason


def test_slower_blocks_reject() -> None:
    assert judged(of_blocks([[1.05] * 3] * 4)).verdict == "rejected"
