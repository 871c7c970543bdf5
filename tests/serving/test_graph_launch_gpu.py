"""Calls launched as graphs, on a GPU: arguments that change while the GPU is busy, streams, threads, captures."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from kernwright.generated import dispatch
from kernwright.runtime import graph_launch, launch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

HC, H, R, ROWS = 4, 2560, 320, 336
CALLS = 100
op = dispatch.hyper_connection


def tensors(seed: int) -> list[torch.Tensor]:
    """Arguments of a boundary of the library's workload."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def made(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device="cuda") * scale).half()

    activations = [made(1, HC * H), made(1, H), made(1, HC)]
    weights = [made(HC * H, scale=0.1), made(ROWS, HC * H, scale=0.01), made(HC * H, R, scale=0.05)]
    return [*activations, *weights]


def load_plan(kind: str, given: Sequence[Any], as_graph: bool = True) -> Any:
    """The control's plan, whose kernels wait for nobody, after one call."""
    plan = op.plan(*given, kind=kind, policy="control")
    plan(*given)
    assert plan.plan._sequence.as_graph is as_graph
    return plan


def graphs(plan: Any) -> dict[int, Any]:
    (frame,) = plan.plan._sequence.frames
    found: dict[int, Any] = frame.graphs
    return found


def same(found: Any, expected: Any) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(a is b is None or torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in pairs)


def of_kind(kind: str, seed: int) -> list[Any]:
    given: list[Any] = tensors(seed)
    return [*given[:3], None, None, None] if kind == "combine" else given


@pytest.mark.parametrize("order", ["changing", "twice each"])
@pytest.mark.parametrize("kind", ["boundary", "combine"])
def test_calls_behind_a_busy_gpu_keep_their_arguments(kind: str, order: str) -> None:
    """All of them are queued before the first one runs; each has the tensors that it was given."""
    many = [of_kind(kind, seed) for seed in range(CALLS)]
    plan = load_plan(kind, many[0])
    expected = []
    for given in many:
        expected.append([None if tensor is None else tensor.clone() for tensor in plan(*given)])
        torch.cuda.synchronize()
    outs = [
        tuple(None if t is None else torch.full_like(t, float("nan")) for t in wanted) for wanted in expected
    ]
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    busy = torch.cuda.Event()
    busy.record()
    for given, out in zip(many, outs, strict=True):
        for _ in range(2 if order == "twice each" else 1):
            plan(*given, out=out)
    assert not busy.query(), "the GPU was idle: nothing was shown"
    torch.cuda.synchronize()
    assert [same(out, wanted) for out, wanted in zip(outs, expected, strict=True)] == [True] * CALLS


def test_every_stream_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many streams; on the others the kernels are launched."""
    monkeypatch.setattr(launch, "MOST_GRAPHS", 3)
    given = tensors(1)
    plan = load_plan("boundary", given)
    expected = [tensor.clone() for tensor in plan(*given)]
    streams = [torch.cuda.Stream() for _ in range(6)]
    torch.cuda.synchronize()
    results = []
    for turn in range(4):
        for stream in streams[turn:]:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000)
                results.append(plan(*given))
            assert len(graphs(plan)) <= 3
    torch.cuda.synchronize()
    assert len(graphs(plan)) == 3
    assert all(same(result, expected) for result in results)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_plan_may_be_collected_while_somebody_captures(elsewhere: bool) -> None:
    """Its graphs go with it; ending them isn't part of what is captured, on whichever thread it happens."""
    given, other = tensors(7), tensors(8)
    keep, lost = load_plan("boundary", given), load_plan("boundary", other)
    expected = [tensor.clone() for tensor in keep(*given)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = keep(*given)
        del lost
        if elsewhere:
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
        else:
            gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    assert same(results, expected)


def test_only_the_first_call_on_a_stream_makes_a_graph() -> None:
    given, others = tensors(2), tensors(6)
    plan = load_plan("boundary", given)
    made = dict(graphs(plan))
    assert list(made) == [torch.cuda.current_stream().cuda_stream]
    for _ in range(3):
        plan(*given)
        plan(*others)
    assert graphs(plan) == made


def test_a_graph_is_made_while_another_thread_captures() -> None:
    """Capturing forbids every thread what could wait for the device; making a graph isn't such a thing."""
    given = of_kind("combine", 4)
    plan = load_plan("combine", given)
    expected = plan(*given)[0].clone()
    mine, captured = torch.empty_like(expected), torch.empty_like(expected)
    graph, stream, own = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    capturing, made = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def capture() -> None:
        try:
            with torch.cuda.graph(graph, stream=stream):
                plan(*given, out=(captured, None, None))
                capturing.set()
                made.wait(60)
        except BaseException as error:
            failed.append(error)
            capturing.set()

    thread = threading.Thread(target=capture)
    thread.start()
    assert capturing.wait(60)
    before = len(graphs(plan))
    with torch.cuda.stream(own):
        for _ in range(3):  # the last two as a graph
            plan(*given, out=(mine, None, None))
    assert len(graphs(plan)) == before + 1
    made.set()
    thread.join()
    assert failed == []
    graph.replay()
    torch.cuda.synchronize()
    assert same([captured, mine], [expected, expected])


def test_kernel_by_kernel_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `KERNWRIGHT_GRAPH_LAUNCH=0` does."""
    given = tensors(5)
    by_graph = load_plan("boundary", given)(*given)
    monkeypatch.setattr(graph_launch, "enabled", lambda: False)
    assert same(by_graph, load_plan("boundary", given, as_graph=False)(*given))
