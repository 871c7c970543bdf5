"""The owner rule: only the communicator that owns a channel may run kernels that talk over it."""

from dataclasses import dataclass
from types import ModuleType

import pytest
from kernwright.runtime import Communicator
from kernwright.runtime.communicator import LAYOUT_VERSION
from kernwright.runtime.device import fake
from kernwright.runtime.selection import select

FUSED = "fused_up_mix_gather"


@dataclass(frozen=True)
class FakeCommunicator:
    channels: frozenset[str]
    capabilities: frozenset[str]
    rank: int = 0
    world_size: int = 4
    layout_version: int = LAYOUT_VERSION

    def owns(self, channel: str) -> bool:
        return channel in self.channels


def outcome(make: ModuleType, comm: Communicator | None) -> tuple[str | None, str]:
    work = make.workload(make.candidate("control", capabilities=(FUSED,)), world_size=4, spec="small_tp4")
    dispatch = make.dispatch_of(work)
    fields = {**work.fields, "tokens": 1}
    request = dispatch._operator("hyper_connection").request_for(fields, "boundary")
    selection = select(dispatch.table, request, fake("sm_90"), "measured", comm)
    return selection.chosen and selection.chosen.candidate.name, selection.decisions[0].reason


@pytest.mark.parametrize(
    ("channels", "capabilities", "reason"),
    [
        ({"small_tp4"}, {FUSED}, None),
        (
            {"small_tp4"},
            {"gate_sharded", "all_reduce"},
            "the communicator that owns channel small_tp4 lacks capability fused_up_mix_gather; "
            "it has all_reduce, gate_sharded",
        ),
        (
            {"draft_tp4"},
            {FUSED},
            "the communicator doesn't own channel small_tp4; only the one that made it may use it",
        ),
        (
            set(),
            set(),
            "the communicator doesn't own channel small_tp4; only the one that made it may use it",
        ),
    ],
)
def test_owner_and_capability(
    make: ModuleType, channels: set[str], capabilities: set[str], reason: str | None
) -> None:
    chosen, found = outcome(make, FakeCommunicator(frozenset(channels), frozenset(capabilities)))
    if reason is None:
        assert chosen == "control"
    else:
        assert (chosen, found) == (None, reason)


def test_an_owner_without_any_capability(make: ModuleType) -> None:
    _, reason = outcome(make, FakeCommunicator(frozenset({"small_tp4"}), frozenset()))
    assert reason.endswith("lacks capability fused_up_mix_gather; it has none")


def test_another_layout_of_the_channel(make: ModuleType) -> None:
    comm = FakeCommunicator(frozenset({"small_tp4"}), frozenset({FUSED}), layout_version=7)
    assert outcome(make, comm) == (
        None,
        "the communicator that owns channel small_tp4 has layout version 7; "
        "these kernels are generated for version 1",
    )


def test_no_communicator(make: ModuleType) -> None:
    assert outcome(make, None) == (None, "world_size is 4, which needs a communicator; none was given")


def test_another_world_size(make: ModuleType) -> None:
    comm = FakeCommunicator(frozenset({"small_tp4"}), frozenset({FUSED}), world_size=2)
    arguments = make.tensors()
    dispatch = make.dispatch_of(make.workload(make.candidate("control"), world_size=4))
    explanation = dispatch.explain("hyper_connection", *arguments, comm=comm)
    assert explanation.decisions[0].reason == "world_size is 2; this workload has 4"


def test_a_candidate_that_exchanges_nothing_asks_for_no_owner(make: ModuleType) -> None:
    comm = FakeCommunicator(frozenset(), frozenset())
    work = make.workload(make.candidate("control"), world_size=4)
    dispatch = make.dispatch_of(work)
    request = dispatch._operator("hyper_connection").request_for({**work.fields, "tokens": 1}, "boundary")
    selection = select(dispatch.table, request, fake("sm_90"), "measured", comm)
    assert selection.chosen is not None
