"""Negative controls: every barrier, tag, parity and counter that is taken out of a text is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kernwright.emulator import Interleaving, find_races, fuzz

SEEDS = 25
TWO = "fp16-hc4-h32-n1-r64-tp2"
NAMES = (
    "fused",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("gates", "hidden", "fused_serial")),
)
BARRIERS = {"gates": 7, "hidden": 9, "fused": 7, "fused_serial": 6}
"""Of the kernels that only sharded routes have."""
_BARRIER = re.compile(r"__syncthreads\(\);")


def scenario(group, name, edits, small_exchanges=None, calls=4, ranks=2, **options):
    """Boundaries and a final mixer that reuse both slots."""
    small = small_exchanges.edits if small_exchanges else ()
    made = group(f"fp16-hc4-h32-n1-r64-tp{ranks}", "tiny", edits=(*edits, *small), **options)
    for call in range(calls):
        made.call(name, "final" if call == 1 else "boundary", seed=1 + call)
    return made


def found_by_fuzz(group, name, edit, seeds=SEEDS, **options) -> bool:
    made = scenario(group, name, (edit,), **options)
    assert edit[0] in made.candidate(name).sources[-1].text
    return bool(fuzz(made.launches, made.expected, seeds).problems)


def races(group, name, edit, small_exchanges) -> bool:
    made = scenario(group, name, (edit,), small_exchanges, calls=2)
    return bool(find_races(small_exchanges.launches(made.launches), Interleaving(1, "random")))


def without_barriers(text: str, name: str) -> Iterator[tuple[str, int, tuple[str, str]]]:
    """Each barrier of the kernels that only sharded routes have: kernel, position, and the edit that removes it."""
    for kernel in ("down", "down_final", "gather_down", "gather_down_final", "mix", "gather", "up_mix"):
        begin = text.find(f"hyper_connection_{kernel}_{name}(")
        if begin < 0:
            continue
        body = text[begin : text.index("\n}\n", begin)]
        for position, barrier in enumerate(_BARRIER.finditer(body)):
            yield kernel, position, (body, body[: barrier.start()] + ";" + body[barrier.end() :])


@pytest.mark.parametrize("name", NAMES)
def test_every_barrier_is_needed(group, small_exchanges, name):
    text = group(TWO, "tiny").candidate(name).sources[-1].text
    mutants = list(without_barriers(text, name))
    assert len(mutants) == BARRIERS[name]
    for kernel, position, edit in mutants:
        caught = found_by_fuzz(group, name, edit, seeds=6) or races(group, name, edit, small_exchanges)
        assert caught, (kernel, position)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "edit",
    [
        ("return word >> 16 == (call.generation & 0xffffu);", "return true;"),
        ("return word >> 16 == (call.generation & 0xffffu);", "return (word >> 16 & 1) == (call.generation & 1);"),
        ("if (peer != call.rank)", "if (peer > call.rank)"),  # not to all peers
        ("call.generation << 16 |", "call.generation - 2 << 16 |"),
        ("*Exchange::counter(call.own, cta) = call.generation + 1 - FIRST_GENERATION;", ";"),
    ],
)  # fmt: skip
def test_every_tag_and_counter_is_needed(group, name, edit):
    assert found_by_fuzz(group, name, edit, seeds=20)


ALONE = [
    ("fused", "up_mix"),
    *(
        pytest.param(*pair, marks=pytest.mark.long)
        for pair in (
            ("gates", "gather_down"),
            ("gates", "mix"),
            ("hidden", "gather"),
            ("fused_serial", "up_mix"),
        )
    ),
]


@pytest.mark.parametrize(("name", "kernel"), ALONE)
@pytest.mark.parametrize(
    "edit",
    [
        ("((call.generation & 1) * RANKS + from)", "(from)"),  # one slot
        (
            "cta) = call.generation + 1 - FIRST_GENERATION;",
            "cta) = call.generation + 2 - FIRST_GENERATION;",
        ),  # always the same slot
    ],
)
def test_two_slots_are_needed(group, name, kernel, edit):
    """By an exchange that follows itself. In a boundary two exchanges take turns, each of which lets no rank come
    two calls ahead in the other: there, one slot would do."""
    for edits, problems in ((), False), ((edit,), True):
        made = group(TWO, "tiny", edits=edits)
        for call in range(4):
            made.call(name, seed=1 + call, only=(kernel,))
        assert bool(fuzz(made.launches, made.expected, 60).problems) == problems


@pytest.mark.parametrize("name", NAMES)
def test_in_a_boundary_one_slot_would_do(group, name):
    assert not found_by_fuzz(group, name, ("((call.generation & 1) * RANKS + from)", "(from)"), seeds=20)


def test_a_tag_of_fifteen_bits_is_found_where_it_wraps(group):
    """What 32,768 generations ago was written isn't there, so only the comparison's width can show it."""
    edit = ("return word >> 16 == (call.generation & 0xffffu);", "return word >> 16 == call.generation;")
    assert not found_by_fuzz(group, "fused", edit, seeds=4, generation=0)
    assert found_by_fuzz(group, "fused", edit, seeds=4, generation=65_534)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_channel_is_all_zeros(group, name):
    """Were generations counted from 0, its slots would say that the first ones are there."""
    assert not scenario(group, name, ()).channels[0].array.any()
    edit = ("FIRST_GENERATION = 2;", "FIRST_GENERATION = 0;")
    assert found_by_fuzz(group, name, edit)


def test_counters_of_larger_grids_advance_as_well(group):
    """Else the next candidate on the channel finds generations that are over."""
    edit = ("cta < Exchange::COUNTERS; cta", "cta < gridDim.x; cta")
    for edits, problems in (((), False), ((edit,), True)):
        made = group(TWO, "tiny", edits=edits)
        for name in ("fused_serial", "fused", "fused_serial", "fused"):
            made.call(name, seed=1 + made.calls)
        assert bool(fuzz(made.launches, made.expected, 6).problems) == problems


def test_the_order_of_the_last_part_is_needed(group, small_exchanges):
    """The sums of the other parts are read behind an acquire, and were written before a release."""
    order = "__nv_atomic_fetch_add(counter, value, {}, __NV_THREAD_SCOPE_DEVICE)"
    edit = (order.format("__NV_ATOMIC_ACQ_REL"), order.format("__NV_ATOMIC_RELAXED"))
    assert races(group, "hidden", edit, small_exchanges)


def test_parts_that_all_finish_their_rows_race(group, small_exchanges):
    edit = ("fetch_add_device(arrivals + tile, 1) == PARTS - 1", "true")
    assert races(group, "hidden", edit, small_exchanges)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("hidden", ("if (last && threadIdx.x == 0) arrivals[tile] = 0;", "")),
        ("hidden", ("first_segment + segment] = ordered_sum", "segment] = ordered_sum")),
        ("gates", ("LOW_RANK + rank * RANK_BRANCHES + (i", "LOW_RANK + (i")),
        ("gates", ("rank * RANK_LOW_RANK + i :", "i :")),
        ("gates", ("(rank * RANK_BRANCHES + gate) * HIDDEN", "gate * HIDDEN")),
        ("gates", ("sigmoid(to_float(gate))", "sigmoid(to_float(gate) * 1.0009765625f)")),
        ("fused", ("sigmoid(rounded(gate))", "sigmoid(gate)")),
        ("fused", ("member % STRIDE * WIDE + member / STRIDE", "member")),
        ("fused", ("upper ? low : high", "upper ? high : low")),
        ("fused_serial", ("sigmoid(rounded(logit", "sigmoid((logit")),
        ("fused_serial", ("if (alive) push<DownExchange>(channels, call, own_row, value);", "")),
    ],
)
def test_a_changed_computation_is_found(group, name, edit):
    assert found_by_fuzz(group, name, edit, seeds=8)


@pytest.mark.parametrize(
    ("name", "kernel", "edit"),
    [
        ("fused", "up_mix", ("distance < WIDE ? distance * STRIDE : distance / WIDE", "distance")),
        ("gates", "up", ("for (int distance = WIDTH / 2; distance > 0; distance /= 2)",
                         "for (int distance = 1; distance < WIDTH; distance *= 2)")),
    ],
)  # fmt: skip
def test_another_order_of_lanes_is_found(group, name, kernel, edit):
    for edits, problems in (((), False), ((edit,), True)):
        made = group(TWO, "tiny", edits=edits)
        made.call(name, inputs="cancelling", only=(kernel,))
        assert bool(fuzz(made.launches, made.expected, 1).problems) == problems


@pytest.mark.parametrize("name", NAMES)
def test_the_scenario_itself_is_clean(group, name):
    """The control of the controls."""
    made = scenario(group, name, ())
    assert not fuzz(made.launches, made.expected, 6).problems
