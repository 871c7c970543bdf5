"""Every route and option of docs/spec_files.md can be written down and is checked."""

from __future__ import annotations

from typing import Any

import pytest
from kernwright.families.hyper_connection.spec import SPEC, HyperConnectionWorkload, MatrixRoute
from kernwright.specs import CandidateSpec, External, RowTiling
from pydantic import ValidationError

CONTROL = {"name": "replicated", "arch": ["sm_70", "sm_90"], "route": "replicated"}


def spec(*candidates: dict[str, Any], **workload: Any) -> Any:
    shape = {"dtype": "float16", "branches": 4, "hidden": 2560, "low_rank": 320, "world_size": 4}
    return SPEC.model_validate(
        {
            "family": "hyper_connection",
            "name": "test",
            "workload": shape | workload,
            "candidate": [CONTROL, *({"name": "other", "arch": ["sm_70"]} | c for c in candidates)],
        }
    )


def tilings(candidate: CandidateSpec, workload: Any) -> dict[str, RowTiling]:
    assert isinstance(candidate, MatrixRoute)
    assert isinstance(workload, HyperConnectionWorkload)
    return {kernel: candidate.tiling(workload, kernel) for kernel in candidate.rows(workload)}


@pytest.mark.parametrize(
    "options",
    [
        {"route": "fused_up_mix_gather", "ctas": 80, "parallel_gates": True},
        {"route": "fused_up_mix_gather", "ctas": 320, "parallel_gates": True},
        {"route": "hidden_sharded", "load_bytes": 2},
        {"route": "hidden_sharded", "fuse_combine_norm": True, "prefetch_chunks": 4},
        {"route": "hidden_sharded", "down_split": 4},
        {"route": "fused_up_mix_gather", "fuse_down_gather": True},
        {"route": "gate_sharded", "l1_bypass": True},
        {"route": "hidden_sharded", "up_mix": {"rows_per_cta": 16}},
        {"route": "gate_sharded", "up": {"rows_per_cta": 16}},
        {"route": "replicated", "early_norm_weight": True, "l1_bypass": True},
    ],
)
def test_screened_variants_are_expressible(options: dict[str, Any]) -> None:
    candidate = spec(options).candidates[1]
    for option, value in options.items():
        if isinstance(value, dict):
            assert candidate.schedule()[option] == candidate.schedule()[option] | value
        elif option in ("ctas", "load_bytes"):
            assert candidate.schedule()["up_mix"][option] == value
        else:
            assert candidate.schedule()[option] == value


def test_the_fused_launch_of_the_public_work() -> None:
    found = spec(
        {
            "route": "fused_up_mix_gather",
            "ctas": 160,
            "load_bytes": 16,
            "parallel_gates": True,
            "early_norm_weight": True,
            "budget": {"up_mix": {"registers": 32, "shared_bytes": 256, "spill_bytes": 0, "stack_bytes": 0}},
            "expect": {"up_mix": {"LDG.E.128": 4}},
        }
    )
    candidate = found.candidates[1]
    tiling = tilings(candidate, found.workloads()[0])
    # 640 hidden coordinates a rank, 4 gates each, 8 gates in flight a CTA; flat options leave `down` alone.
    assert (tiling["up_mix"].rows, tiling["up_mix"].tiles, tiling["up_mix"].ctas) == (2560, 320, 160)
    assert (tiling["down"].rows, tiling["down"].ctas, tiling["down_final"].rows) == (81, 81, 80)
    assert candidate.expect_for("up_mix") == {"LDG.E.128": 4}
    assert candidate.budget_for("down") == {}


def test_ranks_share_rows_as_each_route_says() -> None:
    routes = ("gate_sharded", "hidden_sharded", "fused_up_mix_gather")
    rows = {}
    for route in routes:
        found = spec({"route": route})
        rows[route] = {k: t.rows for k, t in tilings(found.candidates[1], found.workloads()[0]).items()}
    assert rows == {
        "gate_sharded": {"down": 81, "down_final": 80, "up": 2560},
        "hidden_sharded": {"down": 81, "down_final": 80, "up_mix": 640},
        "fused_up_mix_gather": {"down": 81, "down_final": 80, "up_mix": 640},
    }


@pytest.mark.parametrize(
    ("branches", "world_size", "fits"), [(4, 2, True), (4, 4, True), (4, 8, False), (8, 8, True)]
)
def test_sharded_routes_need_a_world_size_that_divides_the_branches(
    branches: int, world_size: int, fits: bool
) -> None:
    if fits:
        assert spec({"route": "hidden_sharded"}, branches=branches, world_size=world_size).candidates[1]
    else:
        with pytest.raises(ValidationError, match=r"8 doesn't divide branches \(4\)"):
            spec({"route": "hidden_sharded"}, branches=branches, world_size=world_size)


def test_sm_90_of_the_control_covers_sm_90a() -> None:
    assert spec({"route": "replicated", "arch": ["sm_90a"]}).candidates[1].arch == ("sm_90a",)


def test_an_own_kernel_can_be_the_control() -> None:
    own = {
        "route": "external",
        "source": "cuda/boundary.cu",
        "symbol": "boundary",
        "grid": [160, 4],
        "block": 256,
    }
    candidate = spec(own | {"budget": {"boundary": {"registers": 32}}}).candidates[1]
    assert isinstance(candidate, External)
    assert (candidate.grid, candidate.block) == ((160, 4, 1), (256, 1, 1))
    assert candidate.kernels() == ("boundary",)
    assert candidate.schedule() == {
        "route": "external",
        "source": "cuda/boundary.cu",
        "symbol": "boundary",
        "grid": [160, 4, 1],
        "block": [256, 1, 1],
        "shared_bytes": 0,
    }
    python = spec({"route": "external", "callable": "my_team.kernels:boundary"}).candidates[1]
    assert python.schedule() == {"route": "external", "callable": "my_team.kernels:boundary"}
    assert python.kernels() == ()


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec().workload.hidden = 1
