"""A warm process: nothing compiled, loaded or decided in a call, by however many threads; forks; ranges."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.families.hyper_connection.op import OP
from kernwright.runtime import Device, Dispatch, InvalidSetting, fork, loader, watch
from kernwright.runtime.known_call import Recorded

H200 = Device("sm_90", 132, "NVIDIA H200", 0)


@pytest.fixture
def cold(make: ModuleType, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Dispatch:
    """A dispatch module whose modules really go through the loader, down to what CuPy would do."""
    from kernwright.runtime import dispatch

    monkeypatch.setattr(loader, "_modules", {})
    monkeypatch.setattr(dispatch, "load", loader.load)
    monkeypatch.setattr(loader, "_load_module", lambda *_: gpu)

    def compile_source(source: str, *, file_name: str, arch: str, kind: str) -> Any:
        return SimpleNamespace(data=source.encode(), cached=False)

    compiler = SimpleNamespace(compile_source=compile_source)
    monkeypatch.setitem(sys.modules, "kernwright.compiler.compile", compiler)
    monkeypatch.setattr(loader, "source_text", lambda *_: "// text")
    return make.dispatch_of(make.workload(make.candidate("control")))


def test_watching_names_what_a_cold_call_does_and_a_warm_one_does_not(
    make: ModuleType, cold: Dispatch
) -> None:
    op: Any = cold.operators["hyper_connection"]
    with watch() as events:
        op(*make.tensors())
    assert events == [
        "hyper_connection fp16-hc4-h64-n1-r32-tp1 (kind boundary) was decided",
        "control.sm_90.cu was compiled to cubin for sm_90",
        "control.sm_90.cu was loaded on cuda:0",
    ]
    out = op(*make.tensors())
    ready = op.plan(*make.tensors())
    operator = cold.torch_ops(f"warm_{id(cold)}").hyper_connection_boundary
    with watch() as events:
        for seed in range(3):
            op(*make.tensors(seed=seed))
            op(*make.tensors(seed=seed), out=out)
            ready(*make.tensors(seed=seed))
            ready(*make.tensors(seed=seed), out=out)
            operator(*make.tensors(seed=seed))
    assert events == []


def test_after_warm_up_a_first_call_loads_nothing(make: ModuleType, cold: Dispatch) -> None:
    with watch() as events:
        cold.warm_up([H200])
    assert len([event for event in events if "loaded" in event]) == 1
    op: Any = cold.operators["hyper_connection"]
    with watch() as events:
        for kind in ("boundary", "first", "combine", "final"):
            op(*make.tensors(kind=kind), kind=kind)
    assert [event.split(" (kind ")[1] for event in events] == [
        f"{kind}) was decided" for kind in ("boundary", "first", "combine", "final")
    ]


def test_warm_up_takes_the_sizes_of_an_engine(make: ModuleType, gpu: Any) -> None:
    one, many = make.workload(make.candidate("one")), make.workload(make.candidate("many"), tokens=(2, 8))
    bound = make.dispatch_of(one, many)
    explained = bound.warm_up([H200], tokens=[1, 4, 2, 4, 64])
    boundaries = [found for found in explained if found.kind == "boundary"]
    assert [(found.chosen, found.workload) for found in boundaries] == [
        ("one", "fp16-hc4-h64-n1-r32-tp1"),
        ("many", "fp16-hc4-h64-n2to8-r32-tp1"),
        ("many", "fp16-hc4-h64-n2to8-r32-tp1"),
    ]
    assert bound.warm_up([H200], tokens=[64]) == ()
    assert len(bound.warm_up([H200])) == 8


def test_warm_up_takes_the_sizes_of_any_interval_by_its_name(make: ModuleType, gpu: Any) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("many"), tokens=(2, 8)))
    with pytest.raises(ValueError) as caught:
        bound.warm_up([H200], token=[1])
    assert str(caught.value) == (
        "warm_up was given sizes of 'token', which no workload has as an interval; intervals are tokens"
    )
    assert len(bound.warm_up([H200], tokens=None)) == 4


def test_an_explanation_is_of_the_first_kind_by_default(make: ModuleType) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control")))
    fields = {**make.workload().fields, "tokens": 1}
    assert bound.explain_request("hyper_connection", fields, "sm_90").kind == "boundary"
    unstated = type(bound)(replace(bound.table, families=()))
    unstated.register(bound.operator("hyper_connection"))
    with pytest.raises(ValueError, match="the table states no kinds of hyper_connection; name the kind"):
        unstated.explain_request("hyper_connection", fields, "sm_90")


def test_there_is_a_call_for_every_part_of_the_library() -> None:
    """Also where a part begins in the middle of an element."""
    from kernwright.generated.dispatch import DISPATCH, TABLE
    from kernwright.runtime import warm

    operators = {operator.family: operator for operator in DISPATCH.operators.values()}
    calls = 0
    for work in TABLE.workloads:
        for fields in warm.calls(work, None, H200):
            for kind in work.control.steps:
                request = operators[work.family].request_for(fields, kind)
                if work.interval is not None and work.interval in request.fields:
                    assert request.fields[work.interval] == fields[work.interval]
            calls += 1
    assert calls > len(TABLE.workloads)


def test_device_memory_that_torch_asks_for_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [{"num_device_alloc": 3}, {"num_device_alloc": 1}]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: asked[index])
    with watch() as quiet:
        pass
    with watch() as events:
        asked[1] = {"num_device_alloc": 6}
    assert (quiet, events) == ([], ["torch asked the driver 5 times for device memory"])


def test_thirty_two_threads_never_mix_their_calls(make: ModuleType, bound: Dispatch, gpu: Any) -> None:
    op: Any = bound.operators["hyper_connection"]
    operator = bound.torch_ops().hyper_connection_boundary
    ready = op.plan(*make.tensors())
    barrier = threading.Barrier(32)
    expected: dict[int, list[list[int]]] = {}
    errors: list[BaseException] = []

    def call(number: int) -> None:
        inputs = make.tensors(seed=number)
        pointers = [tensor.data_ptr() for tensor in inputs]
        mine = expected[threading.get_ident()] = []
        try:
            barrier.wait()
            for turn in range(25):
                run = (op, ready, operator)[(number + turn) % 3]
                out = run(*inputs)
                mine.append([*pointers, *(tensor.data_ptr() for tensor in out)])
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert len(gpu.launches) == 32 * 25 * 3
    for thread, calls in expected.items():
        launched = [(symbol, values) for who, symbol, values in gpu.launches if who == thread]
        for turn, pointers in enumerate(calls):
            residual, block, injection, norm, down, up, x, block_input, injection_out = pointers
            (first, a), (second, b), (third, c) = launched[3 * turn : 3 * turn + 3]
            assert [first, second, third] == ["combine_norm_fast", "down_fast", "up_mix_fast"]
            y, lora = a[5], b[2]
            assert a == [residual, block, injection, norm, x, y]
            assert b == [y, down, lora, injection_out]
            assert c == [lora, up, y, block_input]


def in_a_fork(body: Any) -> str:
    """Run it in a forked child; what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(body())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as pipe:  # noqa: PTH123  a descriptor, no path
        return pipe.read()


