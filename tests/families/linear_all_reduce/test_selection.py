"""Records decide, cell by cell: which schedule serves how many rows on which device, and whether any does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernwright.families.linear_all_reduce import decisions as decisions
from kernwright.families.linear_all_reduce import op as op_module
from kernwright.families.linear_all_reduce.op import LinearAllReduce, Terms
from kernwright.families.linear_all_reduce.overlap import install as install_module
from kernwright.families.linear_all_reduce.overlap.group import GroupDecision
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule
from kernwright.generated.dispatch import TABLE
from kernwright.runtime import NotExact, Unsupported, bind
from kernwright.runtime.communicator.channel import channel_plans
from kernwright.runtime.device import Device
from kernwright.table import DeviceKind, RecordLine

H200 = Device("sm_90", 132, "NVIDIA H200", 0)
KIND = DeviceKind("sm_90", 132, "NVIDIA H200")
SPEC = "linear_all_reduce_5120"


class Comm:
    """Two ranks that own every channel."""

    rank, world_size, local_ranks, layout_version = 0, 2, 1, 1
    capabilities = frozenset({"linear_all_reduce_layout_2"})
    device = torch.device("meta")  # where the tensors are
    group = None

    absent = ()

    def owns(self, channel):
        return channel not in self.absent

    def channel(self, name):
        return f"channel of {name}"


@pytest.fixture
def comm(monkeypatch):
    from kernwright.runtime.communicator import LAYOUT_VERSION

    monkeypatch.setattr(Comm, "layout_version", LAYOUT_VERSION)
    for module in (op_module, decisions):
        monkeypatch.setattr(module, "current", lambda _: H200)
    return Comm()


def record(work, name, verdict="admitted", gain=0.1, kind=KIND):
    candidate = next(c for c in work.candidates if c.name == name)
    return RecordLine(name, kind, candidate.builds["sm_90"].code, True, verdict, gain, "a record")


def dispatch(**admitted):
    """The library's table without what was measured, but candidates of K = 4096 admitted by the lower end of a cell
    (`m8192="copies_4"`).
    """
    works = []
    for work in TABLE.workloads:
        work = replace(work, records=())
        if work.spec == SPEC and work.fields["k"] == 4096:
            names = [name for cell, name in admitted.items() if cell == f"m{work.fields['m'][0]}"]
            work = replace(work, records=tuple(record(work, name) for name in names))
        works.append(work)
    return bind(replace(TABLE, workloads=tuple(works)))


def chosen(bound, m, comm, **more):
    fields = {"dtype": "bfloat16", "width": 5120, "k": 4096, "m": m, "world_size": 2, "quantisation": "none"}
    request = LinearAllReduce(bound).request_for({**fields, "nonfinite": "nan"}, "linear")
    return bound.select(request, H200, more.get("policy", "measured"), comm, more.get("exact", False)).chosen


def test_without_a_record_every_call_is_plain(comm):
    assert {chosen(dispatch(), m, comm).candidate.name for m in (1, 2048, 9000, 16384)} == {"serial"}


def test_the_crossover_is_the_first_cell_with_an_admitted_schedule(comm):
    bound = dispatch(m4096="sm_8", m8192="copies_tail")
    names = {m: chosen(bound, m, comm).candidate.name for m in (1, 2047, 2048, 4095, 4096, 8191, 8192, 16384)}
    assert names == {
        1: "serial", 2047: "serial", 2048: "serial", 4095: "serial", 4096: "sm_8", 8191: "sm_8",
        8192: "copies_tail", 16384: "copies_tail",
    }  # fmt: skip
    assert chosen(bound, 16385, comm) is None  # torch, plain
    assert chosen(bound, 9000, comm, policy="control").candidate.name == "serial"


def test_a_record_of_another_device_or_source_admits_nothing(comm):
    bound = dispatch(m8192="copies_4")
    assert chosen(bound, 8192, comm).candidate.name == "copies_4"
    fields = bound.table.workloads
    old = [replace(w, records=tuple(replace(r, code="0" * 64) for r in w.records)) for w in fields]
    assert chosen(bind(replace(bound.table, workloads=tuple(old))), 8192, comm).candidate.name == "serial"
    other = DeviceKind("sm_90", 114, "NVIDIA H100 PCIe")
    old = [replace(w, records=tuple(replace(r, device=other) for r in w.records)) for w in fields]
    assert chosen(bind(replace(bound.table, workloads=tuple(old))), 8192, comm).candidate.name == "serial"


def test_a_communicator_without_the_channel_means_plain(comm, monkeypatch):
    bound = dispatch(m8192="copies_4")
    monkeypatch.setattr(Comm, "absent", (SPEC,))
    assert chosen(bound, 8192, comm).candidate.name == "serial"


def test_a_channel_is_opened_by_default_only_for_admitted_schedules():
    """It takes hundreds of megabytes."""
    opened = {plan.name: plan for plan in channel_plans(dispatch(m8192="copies_4").table, 2)}
    assert SPEC in opened
    assert "linear_all_reduce_7168" not in opened
    for admitted in ({}, {"m8192": "nccl_4"}):  # which needs no channel
        assert SPEC not in {plan.name for plan in channel_plans(dispatch(**admitted).table, 2)}
    (named,) = channel_plans(TABLE, 2, [SPEC])
    assert named.size == named.offsets["partials"] + 16384 * 5120 * 2 + 64 * 16


def tensors(m=8192, k=4096):
    return torch.empty((m, k), dtype=torch.bfloat16, device="meta"), torch.empty(
        (5120, k), dtype=torch.bfloat16, device="meta"
    )


def test_a_decision_holds_the_schedule_of_the_table(comm, monkeypatch):
    bound = dispatch(m4096="nccl_4", m8192="copies_tail")
    op = LinearAllReduce(bound)
    made = []
    monkeypatch.setattr(LinearAllReduce, "_loaded", lambda _, choice, *__: made.append(choice) or object())
    decide = op._decider(Terms(comm))
    decide(*tensors(4096))
    decide(*tensors(8192))
    decide(*tensors(8192))
    assert len(made) == 2
    schedules = [SliceSchedule.of(choice.candidate.route, choice.candidate.options) for choice in made]
    assert schedules[0] == SliceSchedule("sliced_nccl", (1, 1, 1, 1), min_m=2048)
    layout = made[1].workload.channel
    assert schedules[1] == SliceSchedule(
        "sliced_copy_engine", (4, 4, 3, 1), align=128, min_m=2048, stages=2,
        partials_at=layout["partials"],
    )  # fmt: skip
    assert bound.stats().dispatches == {
        (made[0].workload.label, "nccl_4"): 1,
        (made[1].workload.label, "copies_tail"): 2,
    }


def test_what_was_decided_is_forgotten_where_the_choices_have_changed(comm, monkeypatch):
    bound = dispatch(m8192="copies_tail")
    op = LinearAllReduce(bound)
    made = []
    monkeypatch.setattr(LinearAllReduce, "_loaded", lambda _, choice, *__: made.append(choice) or object())
    decide = op._decider(Terms(comm))
    for _ in range(2):
        decide(*tensors(8192))
    bound.forget()
    decide(*tensors(8192))
    assert len(made) == 2


def test_a_build_that_does_not_load_is_set_aside(comm, monkeypatch):
    from kernwright.runtime import LoadError

    bound = dispatch(m8192="copies_4")

    def loaded(self, choice, device, comm):
        if choice.candidate.name == "copies_4":
            raise LoadError("no compiler here")
        return choice.candidate.name

    monkeypatch.setattr(LinearAllReduce, "_loaded", loaded)
    op = LinearAllReduce(bound)
    assert op._decide(op.request_of(*tensors(), Terms(comm)), H200, Terms(comm))[0] == "serial"
    assert "no compiler here" in [d.reason for d in op_explain(op, comm)]
    (explanation,) = bound.warm_up([H200], ["bf16-w5120-k4096-m8192to16384-tp2"], comm=comm)
    assert explanation.chosen == "serial"


def op_explain(op, comm):
    return op.explain(*tensors(), comm=comm).decisions


def test_exact_and_strict_are_refused(comm, monkeypatch):
    op = LinearAllReduce(dispatch(m8192="copies_4"))
    request = op.request_of(*tensors(), Terms(comm))
    with pytest.raises(NotExact, match="is a library's GEMM on every route"):
        op._decide(request, H200, Terms(comm, exact=True))
    monkeypatch.setattr(decisions.policies, "strict", lambda: True)
    with pytest.raises(Unsupported, match="no kernel serves linear_all_reduce bf16-w5120-k4096-m8192-tp2"):
        op._decide(request, Device(None, name="cpu"), Terms(comm))


class Layer(torch.nn.Module):
    tp_rank, tp_size, reduce_results, input_is_parallel, bias = 0, 2, True, True, None

    def __init__(self, width, k):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty((width, k), dtype=torch.bfloat16, device="meta"), False)

    def forward(self, x):
        raise NotImplementedError


def installable(monkeypatch):
    """Nothing is computed here: the other rank says the same, and no layer is checked."""
    monkeypatch.setattr(Comm, "device", torch.device("meta"))
    monkeypatch.setattr(install_module, "gather", lambda mine, comm: [mine] * comm.world_size)
    monkeypatch.setattr(install_module, "objection", lambda *_: None)
    monkeypatch.setattr(LinearAllReduce, "_loaded", lambda *_: GroupDecision(SliceSchedule("serial")))


def test_only_layers_that_some_record_speeds_up_are_routed(comm, monkeypatch):
    installable(monkeypatch)
    bound = dispatch(m8192="copies_4")
    op = LinearAllReduce(bound)
    model = torch.nn.ModuleDict(
        {"o_proj": Layer(5120, 4096), "down_proj": Layer(5120, 12800), "odd": Layer(5120, 64)}
    )
    model["odd"].tp_size = 1
    without = bound.fingerprint()
    done = op.install(model, comm)
    assert done.routed == ("o_proj",)
    assert done.skipped["down_proj"].startswith(
        "nothing is faster than the plain path here as far as records say"
    )
    assert done.skipped["odd"] == (
        "it is shared by 1 ranks; the communicator has 2, and one rank reduces nothing"
    )
    name = "linear_all_reduce_5120/bf16-w5120-k4096-m8192to16384-tp2"
    digest = next(
        c.builds["sm_90"].code[:12]
        for w in bound.table.workloads
        if w.name == name
        for c in w.candidates
        if c.name == "copies_4"
    )
    assert op.state()["installed"] == [
        {"world_size": 2, "layers": ["o_proj"], "forced": None, "decisions": {name: f"copies_4 {digest}"}}
    ]
    assert bound.fingerprint() != without
    assert str(done).splitlines()[0] == f"+ o_proj: {name}: copies_4 {digest}"
    done.uninstall()
    assert bound.fingerprint() == without
    assert (
        LinearAllReduce(dispatch()).install(torch.nn.ModuleDict({"o_proj": Layer(5120, 4096)}), comm).routed
        == ()
    )


def test_a_candidate_that_is_forced_by_name(comm, monkeypatch):
    """Where it serves the shape, rows that it doesn't serve take the plain path; else the layer is left alone."""
    installable(monkeypatch)
    op = LinearAllReduce(dispatch())
    model = torch.nn.ModuleDict({"o_proj": Layer(5120, 4096), "odd": Layer(5120, 64)})
    done = op.install(model, comm, force="copies_4")
    assert done.routed == ("o_proj",)
    assert done.skipped[
        "odd"
    ] == "no candidate 'copies_4' serves its shape on H200; the table has none".replace("H200", str(H200))
    forced = Terms(comm, force="copies_4")
    few = replace(
        op.request_of(*tensors(), forced), fields={**op.request_of(*tensors(), forced).fields, "m": 3}
    )
    with pytest.raises(ValueError, match="no candidate 'copies_4' serves"):
        op._forced(few, H200, forced)
    assert op._forced(few, H200, replace(forced, plain_elsewhere=True)).schedule.plain


def test_what_is_no_communicator_is_refused():
    with pytest.raises(TypeError, match="comm is str; it must be what communicator"):
        LinearAllReduce(bind(TABLE)).group(Terms("two ranks"))
