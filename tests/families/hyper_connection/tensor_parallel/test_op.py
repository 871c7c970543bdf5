"""The op with communicators: four cases of owner and capability, and ranks that share a process."""

from __future__ import annotations

import pytest
import torch
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.generated import dispatch
from kernwright.runtime.communicator import LAYOUT_VERSION, imagined
from kernwright.runtime.device import fake

TP4 = "qwen38_flash_tp4"
SM90 = fake("sm_90", 132, "NVIDIA H200")


def fields() -> dict[str, object]:
    (work,) = (w for w in dispatch.DISPATCH.table.workloads if w.spec == TP4)
    return {name: value[0] if isinstance(value, tuple) else value for name, value in work.fields.items()}


class Owner:
    """A communicator of four ranks that owns what it is told to, and can do what it is told to."""

    rank, world_size, layout_version = 0, 4, LAYOUT_VERSION

    def __init__(self, channel: str | None, capabilities: frozenset[str]) -> None:
        self.channel, self.capabilities = channel, capabilities

    def owns(self, channel: str) -> bool:
        return channel == self.channel


def chosen(comm: object, policy: str = "verified") -> dict[str, str]:
    found = dispatch.DISPATCH.explain_request("hyper_connection", fields(), SM90, policy=policy, comm=comm)
    return {d.candidate: d.reason for d in found.decisions if d.workload == "fp16-hc4-h2560-n1-r320-tp4"}


def test_owner_and_capability() -> None:
    """The owner alone counts, and only for what it can do; the control needs neither."""
    everything = imagined(dispatch.DISPATCH.table, TP4, 4).capabilities
    one = frozenset({"hyper_connection_hidden_sharded"})
    cases = {
        "owner, capable": (Owner(TP4, everything), None, None),
        "owner, not capable": (
            Owner(TP4, one),
            "lacks capability hyper_connection_fused_up_mix_gather",
            None,
        ),
        "not owner, capable": (
            Owner("other", everything),
            f"doesn't own channel {TP4}",
            f"doesn't own channel {TP4}",
        ),
        "not owner, not capable": (Owner(None, frozenset()), "doesn't own channel", "doesn't own channel"),
    }
    for name, (comm, fused, hidden) in cases.items():
        reasons = chosen(comm)
        for candidate, reason in (("fused_up_160", fused), ("hidden", hidden)):
            expected = reason or "no exactness record for this source"
            assert expected in reasons[candidate], (name, candidate)
        assert "chosen: the control" in reasons["replicated"], name


def test_without_a_communicator_the_sharded_workload_is_not_meant() -> None:
    found = dispatch.DISPATCH.explain_request("hyper_connection", fields(), SM90)
    assert found.chosen == "reference"
    reasons = {d.reason for d in found.decisions if d.workload == "fp16-hc4-h2560-n1-r320-tp4"}
    assert reasons == {"world_size is 4, which needs a communicator; none was given"}


def test_ranks_that_share_a_process_are_refused() -> None:
    comm = EmulatedCommunicator(dispatch.DISPATCH.table, 4, specs=[TP4])
    tensors = [torch.zeros(shape, dtype=torch.float16) for shape in ((1, 10240), (1, 2560), (1, 4))]
    weights = [torch.zeros(shape, dtype=torch.float16) for shape in ((10240,), (336, 10240), (10240, 320))]
    with pytest.raises(
        ValueError, match="comm has several ranks in this process, and hyper_connection takes the tens"
    ):
        dispatch.hyper_connection(*tensors, *weights, comm=comm)


def test_tensors_on_another_device_than_the_ranks() -> None:
    """Eager, in a plan, and in an explanation; once a call of that shape is known too."""
    comm = Owner(TP4, frozenset())
    comm.device = torch.device("cpu")  # type: ignore[attr-defined]
    state = [torch.zeros(1, size, dtype=torch.float16) for size in (10240, 2560, 4)]
    op = dispatch.hyper_connection
    op(*state, None, None, None, kind="combine", comm=comm)
    other = Owner(TP4, frozenset())
    other.device = torch.device("cuda:1")  # type: ignore[attr-defined]
    for call in (op, op.plan, op.explain):
        with pytest.raises(
            ValueError, match="residual is on cpu, and the ranks of comm work on cuda:1; pass"
        ):
            call(*state, None, None, None, kind="combine", comm=other)
