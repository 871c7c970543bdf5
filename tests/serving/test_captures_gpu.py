"""Captures on a GPU: graphs of one plan that are replayed at once, and calls beside captures of another thread."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness.capturing import failures_beside_captures
from kernwright.families.hyper_connection.op import HyperConnection
from kernwright.generated import dispatch
from kernwright.runtime import bind, loader, waits
from kernwright.runtime.captures import side_stream
from kernwright.runtime.communicator import channel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

HC, H, R, ROWS = 4, 2560, 320, 336
BOUNDARIES, TURNS, BATCH, INPUTS = 8, 3000, 50, 3
SPEC = "all_reduce_7168"
op = dispatch.hyper_connection


def made(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device="cuda") * scale).half()


def activations(seed: int) -> list[torch.Tensor]:
    return [made(10 * seed, 1, HC * H), made(10 * seed + 1, 1, H), made(10 * seed + 2, 1, HC)]


def weights(seed: int) -> list[torch.Tensor]:
    seed = 1000 + 10 * seed
    return [
        made(seed, HC * H, scale=0.1),
        made(seed + 1, ROWS, HC * H, scale=0.01),
        made(seed + 2, HC * H, R, scale=0.05),
    ]


def stateful(layers: list[list[torch.Tensor]]) -> Any:
    """The plan of what is dispatched here, where it keeps state between calls."""
    plan = op.plan(*activations(0), *layers[0])
    if plan.plan is None or not plan.plan._state_bytes:
        pytest.skip("what is dispatched on this device keeps no state")
    return plan


def chain(call: Callable[..., Any], given: list[torch.Tensor], layers: list[list[torch.Tensor]]) -> Any:
    for layer in layers:
        given = call(*given, *layer)
    return given


def bits(results: Any) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in results]).view(torch.int16)


class Replayed:
    """A graph of a chain, captured the ordinary way: on the stream that torch has for all captures."""

    def __init__(self, plan: Any, layers: list[list[torch.Tensor]], seed: int) -> None:
        self._inputs = [activations(seed + n) for n in range(INPUTS)]
        by_control = [chain(lambda *a: op(*a, policy="control"), given, layers) for given in self._inputs]
        self._expected = [bits(results) for results in by_control]
        assert all(bool(torch.cat([t.reshape(-1) for t in r]).isfinite().all()) for r in by_control)
        self._given = [tensor.clone() for tensor in self._inputs[0]]
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._results = chain(plan, self._given, layers)
        self.wrong = torch.zeros(TURNS, dtype=torch.int32, device="cuda")
        self.nans = torch.zeros_like(self.wrong)

    def replay(self, turn: int) -> None:
        """With other inputs than the time before; what comes out is compared on the stream."""
        for tensor, source in zip(self._given, self._inputs[turn % INPUTS], strict=True):
            tensor.copy_(source)
        self.graph.replay()
        found = bits(self._results)
        self.wrong[turn] = (found != self._expected[turn % INPUTS]).any()
        self.nans[turn] = found.view(torch.float16).isnan().any()


def test_two_graphs_of_a_plan_are_replayed_at_once() -> None:
    """Captured one after the other on torch's own stream for captures, without a call between them."""
    layers = [weights(n) for n in range(BOUNDARIES)]
    plan = stateful(layers)
    chain(plan, activations(0), layers)
    both = [Replayed(plan, layers, seed) for seed in (100, 200)]
    torch.cuda.synchronize()
    for begin in range(0, TURNS, BATCH):
        for one in both:
            with torch.cuda.stream(one.stream):
                torch.cuda._sleep(60_000_000)  # so that the replays of both are queued before the first runs
        for turn in range(begin, begin + BATCH):
            for one in both:
                with torch.cuda.stream(one.stream):
                    one.replay(turn)
        if begin == 0:
            assert not both[0].stream.query(), "the replays weren't queued: nothing was shown"
    torch.cuda.synchronize()
    wrong, nans = (sum(int(getattr(one, name).sum()) for one in both) for name in ("wrong", "nans"))
    print(f"{wrong} of {2 * TURNS} results were wrong, {nans} of them with a NaN")
    assert wrong == 0
    plan.plan.check()


