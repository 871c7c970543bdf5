"""Row tilings: real shapes by hand, and the invariants of every accepted one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.specs import RowTiling, TreeSpec
from kernwright.specs.tiling import TilingError, row_tiling

DOWN = TreeSpec(4, 320, 8)
UP = TreeSpec(1, 32, 2)
LANES = [1, 2, 4, 8, 16, *range(32, 1025, 32)]


def tiling(
    rows: int,
    row_elements: int,
    tree: TreeSpec,
    *,
    ctas: int | None = None,
    threads: int | None = None,
    load_bytes: int | None = None,
    rows_per_cta: int | None = None,
    element_bytes: int = 2,
    may_stage: bool = False,
) -> RowTiling:
    return row_tiling(
        rows=rows,
        row_elements=row_elements,
        tree=tree,
        ctas=ctas,
        threads=threads,
        load_bytes=load_bytes,
        rows_per_cta=rows_per_cta,
        element_bytes=element_bytes,
        may_stage=may_stage,
        default_threads=256,
    )


def test_down_of_four_branches() -> None:
    assert tiling(324, 10240, DOWN, threads=320) == RowTiling(
        rows=324,
        threads=320,
        team=320,
        teams=1,
        lane_passes=1,
        rows_per_cta=1,
        rows_per_team=1,
        ctas=324,
        tiles=324,
        load_bytes=16,
        staged=False,
    )


def test_a_smaller_team_plays_its_lanes_in_passes() -> None:
    found = tiling(324, 10240, DOWN)
    assert (found.threads, found.team, found.lane_passes) == (160, 160, 2)
    found = tiling(324, 10240, DOWN, threads=960, rows_per_cta=6, ctas=10)
    assert (found.teams, found.rows_per_team, found.tiles, found.ctas) == (3, 2, 54, 10)


def test_up_stages_loads_wider_than_a_chunk() -> None:
    assert tiling(2560, 320, UP).load_bytes == 4
    found = tiling(2560, 320, UP, load_bytes=16, rows_per_cta=16, may_stage=True)
    assert (found.teams, found.rows_per_team, found.tiles, found.staged) == (8, 2, 160, True)


@pytest.mark.parametrize(
    ("tree", "options", "option", "message"),
    [
        (DOWN, {"threads": 100}, "threads", "threads is 100; it must be a multiple of 32, from 32 to 1024."),
        (
            DOWN,
            {"threads": 1056},
            "threads",
            "threads is 1056; it must be a multiple of 32, from 32 to 1024.",
        ),
        (
            DOWN,
            {"threads": 256},
            "threads",
            "threads is 256; it must divide the 320 lanes of the tree, or be a multiple of them.",
        ),
        (
            UP,
            {"rows_per_cta": 4},
            "rows_per_cta",
            "rows_per_cta is 4; it must be a multiple of 8, the rows that 256 threads in teams of 32 work on "
            "at the same time.",
        ),
        (UP, {"ctas": 41}, "ctas", "ctas is 41; 320 rows in tiles of 8 keep 1 to 40 CTAs busy."),
        (UP, {"load_bytes": 3}, "load_bytes", "load_bytes is 3; allowed are 2, 4, 8, 16."),
        (
            UP,
            {"load_bytes": 2, "element_bytes": 4},
            "load_bytes",
            "load_bytes is 2; allowed are 4, 8, 16.",
        ),
        (
            UP,
            {"load_bytes": 8},
            "load_bytes",
            "load_bytes is 8, but a lane's chunk is 2 elements, 4 bytes, and this kernel doesn't stage "
            "weights in shared memory; take a width that divides the chunk.",
        ),
        (
            UP,
            {"load_bytes": 16, "may_stage": True},
            "load_bytes",
            "load_bytes is 16; it must divide a row of 648 bytes.",
        ),
    ],
)
def test_options_that_do_not_fit(tree: TreeSpec, options: dict[str, int], option: str, message: str) -> None:
    with pytest.raises(TilingError) as caught:
        tiling(320, 324, tree, **options)  # type: ignore[arg-type]
    assert (caught.value.option, str(caught.value)) == (option, message)


@given(
    rows=st.integers(1, 4000),
    steps=st.integers(1, 64),
    segments=st.integers(1, 4),
    lanes=st.sampled_from(LANES),
    chunk=st.integers(1, 16),
    warps=st.none() | st.integers(1, 32),
    tiles_wide=st.none() | st.integers(1, 4),
    load_bytes=st.none() | st.sampled_from([2, 4, 8, 16]),
    may_stage=st.booleans(),
)
def test_every_row_and_lane_is_played_exactly_once(
    rows: int,
    steps: int,
    segments: int,
    lanes: int,
    chunk: int,
    warps: int | None,
    tiles_wide: int | None,
    load_bytes: int | None,
    may_stage: bool,
) -> None:
    tree = TreeSpec(segments, lanes, chunk)
    row_elements = segments * chunk * steps
    threads = None if warps is None else 32 * warps
    try:
        base = tiling(rows, row_elements, tree, threads=threads, load_bytes=load_bytes, may_stage=may_stage)
    except TilingError:
        assert threads is not None or load_bytes is not None, "the defaults fit every tree"
        return
    wide = None if tiles_wide is None else base.teams * tiles_wide
    found = tiling(
        rows,
        row_elements,
        tree,
        threads=threads,
        load_bytes=load_bytes,
        may_stage=may_stage,
        rows_per_cta=wide,
    )
    assert found.team * found.teams == found.threads <= 1024
    played = [thread + found.team * turn for turn in range(found.lane_passes) for thread in range(found.team)]
    assert sorted(played) == list(range(lanes))
    assert found.rows_per_team * found.teams == found.rows_per_cta
    assert (found.tiles - 1) * found.rows_per_cta < rows <= found.tiles * found.rows_per_cta
    assert found.ctas == found.tiles
    assert found.staged == (2 * chunk % found.load_bytes != 0)
    assert row_elements * 2 % found.load_bytes == 0
