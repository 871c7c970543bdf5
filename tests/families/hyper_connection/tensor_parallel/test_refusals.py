"""What can't be generated is refused with a sentence, never left out in silence."""

from __future__ import annotations

import pytest
from kernwright.families.hyper_connection.lowering import lower
from kernwright.families.hyper_connection.spec import SPEC
from pydantic import ValidationError

HIDDEN = {"route": "hidden_sharded"}
FUSED = {"route": "fused_up_mix_gather", "ctas": 160}
PARALLEL = FUSED | {"parallel_gates": True}
TREE = {"norm": [1, 320, 8], "down": [4, 320, 8], "up": [1, 32, 2]}


def lowered(options, **changes):
    shape = {"dtype": "float16", "branches": 4, "hidden": 2560, "low_rank": 320, "world_size": 4} | changes
    control = {"name": "control", "arch": ["sm_90"], "route": "replicated"}
    candidates = [control, {"name": "it", "arch": ["sm_90"]} | options]
    spec = SPEC.model_validate(
        {"family": "hyper_connection", "name": "x", "workload": shape, "candidate": candidates}
    )
    return lower(spec.workloads()[0], spec.candidates[1])


@pytest.mark.parametrize(
    ("options", "changes", "sentence"),
    [
        (HIDDEN | {"packed_down": True}, {}, "asks for packed_down, which needs a copy of the down weight"),
        (
            HIDDEN,
            {"tree": TREE | {"up": [1, 64, 5]}},
            "the up tree has 64 lanes; candidate it of route hidden_sharded is generated for 32 at most",
        ),
        (
            HIDDEN | {"up_mix": {"load_bytes": 8}},
            {"tree": TREE | {"up": [1, 32, 1]}},
            "loads 8 bytes of up_mix at once, and a lane's chunk has 2; .* whole chunks of 4 or 8 bytes alone",
        ),
        (
            HIDDEN | {"up_mix": {"load_bytes": 16}},
            {"tree": TREE | {"up": [20, 32, 2]}},
            "the lanes of the up tree have 1 chunks each; take a narrower up_mix.load_bytes",
        ),
        (
            HIDDEN | {"up_mix": {"load_bytes": 16}},
            {"low_rank": 360, "tree": TREE | {"up": [2, 8, 2]}},
            "a segment of the up tree has 360; take a width",
        ),
        (
            HIDDEN | {"fuse_combine_norm": True},
            {"tree": TREE | {"down": [2, 320, 8]}},
            r"where a branch is a segment .* norm is \[1, 320, 8\], down \[2, 320, 8\] and down.threads 320",
        ),
        (
            HIDDEN | {"fuse_combine_norm": True, "down": {"threads": 160}},
            {},
            r"and down.threads 160\.",
        ),
        (
            HIDDEN | {"fuse_combine_norm": True, "prefetch_chunks": 2, "down": {"ctas": 40}},
            {},
            "asks for prefetch_chunks on a grid that strides; leave down.ctas out",
        ),
    ],
)  # fmt: skip
def test_there_are_no_templates_for_it(options, changes, sentence):
    with pytest.raises(ValidationError, match=sentence):
        lowered(options, **changes)


