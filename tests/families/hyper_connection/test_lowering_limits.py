"""What a schedule may ask for: grids that follow from it, and sentences about what can't be built."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kernwright.families.hyper_connection.lowering import lower
from kernwright.families.hyper_connection.spec import HyperConnectionSpec
from kernwright.specs import TreeSpec
from kernwright.specs.tree import TreeShape
from pydantic import ValidationError


def candidate_of(options: dict[str, Any], **workload: Any) -> tuple[Any, Any]:
    fields = {"dtype": "float16", "branches": 4, "hidden": 2560, "low_rank": 320} | workload
    candidate = {"name": "wide", "arch": ["sm_90"], "route": "replicated"} | options
    document = {"family": "hyper_connection", "name": "s", "workload": fields, "candidate": [candidate]}
    spec = HyperConnectionSpec.model_validate(document)
    return spec.workloads()[0], spec.candidates[0]


def assert_said(raised: pytest.ExceptionInfo[ValidationError], sentence: str) -> None:
    assert f"{sentence}." in str(raised.value)


def test_rows_without_a_thread_to_finish_them_are_refused() -> None:
    with pytest.raises(ValidationError) as raised:
        candidate_of({"down": {"threads": 32, "rows_per_cta": 33}})
    assert_said(
        raised,
        "candidate wide gives a CTA of the down kernel 33 rows and 32 threads, but a thread finishes one row at "
        "most: lower down.rows_per_cta or raise down.threads",
    )
    few_sums = {"branches": 2, "hidden": 64, "tree": {"norm": [1, 8, 8], "down": [1, 64, 2]}}
    fitting = candidate_of({"down": {"threads": 32, "rows_per_cta": 32}}, **few_sums)
    assert lower(*fitting).kernels["down"].grid == (11, 1, 1)


def test_more_sums_than_registers_are_refused() -> None:
    with pytest.raises(ValidationError) as raised:
        lower(*candidate_of({"down": {"threads": 32, "rows_per_cta": 5}}))
    assert_said(
        raised,
        "candidate wide gives a thread of down 200 partial sums; 192 are allowed: lower down.rows_per_cta or raise "
        "down.threads",
    )
    lower(*candidate_of({"down": {"threads": 32, "rows_per_cta": 4}}))


def test_an_external_control_is_not_generated() -> None:
    external = {"name": "theirs", "arch": ["sm_90"], "route": "external", "callable": "team.kernels:boundary"}
    with pytest.raises(ValidationError, match='the control "theirs" is external; dispatch falls back'):
        HyperConnectionSpec.model_validate(
            {
                "family": "hyper_connection",
                "name": "s",
                "workload": {"dtype": "float16", "branches": 4, "hidden": 2560, "low_rank": 320},
                "candidate": [external, {"name": "ours", "arch": ["sm_90"], "route": "replicated"}],
            }
        )


def test_shared_memory_is_48_kib_at_most() -> None:
    fits, too_many = ({"up_mix": {"rows_per_cta": rows, "load_bytes": 16}} for rows in (16, 24))
    assert lower(*candidate_of(fits)).kernels["up_mix"].grid == (160, 1, 1)
    with pytest.raises(ValidationError) as raised:
        lower(*candidate_of(too_many))
    assert_said(
        raised,
        "candidate wide keeps 24 hidden coordinates x 4 branches of up_mix in 61440 bytes of shared memory; 49152 "
        "are allowed: lower up_mix.rows_per_cta or up_mix.load_bytes",
    )
    # 18 rows are 46,080 bytes; the sums of two groups a gate, 4 bytes each, don't fit beside 19.
    tree = {"tree": {"up": [1, 64, 1]}}
    assert lower(*candidate_of({"up_mix": {"threads": 32, "rows_per_cta": 18, "load_bytes": 16}}, **tree))
    with pytest.raises(ValidationError, match="in 49248 bytes"):
        lower(*candidate_of({"up_mix": {"threads": 32, "rows_per_cta": 19, "load_bytes": 16}}, **tree))


def test_a_grid_for_down_shrinks_for_the_final_mixer() -> None:
    lowering = lower(*candidate_of({"down": {"ctas": 322}}))
    assert (lowering.kernels["down"].grid[0], lowering.kernels["down_final"].grid[0]) == (322, 320)


def test_steps_use_the_kernels_and_buffers_that_there_are() -> None:
    lowering = lower(*candidate_of({}))
    assert set(lowering.steps) == {"boundary", "first", "combine", "final"}
    assert {kernel for steps in lowering.steps.values() for kernel in steps} == set(lowering.kernels)
    inputs = {"residual", "block", "injection", "norm_weight", "down_weight", "up_weight"}
    outputs = {"x", "block_input", "injection_out"}
    for steps in lowering.steps.values():
        written: set[str] = set()
        for kernel in steps:
            for name in lowering.kernels[kernel].args:
                is_output = name in outputs or name in lowering.scratch
                assert is_output or name in inputs
                written |= {name} if is_output else set()
        assert written
    assert lowering.scratch["y"] == ((1, 10240), "float16")
    assert lowering.scratch["lora"] == ((1, 320), "float16")


def test_a_sharded_route_takes_one_token() -> None:
    with pytest.raises(ValidationError) as raised:
        lower(*candidate_of({"route": "hidden_sharded"}, world_size=4, tokens={"min": 1, "max": 4}))
    assert_said(
        raised,
        "candidate wide has route hidden_sharded, and tokens is 1 to 4; this version has templates of that route for "
        "tokens = 1 alone",
    )


def test_more_than_16_tokens_have_ctas_of_their_own() -> None:
    few = lower(*candidate_of({}, tokens={"min": 1, "max": 16}))
    assert few.arguments == {"tokens": "uint32"}
    assert "token_blocks" not in few.constants
    many = lower(*candidate_of({}, tokens={"min": 2, "max": 33}))
    assert [few.kernels["down"].grid, many.kernels["down"].grid] == [
        (few.kernels["down"].grid[0], 1, 1),
        (few.kernels["down"].grid[0], 3, 1),
    ]
    assert (many.constants["most_tokens"], many.kernels["up_mix"].grid[1]) == (16, 3)
    assert many.scratch["y"][0][0] == 33
    with pytest.raises(
        ValidationError, match=r"tokens is 2 to 1025; this version has templates for 1024 at most"
    ):
        lower(*candidate_of({}, tokens={"min": 2, "max": 1025}))


def test_a_tree_applied_to_a_length() -> None:
    assert TreeShape.of(TreeSpec(4, 320, 8), 10240) == TreeShape(
        segments=4,
        lanes=320,
        chunk=8,
        group=32,
        groups=10,
        segment=2560,
        chunks=320,
        steps=1,
        idle_lanes=False,
        load_bytes=16,
    )
    odd = TreeShape.of(TreeSpec(3, 16, 6), 3 * 6 * 20)
    assert (odd.group, odd.groups, odd.chunks, odd.steps, odd.idle_lanes, odd.load_bytes) == (
        16,
        1,
        20,
        2,
        True,
        4,
    )


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"norm": [1, 1, 8]},
            "the norm's tree gives a thread 2560 elements to keep in registers; 128 are allowed",
        ),
        ({"down": [4, 1, 8]}, "gives a thread of down 10240 multiply-adds a tile; 2048 are allowed"),
        ({"down": [256, 8, 8]}, "gives a thread of down 256 partial sums of a single row; 192 are allowed"),
    ],
)
def test_trees_that_leave_too_much_to_a_thread_are_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        lower(*candidate_of({}, tree=tree))