def test_a_graph_outlives_its_plan() -> None:
    """The state is the graph's: what other plans make after the first one is gone doesn't get its memory."""
    layers = [weights(n) for n in range(2)]
    stateful(layers)
    expected = chain(op, activations(1), layers)
    expected = [tensor.clone() for tensor in expected]
    fresh: Any = HyperConnection(bind(dispatch.TABLE))
    given, graph = activations(1), torch.cuda.CUDAGraph()
    chain(fresh, given, layers)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = chain(fresh, given, layers)
    del fresh
    gc.collect()
    with torch.cuda.stream(side_stream(torch.cuda.current_device())):  # whose memory states are
        taken = [torch.full((11520,), 255, dtype=torch.uint8, device="cuda") for _ in range(500)]
    for turn in range(100):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(bits(results), bits(expected)), f"replay {turn}"
    assert all(bool((memory == 255).all()) for memory in taken)


def test_dozens_of_graphs_are_captured_in_a_row() -> None:
    """As engines do, for every batch size they serve: without an eager call between two of them."""
    layers = [weights(0)]
    plan = stateful(layers)
    given = activations(2)
    expected = [tensor.clone() for tensor in plan(*given, *layers[0])]
    before, graphs = torch.cuda.memory_allocated(), []
    for _ in range(60):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            graphs.append((graph, plan(*given, *layers[0])))
    print(f"60 captures took {(torch.cuda.memory_allocated() - before) / 60:.0f} bytes each")
    for graph, results in graphs:
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(bits(results), bits(expected))


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call looks at the records of failures."""
    monkeypatch.setattr(waits, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(channel, "CHECK_SECONDS", -1.0)


def report(failures: list[str], captures: int = 20) -> None:
    captured = sum(text.startswith("capture") for text in failures)
    print(f"{captured} of {captures} captures were invalidated, {len(failures) - captured} calls raised")
    assert failures == []


def test_what_torch_does_invalidates_no_capture() -> None:
    """A negative control of the ones below: the same with torch alone."""
    x = made(1, 64, 64)
    x @ x
    report(failures_beside_captures(lambda _: (x @ x).add_(1)))


@pytest.mark.parametrize("policy", ["measured", "control"])
@pytest.mark.parametrize("way", ["op", "plan", "operator"])
def test_calls_invalidate_no_capture(looking: None, way: str, policy: str) -> None:
    given = [*activations(3), *weights(3)]
    plan = op.plan(*given, policy=policy)
    operator = dispatch.torch_ops().hyper_connection_boundary

    def call(_turn: int) -> None:
        for _ in range(3):
            if way == "plan":
                plan(*given)
            elif way == "op":
                op(*given, policy=policy)
            else:
                operator(*given)
        if plan.plan is not None:
            plan.plan.check()

    call(0)
    torch.cuda.synchronize()
    report(failures_beside_captures(call))


@pytest.mark.parametrize("policy", ["measured", "control"])
def test_the_first_calls_invalidate_no_capture(
    looking: None, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loads modules, makes a plan, and its frame, graphs and state."""
    given = [*activations(4), *weights(4)]
    op(*given, policy=policy)
    torch.cuda.synchronize()
    kept: list[Any] = []

    def call(_turn: int) -> None:
        monkeypatch.setattr(loader, "_modules", {})
        fresh: Any = HyperConnection(bind(dispatch.TABLE))
        kept.append((fresh, loader._modules))
        for _ in range(3):
            fresh(*given, policy=policy)

    report(failures_beside_captures(call))


def test_new_streams_invalidate_no_capture(looking: None) -> None:
    """The state of each is made; torch's memory is given, because what it asks the driver for is its own matter."""
    given = [*activations(5), *weights(5)]
    plan = stateful([given[3:]])
    out = plan(*given)
    streams = [torch.cuda.Stream() for _ in range(20)]
    torch.cuda.synchronize()

    def call(turn: int) -> None:
        with torch.cuda.stream(streams[turn]):
            for _ in range(3):
                plan(*given, out=out)

    report(failures_beside_captures(call))


@pytest.mark.parametrize("kilobytes", [16, 512])
def test_all_reduce_invalidates_no_capture(looking: None, kilobytes: int) -> None:
    """Ranks that share this process, by kernels, on one stream and on another in turns."""
    comm = dispatch.local_communicator(2, "cuda", specs=[SPEC])
    x = torch.ones(2, kilobytes * 512, dtype=torch.float16, device="cuda")
    out = torch.empty_like(x)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    fallbacks = sum(dispatch.stats().fallbacks.values())

    def call(turn: int) -> None:
        with torch.cuda.stream(streams[turn % 2]):
            for _ in range(3):
                dispatch.all_reduce(x, comm=comm, out=out)
        comm.check()

    for turn in range(2):
        call(turn)
    torch.cuda.synchronize()
    report(failures_beside_captures(call))
    assert bool((out == 2).all())
    assert sum(dispatch.stats().fallbacks.values()) == fallbacks
    comm.close()
