"""Reduction trees: which are legal, which fit a length, and the TOML form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.specs import TreeSpec, default_lanes, legal_lanes

LEGAL = [1, 2, 4, 8, 16, *range(32, 1025, 32)]
trees = st.builds(TreeSpec, st.integers(1, 16), st.sampled_from(LEGAL), st.integers(1, 16))


def test_legal_lanes_are_small_powers_of_two_and_whole_warps() -> None:
    assert [lanes for lanes in range(-1, 2000) if legal_lanes(lanes)] == LEGAL


@pytest.mark.parametrize(
    ("limit", "lanes"), [(0, 1), (1, 1), (3, 2), (31, 16), (32, 32), (63, 32), (320, 320)]
)
def test_default_lanes(limit: int, lanes: int) -> None:
    assert default_lanes(limit) == lanes


@given(st.integers(1, 5000))
def test_default_lanes_is_the_largest_legal(limit: int) -> None:
    assert default_lanes(limit) == max(lanes for lanes in LEGAL if lanes <= limit)


@given(trees)
def test_toml_form_round_trips(tree: TreeSpec) -> None:
    assert TreeSpec.parse(tree.to_list()) == tree
    assert TreeSpec.parse(tree) is tree
    assert str(tree) == str(tree.to_list())


@given(trees, st.integers(1, 4096))
def test_a_tree_fits_what_segments_times_chunk_divides(tree: TreeSpec, k: int) -> None:
    cut_evenly = k % tree.segments == 0 and k // tree.segments % tree.chunk == 0
    assert (tree.check(k) is None) == cut_evenly


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "found [1, 2]; a tree is three whole numbers, [segments, lanes, chunk]."),
        ([1, 32, 2.0], "found [1, 32, 2.0]; a tree is three whole numbers, [segments, lanes, chunk]."),
        ([1, 32, True], "found [1, 32, true]; a tree is three whole numbers, [segments, lanes, chunk]."),
        ("1,32,2", 'found "1,32,2"; a tree is three whole numbers, [segments, lanes, chunk].'),
        ([0, 32, 2], "found 0 segments and a chunk of 2; a tree has at least 1 of each."),
        (
            [1, 2048, 2],
            "found 2048 lanes; allowed are powers of two up to 32 and multiples of 32 up to 1024.",
        ),
    ],
)
def test_wrong_trees_are_sentences(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        TreeSpec.parse(value)
    assert str(caught.value) == message


def test_a_tree_that_does_not_fit_says_why() -> None:
    assert TreeSpec(3, 320, 8).check(10240) == (
        "segments 3 x chunk 8 = 24 doesn't divide the length, 10240; segments x chunk must divide it."
    )
