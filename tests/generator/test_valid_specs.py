"""Whatever validates also generates: every rule of a lowering is one of the spec's, which names file and line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernwright.generator.environment import make_environment
from kernwright.generator.sources import generate_workloads
from kernwright.specs import SpecError, SpecFile, families, find_workspace, load_spec
from kernwright.specs.family import spec_model
from pydantic import ValidationError

WORKSPACE = find_workspace()
FAMILIES = families(WORKSPACE)
ENVIRONMENT = make_environment(WORKSPACE, FAMILIES)
SHARDED = ("gate_sharded", "hidden_sharded", "fused_up_mix_gather")
LANES = (1, 2, 8, 16, 32, 64, 320)


def chosen(draw: Callable[..., Any], options: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Some of the options, each with one of its values; None leaves it out."""
    drawn = {
        name: draw(st.sampled_from((*[None] * 2 * len(values), *values))) for name, values in options.items()
    }
    return {name: value for name, value in drawn.items() if value is not None}


@st.composite
def trees(draw: st.DrawFn, length: int) -> list[int]:
    segments = draw(st.sampled_from([n for n in (1, 2, 4, 8, 256) if length % n == 0]))
    chunk = draw(st.sampled_from([n for n in (1, 2, 4, 5, 8, 16) if length // segments % n == 0]))
    return [segments, draw(st.sampled_from(LANES)), chunk]


def matrix(draw: st.DrawFn) -> dict[str, Any]:
    return chosen(
        draw,
        {
            "threads": (32, 64, 160, 256, 320, 1024),
            "rows_per_cta": (1, 2, 4, 8, 16, 24, 40, 128, 321),
            "ctas": (1, 40, 160, 321),
            "load_bytes": (2, 4, 8, 16),
        },
    )


@st.composite
def hyper_connection(draw: st.DrawFn, route: str) -> dict[str, Any]:
    branches, hidden, low_rank, tree = 4, 2560, 320, {}
    if draw(st.booleans()):
        branches, hidden, low_rank = (
            draw(st.sampled_from(pool)) for pool in ((2, 4, 8), (64, 320, 2560), (32, 320, 360))
        )
        lengths = {"norm": hidden, "down": branches * hidden, "up": low_rank}
        tree = {name: draw(trees(length)) for name, length in lengths.items() if draw(st.booleans())}
    candidate: dict[str, Any] = {"name": "it", "arch": ["sm_90"], "route": route}
    sharded = route in SHARDED
    if route == "tensor_core":
        candidate |= {"contract": "tolerance", "tolerance": {"relative_l2": 0.01}}
        candidate |= chosen(
            draw, {"row_tiles": (1, 2, 8), "segments": (1, 2, 8), "tokens_per_cta": (8, 16, 64)}
        )
    elif route == "wgmma":
        candidate |= {"arch": ["sm_90a"], "contract": "tolerance", "tolerance": {"relative_l2": 0.01}}
        candidate |= chosen(
            draw,
            {
                "segments": (1, 5, 20),
                "row_tile": (8, 56, 256),
                "groups": (1, 4),
                "stages": (3, 6, 16),
                "up_groups": (1, 3),
                "norm_lanes": (8, 32, 160),
            },
        )
    elif sharded or route == "replicated":
        up = "up" if route == "gate_sharded" else "up_mix"
        candidate |= {name: options for name in ("down", up) if (options := matrix(draw))}
    if sharded:
        candidate |= chosen(
            draw,
            {
                "packed_down": (True,),
                "down_split": (1, 2, 4),
                "fuse_down_gather": (True,),
                "fuse_combine_norm": (True,),
                "prefetch_chunks": (1, 4, 40),
            },
        )
    if route == "fused_up_mix_gather":
        candidate |= chosen(draw, {"parallel_gates": (True,)})
    low = draw(st.sampled_from((1, 1, 1, 1, 1, 2, 16)))
    workload = {
        "dtype": "float16",
        "branches": branches,
        "hidden": hidden,
        "low_rank": low_rank,
        "tree": tree,
        "tokens": {"min": low, "max": draw(st.sampled_from((*[low] * 8, 16, 17, 1024, 1025)))},
        "world_size": draw(st.sampled_from((2, 4))) if sharded else 1,
    }
    control = {"name": "control", "arch": ["sm_90"], "route": "replicated"}
    candidates = [control, candidate]
    return {"family": "hyper_connection", "name": "s", "workload": workload, "candidate": candidates}


@st.composite
def all_reduce(draw: st.DrawFn) -> dict[str, Any]:
    least, most = draw(st.sampled_from((2, 4, 8))), draw(st.sampled_from((64, 4096, 4096, 2**29, 2**29 + 16)))
    candidate = {
        "name": "it",
        "arch": ["sm_90"],
        "route": draw(st.sampled_from(("tagged_words", "one_stage", "two_stage"))),
        "ctas": draw(st.sampled_from((1, 3, 128, 256, 257))),
        "threads": draw(st.sampled_from((1, 32, 32, 96, 1024))),
        **chosen(draw, {"word_bytes": (8, 16), "loads_in_flight": (1, 3, 32, 33)}),
    }
    workload = {
        "dtype": draw(st.sampled_from((["float16"], ["float32"], ["float16", "float32"]))),
        "world_size": draw(st.sampled_from(([2], [8], [2, 4]))),
        "widths": draw(st.sampled_from(([1], [7, 8], [8, 3]))),
        "payload_bytes": {"min": least, "max": most},
        "packet_bytes": draw(st.sampled_from((16, 64, 64, 4096, 0))),
    }
    return {"family": "all_reduce", "name": "s", "workload": workload, "candidate": [candidate]}


@st.composite
def linear_all_reduce(draw: st.DrawFn) -> dict[str, Any]:
    quantised = draw(st.booleans())
    gemm = {"gemm": "scaled_mm"} if quantised else {}
    route = draw(st.sampled_from(("serial_sm", "sliced_nccl", "sliced_sm", "sliced_copy_engine")))
    other: dict[str, Any] = {"name": "it", "arch": ["sm_90"], "route": route, **gemm}
    if route != "serial_sm":
        other |= {"slices": draw(st.sampled_from((1, 3, 64, [3, 2, 1])))}
        other |= chosen(draw, {"align": (1, 128), "min_m": (1, 16, 65), "free_sms": (0, 8)})
    if route != "sliced_nccl":
        other |= {"ctas": draw(st.sampled_from((1, 8, 256)))} | chosen(draw, {"threads": (32, 1024)})
    workload = {
        "dtype": ["float16"],
        "world_size": [draw(st.sampled_from((2, 8)))],
        "width": draw(st.sampled_from((16, 24, 5120))),
        "k": draw(st.sampled_from((16, 24, [48, 4096], 32768, 32784))),
        "m": {"min": 1, "max": 64, "cells": draw(st.sampled_from(([], [16])))},
        "channel_rows": draw(st.sampled_from((0, 16, 64, 2**20))),
        "quantisation": "fp8_per_token" if quantised else "none",
    }
    control = {"name": "serial", "arch": ["sm_90"], "route": "serial", **gemm}
    return {"family": "linear_all_reduce", "name": "s", "workload": workload, "candidate": [control, other]}


ROUTES = ("replicated", "tensor_core", "wgmma", "one_kernel", "two_kernels", *SHARDED)
CASES: dict[str, tuple[st.SearchStrategy[dict[str, Any]], set[str]]] = {
    **{route: (hyper_connection(route), {route}) for route in ROUTES},
    "all_reduce": (all_reduce(), {"tagged_words", "one_stage", "two_stage"}),
    "linear_all_reduce": (
        linear_all_reduce(),
        {"serial_sm", "sliced_nccl", "sliced_sm", "sliced_copy_engine"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_valid_is_generated(name: str) -> None:
    documents, routes = CASES[name]
    family = FAMILIES.get(name, FAMILIES["hyper_connection"])
    outcomes: Counter[str] = Counter()

    # The same examples in every run, so that every route is among those that are valid.
    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(documents)
    def check(document: dict[str, Any]) -> None:
        try:
            spec = spec_model(family).model_validate(document)
        except ValidationError:
            outcomes["refused"] += 1
            return
        made = list(generate_workloads(ENVIRONMENT, SpecFile(WORKSPACE.specs / "s.toml", spec), family))
        assert len(made) == len(spec.workloads())
        outcomes[document["candidate"][-1]["route"]] += 1

    check()
    assert set(outcomes) == {"refused", *routes}, outcomes


def test_a_refusal_names_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "few.toml"
    path.write_text(
        """family = "hyper_connection"
name = "few"

[workload]
dtype = "float16"
branches = 4
hidden = 2560
low_rank = 320

[[candidate]]
name = "wide"
arch = ["sm_90"]
route = "replicated"

[candidate.down]
threads = 32
rows_per_cta = 5
"""
    )
    with pytest.raises(SpecError) as raised:
        load_spec(path)
    [problem] = raised.value.problems
    assert (problem.line, problem.key) == (17, "candidate[0].down.rows_per_cta")
    assert problem.message == (
        "candidate wide gives a thread of down 200 partial sums; 192 are allowed: lower down.rows_per_cta or raise "
        "down.threads."
    )