SENTENCE = (
    "ForkedProcess: this process was forked from one that had kernels loaded, and a CUDA context doesn't survive a "
    "fork; start workers with the method `spawn` or `forkserver`, or fork before the first call on a GPU"
)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_that_calls_gets_a_sentence(
    make: ModuleType, bound: Dispatch, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    op: Any = bound.operators["hyper_connection"]
    ready = op.plan(*make.tensors())
    tensors = make.tensors()
    op(*tensors)
    assert in_a_fork(lambda: ready(*tensors)) == SENTENCE
    assert in_a_fork(lambda: op(*tensors)) == SENTENCE
    assert in_a_fork(lambda: op(*make.tensors(kind="combine"), kind="combine")) == SENTENCE
    assert (
        in_a_fork(lambda: loader.load(Path("/nowhere"), make.build("fast", "sm_90"), "sm_90", H200))
        == SENTENCE
    )
    assert len(ready(*tensors)) == 3  # the parent goes on

    monkeypatch.undo()  # what is on the CPU is served by torch in a child, too: a data loader's worker may ask
    assert in_a_fork(lambda: len(op.plan(*tensors)(*tensors))) == "3"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_process_forked_before_the_first_call_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_plans", False)
    assert in_a_fork(lambda: fork.happened) == "False"


def test_ranges_are_off_unless_asked_for(
    make: ModuleType, bound: Dispatch, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    nvtx = SimpleNamespace(range_push=lambda label: seen.append(label), range_pop=lambda: seen.append(None))
    monkeypatch.setattr(torch.cuda, "nvtx", nvtx)
    op: Any = bound.operators["hyper_connection"]
    resolved = op.plan(*make.tensors())
    assert resolved.serve is resolved.plan.serve  # nothing stands between
    assert seen == []

    from kernwright.runtime import ranges

    monkeypatch.setenv("KERNWRIGHT_NVTX", "1")
    ranges.enabled.cache_clear()
    ready = op.plan(*make.tensors())
    torch_ready = op.plan(*make.tensors(tokens=3))
    seen.clear()
    ready(*make.tensors())
    torch_ready(*make.tensors(tokens=3))
    assert seen == [
        "kernwright hyper_connection boundary fp16-hc4-h64-n1-r32-tp1 fast",
        None,
        "kernwright hyper_connection boundary fp16-hc4-h64-n3-r32-tp1 torch",
        None,
    ]
    seen.clear()
    with pytest.raises(AttributeError):
        ready(None)
    assert seen[1:] == [None]  # closed whatever happens


def test_ranges_that_torch_does_not_have(make: ModuleType, op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernwright.runtime import ranges

    def absent(_: str) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(torch.cuda, "nvtx", SimpleNamespace(range_push=absent))
    monkeypatch.setenv("KERNWRIGHT_NVTX", "1")
    ranges.enabled.cache_clear()
    with pytest.raises(
        InvalidSetting, match=r"KERNWRIGHT_NVTX is 1, and this torch has no NVTX .*: unset it"
    ):
        op.plan(*make.tensors())
    monkeypatch.setenv("KERNWRIGHT_NVTX", "yes")
    ranges.enabled.cache_clear()
    with pytest.raises(InvalidSetting, match="KERNWRIGHT_NVTX is 'yes'; allowed are 0 and 1"):
        make.dispatch_of()


def test_a_known_call_is_recognised_by_all_that_matters(make: ModuleType, bound: Dispatch, gpu: Any) -> None:
    op: Any = bound.operators["hyper_connection"]
    tensors = make.tensors()
    op(*tensors)
    with watch() as events:
        op(*tensors)
        op(tensors[0].clone(), *[torch.nn.Parameter(tensor, requires_grad=False) for tensor in tensors[1:]])
    assert len(events) == 1  # parameters are decided once, too
    launched = len(gpu.launches)
    for position, bad in (
        (1, torch.zeros(1, 64)),
        (2, torch.zeros(2, 4).half()),
        (4, torch.zeros(48, 256, device="meta").half()),
        (5, None),
    ):
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)):
                op(*tensors[:position], bad, *tensors[position + 1 :])
    strided = torch.zeros(256, 64).half()[:, ::2]
    op(*tensors[:5], strided)
    assert len(gpu.launches) == launched
    assert bound.stats().fallbacks == {"layout": 1}
    assert OP.family == "hyper_connection"


def test_tensors_like_those_recorded_are_of_the_same_sizes_and_strides() -> None:
    """And of the same type, dtype and device: the short way trusts nothing else."""
    row, weight = torch.zeros(1, 256, dtype=torch.float16), torch.zeros(336, 256, dtype=torch.float16)
    recorded = Recorded()
    recorded.record([row, weight])
    assert recorded.like(row.clone(), weight.clone())
    for others in (
        (row[:, :255], weight),
        (row, torch.zeros(335, 256, dtype=torch.float16)),
        (row, torch.zeros(256, 336, dtype=torch.float16).t()),
        (row.float(), weight),
        (row, weight.to("meta")),
    ):
        assert not recorded.like(*others)


def test_known_outputs_are_looked_at_on_every_call(make: ModuleType, bound: Dispatch, gpu: Any) -> None:
    op: Any = bound.operators["hyper_connection"]
    tensors = make.tensors()
    out = op(*tensors)
    with watch() as events:
        op(*tensors, out=out)
        op(*tensors, out=list(out))
    assert len(events) == 0
    launched = len(gpu.launches)
    for bad, message in (
        ((out[0], out[1], tensors[2]), "out's injection_out shares memory with injection"),
        ((out[0].float(), *out[1:]), "out's x is torch.float32"),
        ((out[0], out[1], None), "out's injection_out is None"),
        (out[:2], "out is a tuple of 2"),
        ((out[0][:, :255], *out[1:]), r"out's x is torch.float16 of shape \(1, 255\)"),
    ):
        with pytest.raises(ValueError, match=message):
            op(*tensors, out=bad)
    off = torch.zeros(257, dtype=torch.float16)[1:].view(1, 256)
    op(*tensors, out=(off, *out[1:]))  # torch writes where kernels can't
    assert len(gpu.launches) == launched
    assert off.abs().sum() > 0
    shared = [*tensors[:2], tensors[0][:, :4], *tensors[3:]]  # inputs may overlap
    op(*shared, out=out)
    assert len(gpu.launches) == launched + 3
