"""Ranks that make different calls: each ends in NaN and a record, never in a sum; ranks that agree are let alone."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import run, schedules
from kernwright.table import DISAGREEMENT

PACKET = 2


def different(group, calls, ranks=2, edits=(), **options):
    """Rank r makes the r-th list of calls, all further ranks the last one; calls are (name, kind, numel)."""
    made = group("bfloat16", ranks, edits=edits, **options)
    outputs = []
    for rank in range(ranks):
        for name, kind, numel in calls[min(rank, len(calls) - 1)]:
            outputs.append(made.call(name, kind, numel, skip=[r for r in range(ranks) if r != rank])[rank])
    return made, outputs


def silently_wrong(made, outcome, outputs) -> list:
    """Outputs that aren't right where their rank has no record, or that hold something neither right nor NaN."""
    found = []
    for output in outputs:
        stored, answer = outcome.arrays[output], made.expected[output]
        foul = (stored != answer) & (stored != np.iinfo(stored.dtype).max)
        if foul.any() or ((stored != answer).any() and not made.record(outcome.arrays, output.rank)[0]):
            found.append(output)
    return found


def swapped(name, one=("staged", 131), other=("staged", 300)):
    calls = [(name, *one), (name, *other)]
    return [calls, calls[::-1]]


SCENARIOS = {
    "sizes, one_stage": swapped("one"),
    "sizes, two_stage": swapped("two"),
    "sizes, tagged_words": swapped("tagged"),
    "sizes, narrow": swapped("narrow"),
    "kinds, one_stage": swapped("one", ("staged", 131), ("sum2", 131)),
    "kinds, two_stage": swapped("two", ("staged", 131), ("sum2", 131)),
    "kinds, tagged_words": swapped("tagged", ("staged", 131), ("sum2", 131)),
    "where it lies, one_stage": swapped("one", ("staged", 131), ("symmetric", 131)),
    "one_stage and two_stage": [[("one", "staged", 131)] * 2, [("two", "staged", 131)] * 2],
    "tagged_words and one_stage": [[("tagged", "staged", 131)] * 2, [("one", "staged", 131)] * 2],
    "words of two widths": [[("tagged", "staged", 131)] * 2, [("narrow", "staged", 131)] * 2],
    "grids of two_stage": [[("two", "staged", 131)] * 2, [("two_narrow", "staged", 131)] * 2],
    "one call more": [[("one", "staged", 131), ("one", "staged", 64)], [("one", "staged", 64)]],
}


def count(group, scenario, seeds, ranks=2, edits=()) -> int:
    """In how many schedules an output is wrong and nothing says so."""
    made, outputs = different(group, SCENARIOS[scenario], ranks, edits)
    wrong = 0
    for schedule in schedules(seeds):
        outcome = run(made.launches, schedule)
        assert outcome.fault is None
        wrong += bool(silently_wrong(made, outcome, outputs))
        assert all(made.record(outcome.arrays, rank)[0] for rank in range(ranks)), schedule
    return wrong


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_that_make_different_calls(group, scenario):
    assert count(group, scenario, 12) == 0


@pytest.mark.parametrize("scenario", ["sizes, one_stage", "sizes, two_stage", "kinds, tagged_words"])
def test_one_rank_of_four_makes_another_call(group, scenario):
    assert count(group, scenario, 4, ranks=4) == 0


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_that_make_different_calls_in_many_schedules(group, scenario):
    assert count(group, scenario, 400) == 0


@pytest.mark.parametrize(
    ("scenario", "edit"),
    [
        ("sizes, one_stage", ("const Call call = {rank, following(last), digest,",
                              "const Call call = {rank, following(last), 0u,")),
        ("sizes, two_stage", ("const Call call = {rank, following(last), digest,",
                              "const Call call = {rank, following(last), 0u,")),
        ("kinds, tagged_words", ("const Call call = {rank, following(last), digest,",
                                 "const Call call = {rank, following(last), 0u,")),
    ],
)  # fmt: skip
def test_calls_without_a_digest_would_be_mixed_up(group, scenario, edit):
    made, outputs = different(group, SCENARIOS[scenario], edits=(edit,))
    assert any(silently_wrong(made, run(made.launches, schedule), outputs) for schedule in schedules(12))


