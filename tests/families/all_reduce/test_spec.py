"""Specs of the family `all_reduce`: what can be written down, what is refused, the channel that follows."""

from __future__ import annotations

from typing import Any

import pytest
from harness.payload_routes import route_for
from kernwright.families.all_reduce.lowering import parts
from kernwright.families.all_reduce.spec import SPEC, AllReduceSpec, AllReduceWorkload, ChannelLayout
from pydantic import ValidationError

WORKLOAD = {
    "dtype": ["float16", "float32"],
    "world_size": [2, 8],
    "widths": [3584, 7168],
    "payload_bytes": {"min": 4, "max": 1_000_000},
    "packet_bytes": 65536,
}
TAGGED = {"name": "tagged", "arch": ["sm_90"], "route": "tagged_words", "ctas": 8, "threads": 128}
ONE = {"name": "one", "arch": ["sm_90"], "route": "one_stage", "ctas": 64, "threads": 512}
TWO = {"name": "two", "arch": ["sm_90"], "route": "two_stage", "ctas": 64, "threads": 512}
THRESHOLD = {"one_stage": 65537, "two_stage": 131072}


def spec(*candidates: dict[str, Any], threshold: Any = None, **workload: Any) -> AllReduceSpec:
    return SPEC.model_validate(
        {
            "family": "all_reduce",
            "name": "test",
            "workload": WORKLOAD | workload,
            "candidate": list(candidates or (ONE, TAGGED, TWO)),
            "threshold": [THRESHOLD] if threshold is None else threshold,
        }
    )


def complaints(*candidates: dict[str, Any], threshold: Any = None, **workload: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(*candidates, threshold=threshold, **workload)
    return str(caught.value)


def test_a_workload_is_a_dtype_and_a_world_size() -> None:
    workloads = spec().workloads()
    assert [w.label() for w in workloads] == [
        "fp16-w10752-b4to1000000-tp2",
        "fp16-w10752-b4to1000000-tp8",
        "fp32-w10752-b4to1000000-tp2",
        "fp32-w10752-b4to1000000-tp8",
    ]
    assert workloads[0].fields() == {
        "dtype": "float16",
        "width": 10752,
        "widths": "3584+7168",
        "payload_bytes": (4, 1_000_000),
        "packet_bytes": 65536,
        "world_size": 2,
    }
    assert workloads[0].trees() == {}
    assert spec(widths=[7168]).workloads()[0].label() == "fp16-w7168-b4to1000000-tp2"


def test_the_channel_follows_from_the_workload() -> None:
    small, large = (ChannelLayout.of(w) for w in spec().workloads()[:2])
    assert small.capacity == 1_000_000
    assert (small.ticket, small.departures, small.record, small.flags) == (0, 256, 512, 768)
    assert small.packets - small.flags == 2 * 2 * 256 * 2 * 8  # parities, barriers, CTAs, peers
    assert large.packets - large.flags == 2 * 2 * 256 * 8 * 8
    assert small.staged - small.packets == 2 * 2 * 2 * 65536
    assert large.scratch - large.staged == 2_000_128  # two copies, to the next multiple of 256
    assert (large.inputs - large.scratch, small.inputs - small.scratch) == (125_184, 500_224)
    for layout in (small, large):
        places = (layout.record, layout.flags, layout.packets, layout.staged, layout.scratch, layout.inputs)
        assert all(place % 256 == 0 for place in (*places, layout.size))
        assert layout.size - layout.inputs >= 2 * layout.capacity
    assert ChannelLayout.of(spec(payload_bytes={"min": 4, "max": 65540}).workloads()[0]).capacity == 65552


@pytest.mark.parametrize(
    ("payload", "route"),
    [
        (4, "tagged_words"),
        (65536, "tagged_words"),
        (65537, "one_stage"),
        (131071, "one_stage"),
        (131072, "two_stage"),  # exactly met
        (1_000_000, "two_stage"),
    ],
)
def test_thresholds_split_the_payloads(payload: int, route: str) -> None:
    made = spec()
    assert route_for(made, made.workloads()[0], payload) == route


def test_an_entry_of_a_device_wins() -> None:
    h200 = {"device": "NVIDIA H200", "world_size": 2, "one_stage": 4096, "measured": True}
    made = spec(threshold=[h200, THRESHOLD])
    two, eight = made.workloads()[:2]
    assert route_for(made, two, 5000, "NVIDIA H200") == "one_stage"
    assert route_for(made, two, 900_000, "NVIDIA H200") == "one_stage"  # never two stages
    assert route_for(made, eight, 5000, "NVIDIA H200") == "tagged_words"
    assert route_for(made, two, 5000, "NVIDIA A100") == route_for(made, two, 5000) == "tagged_words"
    assert [entry.measured for entry in made.threshold] == [True, False]
    parts = made.threshold[1].parts(made.workload.payload_bytes)
    assert [(part.route, part.low, part.high) for part in parts] == [
        ("tagged_words", 4, 65536),
        ("one_stage", 65537, 131071),
        ("two_stage", 131072, 1_000_000),
    ]


def test_one_route_needs_no_threshold() -> None:
    made = spec(TWO, threshold=[])
    assert parts(made, made.workloads()[0]) == ()


def test_a_schedule_is_the_route_the_grid_and_the_word() -> None:
    made = spec(ONE, TAGGED | {"word_bytes": 8}, TWO)
    assert [candidate.schedule() for candidate in made.candidates] == [
        {"route": "one_stage", "ctas": 64, "threads": 512, "word_bytes": 16, "loads_in_flight": 8},
        {"route": "tagged_words", "ctas": 8, "threads": 128, "word_bytes": 8, "loads_in_flight": 8},
        {"route": "two_stage", "ctas": 64, "threads": 512, "word_bytes": 16, "loads_in_flight": 8},
    ]
    assert made.control.kernels() == ("symmetric", "staged", "sum2")


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"payload_bytes": {"min": 2, "max": 1_000_000}}, "2 bytes aren't whole elements of float32; take a"),
        ({"payload_bytes": {"min": 4, "max": 2**30}}, "1073741824 bytes; a channel carries 536870912 at most"),
        ({"payload_bytes": {"min": 4, "max": 40_000}}, "one row has 43008 bytes in float32, more than the largest"),
        ({"packet_bytes": 100}, "found 100; it must be a multiple of 16, and at most the largest payload, 1000000"),
        ({"packet_bytes": 1_000_016}, "found 1000016; it must be a multiple of 16"),
        ({"packet_bytes": 0}, 'route "tagged_words" needs packets in the channel, but packet_bytes is 0'),
        ({"packet_bytes": 4096}, "payloads of up to 65536 bytes would travel as tagged words"),
        ({"world_size": [2, 2]}, "a world size is listed twice"),
    ],
)  # fmt: skip
def test_workloads_that_are_refused(workload: dict[str, Any], message: str) -> None:
    assert message in complaints(**workload)


