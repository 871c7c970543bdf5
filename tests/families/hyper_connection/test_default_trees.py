"""Default trees: what a spec file leaves out is what a call without a spec takes, and is always legal."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernwright.families.hyper_connection.shape import trees_for
from kernwright.families.hyper_connection.workload import HyperConnectionWorkload
from kernwright.specs import TreeSpec
from kernwright.table import FORMAT, Table, legal_lanes

NO_SPECS = Table(FORMAT, Path(), ())


@pytest.mark.parametrize("branches", [2, 3, 4, 8])
@pytest.mark.parametrize("low_rank", [1, 7, 32, 320])
def test_spec_and_runtime_have_the_same(branches: int, low_rank: int) -> None:
    for hidden in (*range(1, 300), 2047, 2048, 2560, 2564, 7168, 8200, 16385):
        asked = {"branches": branches, "hidden": hidden, "low_rank": low_rank}
        workload = HyperConnectionWorkload.model_validate({"dtype": "float16", "tokens": 1, **asked})
        trees, _ = trees_for(NO_SPECS, asked, "boundary")
        assert {name: tuple(tree.to_list()) for name, tree in workload.trees().items()} == trees
        assert list(workload.problems()) == []
        lengths = {"norm": hidden, "down": branches * hidden, "up": low_rank}
        assert [TreeSpec(*trees[name]).check(length) for name, length in lengths.items()] == [None] * 3
        _, lanes, chunk = trees["norm"]
        assert chunk == (8 if hidden % 8 == 0 else 1)
        assert lanes == max(n for n in range(1, 1025) if legal_lanes(n) and n <= max(hidden // chunk, 1))


def test_a_stated_tree_wins() -> None:
    workload = HyperConnectionWorkload.model_validate(
        {"dtype": "float16", "branches": 4, "hidden": 64, "low_rank": 32, "tree": {"norm": [2, 4, 8]}}
    )
    assert workload.trees()["norm"] == TreeSpec(2, 4, 8)
    assert workload.trees()["up"] == TreeSpec(1, 32, 2)