@pytest.mark.parametrize("name", ["tagged", "narrow", "one", "two"])
def test_the_record_names_the_peer_and_both_digests(group, name):
    made, _ = different(group, swapped(name), ranks=4)
    outcome = run(made.launches)
    for rank in range(4):
        failures, who, peer, what, call, seen, _ = made.record(outcome.arrays, rank)
        own = made.words(outcome.arrays, rank)[made.layout.record // 4 + 7]
        assert failures >= 1
        assert (who, call) == (rank, 1)
        assert what in (DISAGREEMENT, PACKET)  # the longer payload also lacks words
        if what == DISAGREEMENT:
            assert (rank == 0) != (peer == 0)
            assert seen not in (own, own & 0xFF, own >> 8 & 0xFF)
    kinds = {made.record(outcome.arrays, rank)[3] for rank in range(4)}
    assert DISAGREEMENT in kinds


def test_another_input_is_another_call_where_peers_read_it(group):
    """Ranks that acquired different inputs of the channel would read each other's wrong ones."""
    for name, told in (("one", True), ("two", True), ("tagged", False)):
        made = group("bfloat16", 2)
        given = made.values(131)
        a = made.call(name, "symmetric", 131, given, skip=[1], slot=0)
        b = made.call(name, "symmetric", 131, given, skip=[0], slot=1)
        outcome = run(made.launches)
        assert bool(made.record(outcome.arrays, 0)[0]) == told
        assert not silently_wrong(made, outcome, [a[0], b[1]])


# ---- tags that repeat ----

TURN = 2**24
"""Calls, all but, after which a generation comes again."""


def stale(group, name, epoch, edits=(), numel=300):
    """The next call finds its own tags, of the turn before, in all packets; one rank comes late to it."""
    made = group("bfloat16", 2, epoch=epoch, edits=edits)
    kernel = made.candidate(name)
    digest = call_digest(kernel.lowering.constants["digests"]["staged"], numel)
    generation = (epoch + 1) % TURN << 8
    for channel in made.channels:
        words = channel.array.view(np.uint32)
        slots = words[made.layout.packets // 4 : made.layout.staged // 4].reshape(-1, 2)
        slots[:, 1] = generation | digest & 0xFF
        if name == "tagged":
            slots[1::2, 1] = generation | digest >> 8 & 0xFF
    return made


def call_digest(of_kernel: str, numel: int) -> int:
    """As `mixed` of `call.cuh.j2`."""
    digest = ((int(of_kernel.rstrip("u"), 16) ^ numel) * 0x9E3779B1) % 2**32
    return digest ^ digest >> 15


@pytest.mark.parametrize("name", ["tagged", "narrow"])
def test_words_of_a_turn_ago_would_be_taken_for_new(group, name):
    made = stale(group, name, 5)
    made.call(name, "staged", 300, skip=[1])
    arrays = run(made.launches).arrays
    assert not made.record(arrays, 0)[0]  # so it is clearing alone that stands in the way


@pytest.mark.parametrize("cleared_by", ["tagged", "narrow", "one", "two"])
@pytest.mark.parametrize("name", ["tagged", "narrow"])
@pytest.mark.parametrize("parity", [0, 1])
def test_packets_are_cleared_in_time(group, name, cleared_by, parity):
    """Of either parity, by a call of any route; words of the call itself stay."""
    made = group("bfloat16", 2, epoch=2**19 - 1 + parity)
    slots = slice(made.layout.packets // 4, made.layout.staged // 4)
    for channel in made.channels:
        channel.array.view(np.uint32)[slots] = 0xABCDEF01
    made.call(cleared_by, "staged", 40)
    outcome = run(made.launches)
    assert not silently_wrong(made, outcome, list(made.expected))
    pushed = 40 if made.candidate(cleared_by).candidate.route == "tagged_words" else 0
    for rank in (0, 1):
        halves = made.words(outcome.arrays, rank)[slots].reshape(2, 2, -1)  # parity, peer
        assert (halves[1 - parity] == 0xABCDEF01).all()
        for peer in (0, 1):
            # Of 16-bit elements, each pair with a tag; nobody pushes to a rank's own packet.
            assert (halves[parity, peer, pushed:] == 0).all()
            assert (halves[parity, peer, :pushed] != 0).all()


@pytest.mark.parametrize("name", ["tagged", "narrow", "one"])
def test_packets_are_cleared_at_two_calls_alone(group, name):
    for epoch in (5, 2**19 - 2, 2**19 + 1, 2**20 - 1):
        made = group("bfloat16", 2, epoch=epoch)
        slots = slice(made.layout.packets // 4, made.layout.staged // 4)
        for channel in made.channels:
            channel.array.view(np.uint32)[slots] = 0xABCDEF01
        made.call(name, "staged", 40)
        words = made.words(run(made.launches).arrays, 0)[slots]
        assert (words != 0).all()


@pytest.mark.parametrize("epoch", [2**19 - 3, 2**24 - 4, 2**31 - 3, 2**32 - 4])
@pytest.mark.parametrize("scenario", ["sizes, one_stage", "sizes, tagged_words"])
def test_disagreements_around_every_wrap(group, scenario, epoch):
    agreed = [(name, kind, numel) for name in ("tagged", "one", "two") for kind, numel in (("staged", 40),)]
    made = group("bfloat16", 2, epoch=epoch)
    before = []
    for name, kind, numel in agreed:
        before += made.call(name, kind, numel)
    after = []
    for rank, calls in enumerate(SCENARIOS[scenario]):
        for name, kind, numel in calls:
            after.append(made.call(name, kind, numel, skip=[1 - rank])[rank])
    for schedule in schedules(6):
        outcome = run(made.launches, schedule)
        assert all((outcome.arrays[output] == made.expected[output]).all() for output in before)
        assert not silently_wrong(made, outcome, after)
        assert made.record(outcome.arrays, 0)[0]