def test_widths_may_be_odd() -> None:
    assert spec(widths=[7, 16, 7]).workload.width == 30


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        ([], "the candidates have the routes tagged_words, one_stage and two_stage; state from which payload on"),
        ([{"one_stage": 4096, "two_stage": 2048}], "one_stage begins at 4096, after two_stage at 2048"),
        ([THRESHOLD, THRESHOLD], "threshold[0] already holds for float16 at world_size 2 there"),
        ([THRESHOLD | {"world_size": 2}], "no entry without a device holds for float16 at world_size 8; add one"),
        ([THRESHOLD, {"dtype": "bfloat16", "one_stage": 4}], "no workload of this file has a dtype and a world size"),
        ([{"two_stage": 131072}], "payloads of up to 131071 bytes would travel as tagged words"),
    ],
)  # fmt: skip
def test_thresholds_that_are_refused(threshold: Any, message: str) -> None:
    assert message in complaints(threshold=threshold)


def test_every_part_needs_a_candidate() -> None:
    assert (
        "payloads of 131072 to 1000000 bytes would take two_stage, but the candidates have tagged_words and one_stage"
    ) in complaints(ONE, TAGGED)
    assert (
        "every payload travels as tagged words, up to 1000000 bytes, but packet_bytes is 65536"
        in complaints(TAGGED, threshold=[])
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"threads": 100}, "found 100; a CTA has whole warps, so take a multiple of 32"),
        ({"ctas": 300}, "less than or equal to 256"),
        ({"threads": 2048}, "less than or equal to 1024"),
        ({"word_bytes": 4}, "Input should be 8 or 16"),
        ({"budget": {"reduce": {"registers": 1}}}, "its kernels are symmetric, staged and sum2"),
    ],
)
def test_options_that_are_refused(option: dict[str, Any], message: str) -> None:
    assert message in complaints(ONE | option, TAGGED, TWO)


def test_two_stages_need_a_word_a_rank() -> None:
    message = complaints(TWO, threshold=[], widths=[8], packet_bytes=0, payload_bytes={"min": 4, "max": 64})
    assert "the largest payload has 64 bytes, less than a word of 16 for each of 8 ranks (128)" in message


@pytest.mark.parametrize("world_size", [1, 3, 16])
def test_other_world_sizes_are_refused(world_size: int) -> None:
    with pytest.raises(ValidationError, match="Input should be 2, 4 or 8"):
        AllReduceWorkload.model_validate(WORKLOAD | {"world_size": world_size})
