"""What the error record of a channel says, by the names that the dispatch table has for waits."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from kernwright.runtime.communicator.channel import Channel, ChannelPlan, channel_plans
from kernwright.runtime.errors import Overlap, PeerTimeout


def failed(waited_for: int, waits: dict[int, str]) -> Channel:
    memory = torch.zeros(1, 64, dtype=torch.uint8)
    memory[0, :32] = torch.tensor([1, 0, 2, waited_for, 7, 5, 1, 0], dtype=torch.int32).view(torch.uint8)
    plan = ChannelPlan("mini", {"record": 0, "size": 64}, frozenset(), waits)
    return Channel(plan, memory, (0,), 0)


@pytest.mark.parametrize(
    ("waited_for", "said"),
    [
        (4, "the gates of call 7"),
        (8, "wait 8, which the dispatch table doesn't name, of call 7"),
        (-1, "wait -1, which the dispatch table doesn't name, of call 7"),
    ],
)
def test_a_wait_is_named_and_an_unknown_number_is_a_sentence_too(waited_for: int, said: str) -> None:
    with pytest.raises(PeerTimeout) as caught:
        failed(waited_for, {4: "the gates"}).check()
    assert str(caught.value) == (
        f"rank 0 waited in vain for rank 2 on channel mini: {said} (last seen 5, CTA 1); see what that rank does, "
        "then call reset() on all ranks"
    )


def test_an_overlap_is_no_wait() -> None:
    with pytest.raises(Overlap):
        failed(3, {}).check()


def test_a_record_that_is_being_written_is_left_to_the_next_look() -> None:
    """Of an overlap it would say else that a peer didn't come."""
    channel = failed(3, {})
    begun = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int32).view(torch.uint8)
    written = channel.memory.clone()
    channel.memory[0, :32] = begun
    channel.check()
    channel.memory.copy_(written)
    with pytest.raises(Overlap):
        channel.check()


def test_a_channel_has_the_waits_of_its_family(make: ModuleType) -> None:
    work = make.workload(make.candidate("control"), world_size=4)
    table = make.table(replace(work, channel={"record": 0, "size": 64}))
    (plan,) = channel_plans(table, 4)
    assert plan.waits == {4: "the gates"}
