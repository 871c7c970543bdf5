"""Bound tables: explain, statistics, strict mode, builds that don't load, plans by name, warm-up."""

import json
import logging
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.runtime import (
    Device,
    Dispatch,
    FormatMismatch,
    LoadError,
    NotExact,
    Unsupported,
    bind,
    dispatch,
    plan,
)
from kernwright.runtime import op as op_base

GPU = Device("sm_90", 132, "NVIDIA H200", 0)


@pytest.fixture
def gpu(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pretend that CPU tensors lie on an H200; kernels write down their launches."""
    launches: list[Any] = []
    monkeypatch.setattr(op_base, "current", lambda _: GPU)
    monkeypatch.setattr(dispatch, "load", lambda *_: make.FakeModule(launches))
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: 0)
    monkeypatch.setattr(plan, "device_query", lambda: None)
    return launches


def op_of(bound: Dispatch) -> Any:
    return bound.operators["hyper_connection"]


def test_a_table_of_another_format_is_a_sentence(make: ModuleType) -> None:
    with pytest.raises(FormatMismatch) as error:
        bind(replace(make.table(), format=99))
    assert str(error.value) == (
        "the dispatch module has format version 99; this runtime reads version 5: run `kernwright generate` "
        "with the installed version, or install the version that generated it"
    )


def test_explain_as_json(make: ModuleType) -> None:
    work = make.workload(make.candidate("control"), make.candidate("fast"), records=(make.record("fast"),))
    bound = make.dispatch_of(work)
    explanation = bound.explain_request("hyper_connection", dict(work.fields), "sm_86")
    assert json.loads(json.dumps(explanation.to_json())) == {
        "workload": "fp16-hc4-h64-n1-r32-tp1",
        "arch": "sm_86",
        "chosen": "control",
        "contract": "exact",
        "decisions": [
            {
                "workload": "fp16-hc4-h64-n1-r32-tp1",
                "candidate": "control",
                "accepted": True,
                "reason": "chosen: the control, unverified: no exactness record on sm_86 for this source",
            },
            {
                "workload": "fp16-hc4-h64-n1-r32-tp1",
                "candidate": "fast",
                "accepted": False,
                "reason": "no record on sm_86 for this source; "
                "policy measured dispatches admitted candidates only",
            },
        ],
    }


def test_explain_of_a_call_reads_well(make: ModuleType) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    assert str(bound.explain("hyper_connection", *make.tensors(tokens=33))) == (
        "fp16-hc4-h64-n33-r32-tp1, kind boundary, on cpu, policy measured: reference (contract tolerance)\n"
        "  - fp16-hc4-h64-n1-r32-tp1 control: tokens is 33; this candidate serves 1\n"
        "  = reference: torch with library GEMMs, because 33 tokens are more than 16"
    )
    three = bound.explain("hyper_connection", *make.tensors(tokens=3))
    assert three.contract == "exact"
    assert three.reference == "torch, tree-exact, trees of workload fp16-hc4-h64-n1-r32-tp1"


def test_explain_of_something_unknown(make: ModuleType) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    with pytest.raises(ValueError, match="module has no op 'all_reduce'; it has hyper_connection"):
        bound.explain("all_reduce")
    with pytest.raises(ValueError, match=r"kind is 'finale'; allowed are .*; did you mean final\?"):
        bound.explain_request("hyper_connection", dict(make.workload().fields), "sm_70", kind="finale")
    with pytest.raises(ValueError, match="tokens is an interval, 1 to 16; name one number of it"):
        bound.explain_request("hyper_connection", dict(make.workload(tokens=(1, 16)).fields), "sm_70")
    with pytest.raises(ValueError, match="policy is 'fast'; allowed are measured"):
        bound.explain_request("hyper_connection", dict(make.workload().fields), "sm_70", policy="fast")


def test_dispatches_and_fallbacks_are_counted_and_the_first_of_a_kind_is_logged(
    make: ModuleType, gpu: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    op = op_of(bound)
    with caplog.at_level(logging.WARNING, "kernwright"):
        for tokens in (1, 1, 3, 4, 3):
            op(*make.tensors(tokens=tokens))
        op(*make.tensors(dtype=torch.bfloat16))
        op(*make.tensors(), policy="reference")
    stats = bound.stats()
    assert stats.dispatches == {("fp16-hc4-h64-n1-r32-tp1", "control"): 2}
    assert stats.fallbacks == {"tokens": 3, "dtype": 1}
    assert stats.reference == 1
    assert [record.getMessage() for record in caplog.records] == [
        "hyper_connection fp16-hc4-h64-n3-r32-tp1 (kind boundary) falls back to the torch reference, "
        "contract exact; control of fp16-hc4-h64-n1-r32-tp1: tokens is 3; this candidate serves 1",
        "hyper_connection bf16-hc4-h64-n1-r32-tp1 (kind boundary) falls back to the torch reference, "
        "contract exact; control of fp16-hc4-h64-n1-r32-tp1: dtype is bfloat16; this workload is float16",
    ]
    assert len(gpu) == 2 * 3


def test_the_second_call_decides_nothing(
    make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    op_of(bound)(*make.tensors())
    monkeypatch.setattr(bound, "resolve", None)
    op_of(bound)(*make.tensors(seed=1))
    assert len(gpu) == 6
    with pytest.raises(TypeError):
        op_of(bound)(*make.tensors(tokens=2))


def test_a_tensor_that_lies_otherwise_in_memory_is_decided_anew(make: ModuleType, gpu: list[Any]) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    tensors = make.tensors()
    op_of(bound)(*tensors)
    assert len(gpu) == 3
    storage = torch.zeros(1 + tensors[0].numel(), dtype=torch.float16)
    tensors[0] = storage[1:].view(1, -1).copy_(tensors[0])  # contiguous, two bytes off
    op_of(bound)(*tensors)
    assert len(gpu) == 3
    assert bound.stats().fallbacks == {"layout": 1}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_that_only_claims_to_be_here_reaches_no_plan(make: ModuleType, gpu: list[Any]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Wrapped(torch.Tensor):
        pass

    op = op_of(make.dispatch_of(make.workload(make.candidate("control"))))
    tensors = make.tensors()
    op(*tensors)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
    fake_out = tuple(fakes[:3])
    fakes[1] = torch.nn.Parameter(fakes[1], requires_grad=False)
    for position in range(6):
        wrapped = tensors[position].as_subclass(Wrapped)
        with pytest.raises(TypeError, match=r"is a Wrapped of layout .*; only a strided"):
            op(*tensors[:position], wrapped, *tensors[position + 1 :])
        with pytest.raises((AssertionError, RuntimeError), match=r"[Ff]ake"):  # torch's own sentence
            op(*tensors[:position], fakes[position], *tensors[position + 1 :])
    traced = op(*fakes)
    assert [tuple(tensor.shape) for tensor in traced] == [(1, 256), (1, 64), (1, 4)]
    assert {type(tensor) for tensor in traced} == {type(fakes[0])}
    out = tuple(torch.empty_like(tensor) for tensor in tensors[:3])
    op(*tensors, out=out)
    with pytest.raises(TypeError, match="out's x is a FakeTensor"):
        op(*tensors, out=fake_out)
    with pytest.raises(TypeError, match=r"residual is a Tensor of layout torch\.sparse_coo; only a strided"):
        op(tensors[0].to_sparse(), *tensors[1:])
    with pytest.raises(ValueError, match="residual is on meta, where tensors have no values"):
        op(*[tensor.to("meta") for tensor in tensors])
    assert len(gpu) == 6
    op(tensors[0], *[torch.nn.Parameter(tensor, requires_grad=False) for tensor in tensors[1:]])
    assert len(gpu) == 9


def test_parameters_serve_as_the_tensors_that_they_are(make: ModuleType, gpu: list[Any]) -> None:
    class ShardedParameter(torch.nn.Parameter):  # as engines derive theirs
        pass

    op = op_of(make.dispatch_of(make.workload(make.candidate("control"))))
    tensors = make.tensors()
    weights = [torch.nn.Parameter(tensors[3]), *(ShardedParameter(tensor) for tensor in tensors[4:])]
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(2):  # decided, then known
            with mode():
                made = op(*tensors[:3], *weights)
            assert [tensor.requires_grad for tensor in made] == [False] * 3
            assert {type(tensor) for tensor in made} == {torch.Tensor}
    assert len(gpu) == 12
    for _ in range(2):
        with pytest.raises(RuntimeError, match="norm_weight requires grad, and hyper_connection has no grad"):
            op(*tensors[:3], *weights)
    assert len(gpu) == 12


def test_policies_reach_the_call(make: ModuleType, gpu: list[Any]) -> None:
    work = make.workload(make.candidate("control"), make.candidate("fast"), records=(make.record("fast"),))
    bound = make.dispatch_of(work)
    op = op_of(bound)
    op(*make.tensors())
    op(*make.tensors(), policy="control")
    with bound.policy("control"):
        op(*make.tensors())
        assert bound.explain("hyper_connection", *make.tensors()).chosen == "control"
    op(*make.tensors())
    assert [launch[0] for launch in gpu[::3]] == [
        "combine_norm_fast",
        "combine_norm_control",
        "combine_norm_control",
        "combine_norm_fast",
    ]
    assert bound.stats().dispatches == {(work.label, "fast"): 2, (work.label, "control"): 2}


def test_strict_raises_with_the_reasons(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNWRIGHT_STRICT", "1")
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    for _ in range(2):
        with pytest.raises(Unsupported) as error:
            op_of(bound)(*make.tensors(tokens=3))
    assert str(error.value) == (
        "no kernel serves hyper_connection fp16-hc4-h64-n3-r32-tp1 (kind boundary) on cpu under policy "
        "measured, and KERNWRIGHT_STRICT=1 forbids the fallback to torch:\n"
        "  fp16-hc4-h64-n1-r32-tp1 control: tokens is 3; this candidate serves 1"
    )
    assert bound.stats().fallbacks == {}
    op_of(bound)(*make.tensors(), policy="reference")  # asked for, hence no fallback
    op_of(bound)(*make.tensors(tokens=0))  # nothing to serve


def test_exact_refuses_a_library_gemm(make: ModuleType) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    op_of(bound)(*make.tensors(tokens=16), exact=True)
    with pytest.raises(NotExact, match="by torch with library GEMMs, because 17 tokens are more than 16"):
        op_of(bound)(*make.tensors(tokens=17), exact=True)
    op_of(bound)(*make.tensors(tokens=17))


def test_a_build_that_does_not_load_falls_back_once_and_for_all(
    make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = []

    def load(root: Any, build: Any, arch: str, device: Device) -> Any:
        attempts.append(build.source)
        if build.source.startswith("fast"):
            raise LoadError("fast.sm_90.cu can't be compiled for sm_90 here: no compiler")
        return make.FakeModule(gpu)

    monkeypatch.setattr(dispatch, "load", load)
    work = make.workload(make.candidate("control"), make.candidate("fast"), records=(make.record("fast"),))
    bound = make.dispatch_of(work)
    for seed in range(2):
        op_of(bound)(*make.tensors(seed=seed))
    op_of(bound)(*make.tensors(), kind="boundary", policy="verified")
    assert attempts == ["fast.sm_90.cu", "control.sm_90.cu", "control.sm_90.cu"]
    assert bound.stats().dispatches == {(work.label, "control"): 3}
    decisions = bound.explain("hyper_connection", *make.tensors()).decisions
    assert [(d.accepted, d.reason) for d in decisions[1:]] == [
        (False, "fast.sm_90.cu can't be compiled for sm_90 here: no compiler")
    ]


def test_a_build_that_does_not_load_on_one_gpu_is_used_on_another(
    make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(root: Any, build: Any, arch: str, device: Device) -> Any:
        if device.index == 1:
            raise LoadError("no memory on cuda:1")
        return make.FakeModule(gpu)

    monkeypatch.setattr(dispatch, "load", load)
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    second, first = bound.warm_up([replace(GPU, index=1)]), bound.warm_up([GPU])
    assert {entry.chosen for entry in second} == {"reference"}
    assert {entry.decisions[0].reason for entry in second} == {"no memory on cuda:1"}
    assert {entry.chosen for entry in first} == {"control"}


def test_what_keeps_the_control_out_is_logged_and_counted(
    make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(*_: Any) -> Any:
        raise LoadError("CuPy isn't installed")

    monkeypatch.setattr(dispatch, "load", load)
    bound = make.dispatch_of(make.workload(make.candidate("control"), make.candidate("fast")))
    with caplog.at_level(logging.WARNING, "kernwright"):
        op_of(bound)(*make.tensors())
    assert bound.stats().fallbacks == {"loading": 1}
    assert caplog.records[0].getMessage().endswith("n1-r32-tp1: CuPy isn't installed")


def test_without_any_loadable_build_torch_serves(
    make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> Any:
        raise LoadError("CuPy isn't installed; install it with `pip install 'kernwright[cuda12]'`")

    bound = make.dispatch_of(make.workload(make.candidate("control")))
    monkeypatch.setattr(dispatch, "load", load)
    x, _, _ = op_of(bound)(*make.tensors())
    assert torch.equal(x, op_of(bound)(*make.tensors(), policy="reference")[0])
    assert bound.stats().fallbacks == {"loading": 1}


def test_a_plan_by_name(make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(root: Any, build: Any, arch: str, device: Device) -> Any:
        asked.append((build.source, arch, device))
        return make.FakeModule(gpu)

    monkeypatch.setattr(dispatch, "load", load)
    work = make.workload(make.candidate("control"), make.candidate("fast"))
    bound = make.dispatch_of(work)
    found = bound.plan_named("small", "fast", "sm_70", "final", GPU)
    assert asked == [("fast.sm_70.cu", "sm_70", GPU)]
    assert (found.candidate.name, found.arch, found.kind) == ("fast", "sm_70", "final")
    assert [buffer.name for buffer in found.signature.outputs] == ["block_input"]
    for arguments, message in [
        (("large", "fast", "sm_70", "final"), "no workload is called 'large'; name one of fp16-hc4"),
        ((work.label, "slow", "sm_70", "final"), "has no candidate 'slow'; it has control, fast"),
        ((work.label, "fast", "sm_61", "final"), "fast has no architecture 'sm_61'; it has sm_70, sm_75"),
        ((work.label, "fast", "sm_70", "middle"), "fast has no kind 'middle'; it has boundary"),
    ]:
        with pytest.raises(ValueError, match=message):
            bound.plan_named(*arguments, GPU)
    half = make.workload(make.candidate("control"), dtype="bfloat16")
    with pytest.raises(ValueError, match="several workloads are called 'small'; name one of fp16-"):
        make.dispatch_of(work, half).plan_named("small", "control", "sm_70", "final", GPU)


def test_warm_up_loads_what_would_be_dispatched(
    make: ModuleType, gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def load(root: Any, build: Any, arch: str, device: Device) -> Any:
        loaded.append((build.source, arch))
        return make.FakeModule(gpu)

    monkeypatch.setattr(dispatch, "load", load)
    work = make.workload(make.candidate("control"), make.candidate("fast"), records=(make.record("fast"),))
    other = make.workload(make.candidate("other"), hidden=128, spec="other", tokens=(2, 8))
    bound = make.dispatch_of(work, other)
    warmed = bound.warm_up([GPU], ["small"])
    assert {entry.kind: entry.chosen for entry in warmed} == dict.fromkeys(make.STEPS, "fast")
    assert set(loaded) == {("fast.sm_90.cu", "sm_90")}
    assert {entry.chosen for entry in bound.warm_up([GPU], [other.label])} == {"other"}
    assert bound.stats().dispatches == {}
    assert gpu == []


def test_warm_up_refuses_what_is_not_there(make: ModuleType, gpu: list[Any]) -> None:
    work = make.workload(make.candidate("control"))
    bound = make.dispatch_of(work, make.workload(make.candidate("control"), dtype="bfloat16"))
    with pytest.raises(ValueError, match="warm_up was given sm_90, which has no CUDA ordinal"):
        bound.warm_up([GPU, Device("sm_90")])
    with pytest.raises(ValueError) as error:
        bound.warm_up([GPU], ["small", "typo"])
    assert str(error.value) == (
        "no workload is called 'typo'; labels are fp16-hc4-h64-n1-r32-tp1, bf16-hc4-h64-n1-r32-tp1; "
        "specs are small"
    )
    assert bound._unusable == {}


def test_warm_up_without_a_gpu_does_nothing(make: ModuleType) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    if not torch.cuda.is_available():
        assert bound.warm_up() == ()
