"""Negative controls: every wait, barrier, tag and count that is taken out of a text is found."""

from __future__ import annotations

import pytest
from kernwright.emulator import Interleaving, find_races, fuzz

SEEDS = 6

WAIT = "wait_for_previous_grid();"
COMPUTER_WAITS = (f"  {WAIT}\n  const int k", "  const int k")
RELEASES = "    if (lane == 0) store_relaxed_block(&shared.released, 1);\n"

ONE = {
    "computers don't wait for the grid before": COMPUTER_WAITS,
    "the finisher doesn't wait for the grid before": (
        f"    {WAIT}\n{RELEASES}    const Call",
        f"{RELEASES}    const Call",
    ),
    "no tag is looked at": (
        "return value.bits.y == generation && value.bits.w == generation;",
        "return true;",
    ),
    "one tag of a load is looked at": (
        "value.bits.y == generation && value.bits.w == generation",
        "value.bits.w == generation",
    ),
    "the tag doesn't advance": ("((last + 1) ^ salt)", "1u"),
    "down's weights aren't waited for": ("  wait_for_arrival(&shared.down_arrived);\n", ""),
    "up's weights aren't waited for": ("  wait_for_arrival(&shared.up_arrived);\n", ""),
    "down expects fewer bytes": (
        "announce(arrival, (rows + 1) * HIDDEN * 2);",
        "announce(arrival, rows * HIDDEN * 2);",
    ),
    "up expects fewer bytes": (
        "announce(arrival, BRANCHES * COPIES * BYTES);",
        "announce(arrival, COPIES * BYTES);",
    ),
    "the call isn't waited for": (
        "initialise_arrival(&shared.up_arrived, 2);",
        "initialise_arrival(&shared.up_arrived, 1);",
    ),
    "the call doesn't arrive": ("      arrive(&shared.up_arrived);\n", ""),
    "mbarriers aren't published": ("  }\n  __syncthreads();\n", "  }\n"),
    "squares aren't waited for": ("meet_at(1 + team, LANES);", ""),
    "the finisher doesn't wait for sums": ("    meet_at(SUMMED, down::COMPUTERS + 32);\n", ""),
    "sums aren't announced": ("  arrive_at(SUMMED, down::COMPUTERS + 32);\n", ""),
    "the low rank isn't waited for": ("  meet_at(MIXABLE, down::COMPUTERS + 32);\n", ""),
    "y isn't announced": ("      arrive_at(MIXABLE, down::COMPUTERS + 32);\n", ""),
    "a scale is of another branch": (
        "word_of(exchange, SCALES, branch)",
        "word_of(exchange, SCALES, branch ^ 1)",
    ),
    "a row is published twice": (
        "word_of(exchange, first_row + row, branch)",
        "word_of(exchange, first_row, branch)",
    ),
    "the mix reads x": ("normalised(x[i], weight[i], scale)", "x[i]"),
    "the gate isn't rounded": ("gate_of(rounded(sum[0]))", "gate_of(sum[0])"),
    "the last pass is missing": (
        "first < up::COLUMNS_PER_WARP;",
        "first < up::COLUMNS_PER_WARP - up::COLUMNS_AT_ONCE;",
    ),
}

LOOK = {
    "a look takes what it finds": ("if (missing == 0) return", "if (true) return"),
    "computers don't wait for the grid before": (f"  {WAIT}\n  const int k", "  const int k"),
    "down's weights aren't waited for": ("  wait_for_arrival(&shared.down_arrived);\n", ""),
}
"""What only `look_after_cycles` and `order = "state_first"` have."""

TWO = {
    "computers don't wait for the grid before": COMPUTER_WAITS,
    "up doesn't wait for down": (f"  {WAIT}\n  for (int row", "  for (int row"),
    "the injection doesn't wait for down": (
        f"    {WAIT}\n{RELEASES}    // The rows behind",
        f"{RELEASES}    // The rows behind",
    ),
    "weights aren't waited for": ("  wait_for_arrival(&shared.arrived);\n", ""),
    "down expects fewer bytes": (
        "announce(arrival, (rows + 1) * HIDDEN * 2);",
        "announce(arrival, rows * HIDDEN * 2);",
    ),
    "up expects fewer bytes": (
        "announce(arrival, BRANCHES * COPIES * BYTES);",
        "announce(arrival, COPIES * BYTES);",
    ),
    "mbarriers aren't published": ("  }\n  __syncthreads();\n", "  }\n"),
    "squares aren't waited for": ("meet_at(1 + team, LANES);", ""),
    "the finisher doesn't wait for sums": ("    meet_at(SUMMED, down::COMPUTERS + 32);\n", ""),
    "the low rank isn't waited for": ("  meet_at(MIXABLE, up::WARPS * 32);\n", ""),
    "y is stored by nobody": ("if (stores) store<16>(y_out + k, y);", ""),
}


def found(made) -> bool:
    """By fuzzing, else by ThreadSanitizer."""
    if fuzz(made.launches, made.expected, SEEDS).problems:
        return True
    return bool(
        find_races(made.launches, Interleaving(1, "random")) or find_races(made.launches, Interleaving())
    )


def two_calls(chain, name, edit):
    made = chain(name, spec="pair", edits=(edit,)).start()
    made.add("boundary", 1)
    made.add("boundary", 2)
    return made


def cases(mutants):
    """Those that are about waiting for another grid or CTA run by default."""
    quick = ("grid before", "no tag", "advance", "wait for down")
    return [
        pytest.param(name, marks=() if any(word in name for word in quick) else pytest.mark.long)
        for name in mutants
    ]


@pytest.mark.parametrize("mutant", cases(ONE))
def test_one_kernel(chain, mutant):
    assert found(two_calls(chain, "one", ONE[mutant]))


@pytest.mark.parametrize("mutant", LOOK)
def test_a_look_and_the_state_first(chain, mutant):
    made = chain("one_look", spec="tiny", edits=(LOOK[mutant],)).start()
    made.add("boundary", 1)
    made.add("boundary", 2)
    assert fuzz(made.launches, made.expected, SEEDS).problems


@pytest.mark.parametrize("mutant", cases(TWO))
def test_two_kernels(chain, mutant):
    assert found(two_calls(chain, "two", TWO[mutant]))


@pytest.mark.long
@pytest.mark.parametrize("name", ["one", "two"])
def test_nothing_is_found_without_a_mutant(chain, name):
    assert not found(two_calls(chain, name, ("// ---- workload ----", "")))
