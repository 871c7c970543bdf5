"""The channel's layout: sizes and offsets of docs/hyper_connection.md#channel, and what a new channel holds."""

from __future__ import annotations

import pytest
from kernwright.families.hyper_connection.channel_layout import HyperConnectionChannel, shards
from kernwright.families.hyper_connection.spec import SPEC


def workload(**changes):
    shape = {"dtype": "float16", "branches": 4, "hidden": 2560, "low_rank": 320, "world_size": 4}
    candidate = {"name": "control", "arch": ["sm_70"], "route": "replicated"}
    data = {"family": "hyper_connection", "name": "x", "workload": shape | changes, "candidate": [candidate]}
    (only,) = SPEC.model_validate(data).workloads()
    return only


def test_the_layout_of_four_ranks():
    channel = HyperConnectionChannel.of(workload())
    assert [(e.number, e.at, e.counters, e.words) for e in channel.exchanges] == [
        (4, 256, 1, 81),
        (5, 3072, 10, 2560),
        (6, 85248, 3, 640),
        (7, 105984, 160, 640),
    ]
    assert channel.fused.size == 160 * 4 + 2 * 4 * 640 * 4 == 21_120
    assert channel.fused.words_at == 105_984 + 640
    assert (channel.record, channel.more_counters, channel.size) == (0, 127_232, 127_872 + 128)


def test_the_fused_part_lies_behind_the_older_ones():
    for changes in ({}, {"world_size": 2}, {"world_size": 8, "branches": 8, "hidden": 2048, "low_rank": 128}):
        channel = HyperConnectionChannel.of(workload(**changes))
        ends = [32, *(exchange.at + exchange.size for exchange in channel.exchanges)]
        begins = [*(exchange.at for exchange in channel.exchanges), channel.more_counters]
        assert all(end <= begin for end, begin in zip(ends, begins, strict=True))
        assert all(begin % 256 == 0 for begin in begins)
        assert channel.more_counters + 4 * 160 <= channel.size


def test_every_packet_of_the_family_text():
    """176 B of the down packet are 81 values, padded; gates 5,120 B; outputs 1,280 B."""
    channel = HyperConnectionChannel.of(workload())
    assert (channel.down.words, channel.gates.words * 2, channel.outputs.words * 2) == (81, 5120, 1280)


def test_a_schedule_doesnt_move_it():
    """No candidate enters: what `of` takes is the workload."""
    assert HyperConnectionChannel.of(workload(dtype="bfloat16")) == HyperConnectionChannel.of(workload())


def test_what_a_communicator_is_told():
    channel = HyperConnectionChannel.of(workload())
    assert channel.offsets() == {
        "record": 0,
        "down": 256,
        "gates": 3072,
        "outputs": 85_248,
        "fused": 105_984,
        "more_counters": 127_232,
        "size": 128_000,
    }


@pytest.mark.parametrize(
    ("changes", "has_one"),
    [
        ({}, True),
        ({"world_size": 1}, False),
        ({"world_size": 8}, False),
        ({"tokens": {"min": 1, "max": 4}}, False),
    ],
)
def test_who_has_a_channel(changes, has_one):
    assert shards(workload(**changes)) == has_one