@pytest.mark.parametrize(
    ("options", "changes", "sentence"),
    [
        (
            HIDDEN | {"down_split": 4},
            {"tree": TREE | {"down": [2, 320, 8]}},
            "splits the down rows into 4 parts, but the down tree has 2 segments",
        ),
        (HIDDEN | {"down": {"rows_per_cta": 321}}, {}, "gives a CTA of the down kernel 321 rows and 320 threads"),
        (HIDDEN | {"down": {"rows_per_cta": 310}}, {}, "keeps the sums of 310 rows of down in 49600 bytes"),
        (HIDDEN | {"down": {"rows_per_cta": 50}}, {}, "gives a thread of down 200 partial sums; 192 are allowed"),
        (HIDDEN | {"up_mix": {"rows_per_cta": 128}}, {}, "lets a thread of up_mix hold 320 words of weights"),
        (
            HIDDEN | {"fuse_combine_norm": True, "prefetch_chunks": 5},
            {},
            "prefetch_chunks of candidate it is 5, but a thread of down takes 4 chunks",
        ),
        (
            HIDDEN,
            {"tree": TREE | {"norm": [1, 8, 8]}},
            "the norm's tree gives a thread 320 elements to keep in registers; 128 are allowed",
        ),
        (
            HIDDEN,
            {"tree": TREE | {"down": [4, 1, 8]}},
            "gives a thread of down 10240 multiply-adds a tile; 2048 are allowed: state a tree with more lanes",
        ),
        (
            FUSED | {"ctas": 400, "threads": 32},
            {},
            "has 400 CTAs in the fused launch; a channel counts the calls of 320 at most",
        ),
        (
            PARALLEL | {"threads": 32, "rows_per_cta": 2},
            {},
            "gives a CTA 2 gates at once; with parallel_gates all 4 branches",
        ),
        (
            PARALLEL | {"threads": 32, "rows_per_cta": 160, "ctas": 2},
            {"tree": TREE | {"up": [1, 1, 2]}, "low_rank": 4},
            "gives a CTA 40 hidden coordinates and 32 threads",
        ),
    ],
)  # fmt: skip
def test_its_options_contradict_each_other_or_the_hardware(options, changes, sentence):
    with pytest.raises(ValidationError, match=sentence):
        lowered(options, **changes)


@pytest.mark.parametrize(
    ("options", "changes", "error", "sentence"),
    [
        ({"down": {"rows_per_cta": 8}}, {}, ValidationError, "lets a thread of down hold 128 words of weights while"),
        (
            {"down": {"threads": 32, "rows_per_cta": 24}},
            {"hidden": 64, "tree": {"norm": [1, 8, 8], "down": [4, 8, 8]}},
            None,
            "",
        ),
        (
            {},
            {"tree": TREE | {"norm": [1, 8, 8]}},
            ValidationError,
            "the norm's tree gives a thread 320 elements to keep in registers; 128 are allowed",
        ),
        ({}, {"tree": TREE | {"up": [1, 8, 2]}}, ValidationError, "up to 16 tokens at once, .* up tree has 8 lanes"),
        ({}, {"tree": TREE | {"up": [1, 64, 5]}}, ValidationError, "the up tree has 64 lanes"),
    ],
)  # fmt: skip
def test_several_tokens(options, changes, error, sentence):
    options, changes = (
        {"route": "replicated"} | options,
        {"tokens": {"min": 2, "max": 16}, "world_size": 1} | changes,
    )
    if error is None:
        assert lowered(options, **changes).arguments == {"tokens": "uint32"}
        return
    with pytest.raises(error, match=sentence):
        lowered(options, **changes)


def test_what_a_lowering_tells_the_runtime():
    fused = lowered(PARALLEL | {"rows_per_cta": 16})
    assert fused.arguments == {"channels": "pointers[4]", "rank_base": "uint32", "timeout_ns": "uint64"}
    assert fused.capabilities == ("hyper_connection_fused_up_mix_gather",)
    assert {name for name, kernel in fused.kernels.items() if kernel.resident} == {
        "gather_down", "gather_down_final", "up_mix"
    }  # fmt: skip
    assert fused.kernels["up_mix"].grid == (160, 1, 1)
    assert fused.steps["boundary"] == ("combine_norm", "down", "gather_down", "up_mix")
    assert fused.steps["first"] == ("norm", "down", "gather_down", "up_mix")
    assert fused.steps["final"] == ("combine_norm", "down_final", "gather_down_final", "up_mix")
    assert fused.channel["size"] == 128_000
    assert lowered({"route": "replicated"}).channel == fused.channel
    assert lowered({"route": "replicated"}, world_size=1).channel == {}
    everything = lowered(
        PARALLEL | {"rows_per_cta": 16, "fuse_combine_norm": True, "fuse_down_gather": True, "down_split": 4}
    )
    assert everything.steps["first"] == ("down_first", "gather_down", "up_mix")
    assert everything.kernels["down"].grid == (81, 1, 4)
    assert everything.state == {"arrivals": ((81,), "int32")}
    assert everything.scratch["segment_sums"] == ((81, 4), "float32")
