"""Launching a call as a graph: what the driver is told, when arguments are set, and when it isn't worth a graph."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from kernwright.runtime import Kernel, LoadError, direct, graph_launch, launch
from kernwright.runtime.graph_launch import GraphLaunch, KernelNode

ONE, THREADS = (1, 1, 1), (128, 1, 1)
EXECUTABLE, GRAPH, STREAM = 0xE0, 0x60, 0x55


class Driver:
    """Stands for the driver's library; writes down what it was told."""

    def __init__(self) -> None:
        self.nodes: list[tuple[bytes, list[int]]] = []
        self.calls: list[tuple[str, int]] = []
        self.fails: dict[str, int] = {}
        self.mode = 0

    def _status(self, name: str, detail: int) -> int:
        self.calls.append((name, detail))
        return self.fails.get(name, 0)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuGraphCreate(self, graph: Any, _flags: int) -> int:
        graph._obj.value = GRAPH
        return self._status("create", self.mode)

    def cuGraphAddKernelNode_v2(self, node: Any, graph: Any, links: Any, count: int, params: Any) -> int:
        assert graph.value == GRAPH
        before = [links._obj.value] if count else []
        self.nodes.append((bytes(params._obj), before))
        node._obj.value = len(self.nodes)
        return self._status("add", len(self.nodes))

    def cuGraphInstantiateWithFlags(self, ready: Any, _graph: Any, _flags: Any) -> int:
        ready._obj.value = EXECUTABLE
        return self._status("instantiate", self.mode)

    def cuGraphExecKernelNodeSetParams_v2(self, ready: Any, node: int, address: int) -> int:
        assert ready.value == EXECUTABLE
        assert KernelNode.from_address(address).parameters == 100 + node
        return self._status("set", node)

    def cuGraphLaunch(self, ready: Any, stream: int) -> int:
        assert ready.value == EXECUTABLE
        return self._status("launch", stream)

    def cuGraphExecDestroy(self, ready: Any) -> int:
        return self._status("destroy executable", ready.value)

    def cuGraphDestroy(self, graph: Any) -> int:
        return self._status("destroy", graph.value)

    def cuGetErrorName(self, status: int, name: Any) -> None:
        name._obj.value = {1: b"CUDA_ERROR_INVALID_VALUE", 201: b"CUDA_ERROR_INVALID_CONTEXT"}[status]

    def done(self) -> list[tuple[str, int]]:
        """What was called since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(graph_launch, "_functions", lambda: found)
    monkeypatch.setattr("kernwright.runtime.extended_launch.driver", lambda: found)
    return found


def made(count: int) -> GraphLaunch:
    kernels = [
        Kernel(f"k{i}", (132 + i, 2, 3), (64, 1, 2), ("x",), shared_bytes=1000 + i) for i in range(count)
    ]
    return GraphLaunch([0xF0 + i for i in range(count)], kernels, [101 + i for i in range(count)])


def test_the_driver_gets_a_chain_of_nodes(driver: Driver) -> None:
    from cuda.bindings import driver as bindings

    graph = made(3)
    assert driver.done() == [("create", 2), ("add", 1), ("add", 2), ("add", 3), ("instantiate", 2)]
    assert driver.mode == 0  # the thread's own mode of capturing, as before
    assert [before for _, before in driver.nodes] == [[], [1], [2]]
    for index, (ours, _) in enumerate(driver.nodes):
        expected = bindings.CUDA_KERNEL_NODE_PARAMS()
        expected.func = bindings.CUfunction(0xF0 + index)
        expected.gridDimX, expected.gridDimY, expected.gridDimZ = 132 + index, 2, 3
        expected.blockDimX, expected.blockDimY, expected.blockDimZ = 64, 1, 2
        expected.sharedMemBytes = 1000 + index
        theirs = bytearray(ctypes.string_at(expected.getPtr(), len(ours)))
        theirs[40:48] = (101 + index).to_bytes(8, "little")  # what bindings would allocate
        assert ours == bytes(theirs)
    del graph
    assert driver.done() == [("destroy executable", EXECUTABLE), ("destroy", GRAPH)]


def test_arguments_of_several_kernels_are_set_where_they_changed(driver: Driver) -> None:
    graph = made(2)
    driver.done()
    set_and_launched = [("set", 1), ("set", 2), ("launch", STREAM)]
    for given, expected in (
        (b"a", set_and_launched),
        (b"a", [("launch", STREAM)]),
        (b"b", set_and_launched),
        (b"a", set_and_launched),
    ):
        assert graph.take(given)
        graph.launch(STREAM)
        assert driver.done() == expected


def test_one_kernel_is_a_graph_as_long_as_its_arguments_stay(driver: Driver) -> None:
    """Setting them costs as much as launching the kernel, so those that come once aren't set."""
    graph = made(1)
    driver.done()
    for given, expected in (
        (b"a", None),
        (b"b", None),
        (b"b", [("set", 1)]),
        (b"b", []),
        (b"a", None),
        (b"b", []),
    ):
        assert graph.take(given) is (expected is not None)
        assert driver.done() == (expected or [])


def test_arguments_half_set_are_set_again(driver: Driver) -> None:
    graph = made(2)
    assert graph.take(b"a")
    driver.done()
    driver.fails = {"set": 201}
    with pytest.raises(RuntimeError, match=r"doesn't set the arguments.*: CUDA_ERROR_INVALID_CONTEXT"):
        graph.take(b"b")
    assert driver.done() == [("set", 1)]
    driver.fails = {}
    assert graph.take(b"a")
    assert driver.done() == [("set", 1), ("set", 2)]
    driver.fails = {"launch": 1}
    with pytest.raises(RuntimeError, match="doesn't launch a graph: CUDA_ERROR_INVALID_VALUE"):
        graph.launch(STREAM)


@pytest.mark.parametrize("step", ["add", "instantiate"])
def test_a_graph_that_cannot_be_made_leaves_nothing(driver: Driver, step: str) -> None:
    driver.fails = {step: 1}
    with pytest.raises(RuntimeError, match=r"the driver doesn't .*: CUDA_ERROR_INVALID_VALUE"):
        made(1)
    assert driver.done()[-1] == ("destroy", GRAPH)
    assert driver.mode == 0


def test_which_kernels_are_launched_as_a_graph(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Kernel("k", ONE, THREADS, ("x",))
    assert graph_launch.suits([plain, plain])
    for name in ("programmatic", "cooperative", "resident"):
        special = Kernel("k", ONE, THREADS, ("x",), **{name: True})  # type: ignore[arg-type]
        assert not graph_launch.suits([plain, special]), name
    monkeypatch.setattr(graph_launch, "_functions", lambda: None)
    assert not graph_launch.suits([plain])
    monkeypatch.undo()


def test_a_setting_turns_graphs_off(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNWRIGHT_GRAPH_LAUNCH", "0")
    graph_launch.enabled.cache_clear()
    assert not graph_launch.suits([Kernel("k", ONE, THREADS, ("x",))])


@pytest.mark.parametrize("missing", ["the library", "its functions"])
def test_an_old_driver_has_no_graphs(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def without() -> Any:
        if missing == "the library":
            raise LoadError("no driver")
        return SimpleNamespace()

    graph_launch._functions.cache_clear()
    monkeypatch.setattr(graph_launch, "driver", without)
    assert graph_launch._functions() is None
    graph_launch._functions.cache_clear()


def test_a_call_takes_the_graph_of_its_stream_unless_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the streams that were seen last, so many are kept; where the graph leaves it, the kernels are launched."""
    import cupy_backends.cuda.api.driver

    log: list[Any] = []

    class Graph:
        def __init__(self, functions: list[int], kernels: Any, parameters: list[int]) -> None:
            assert functions == [0xF00, 0xF00]
            assert len(kernels) == len(parameters) == 2
            self.ready, self.given = sum(entry[0] == "made" for entry in log), b""
            log.append(("made", self.ready))

        def take(self, given: bytes) -> bool:
            log.append(("set", self.ready, int.from_bytes(given, "little")))
            self.given = given if serves else b""
            return serves

        def launch(self, stream: int) -> None:
            log.append(("graph", self.ready, stream))

    def launch_graph(ready: int, stream: int) -> int:
        log.append(("graph again", ready, stream))
        return status

    driver = SimpleNamespace(
        launchKernel=lambda pointer, *rest: log.append(("kernel", pointer, rest[7])),
        cuGraphLaunch=launch_graph,
    )
    monkeypatch.setattr(cupy_backends.cuda.api, "driver", driver)
    monkeypatch.setattr(launch, "GraphLaunch", Graph)
    monkeypatch.setattr(launch, "MOST_GRAPHS", 2)
    monkeypatch.setattr(graph_launch, "_functions", lambda: driver)
    monkeypatch.setattr(direct, "capture_query", lambda: lambda: capturing)
    monkeypatch.setattr(direct, "allocator", lambda _: None)
    module = launch.CudaModule(SimpleNamespace(get_function=lambda _: SimpleNamespace(ptr=0xF00)), 132)
    sequence = launch.Sequenced(module, [Kernel("k", ONE, THREADS, ("x",))] * 2, ("x",))

    def refuse(_: Any) -> NoReturn:
        raise AssertionError("misaligned")

    call = direct.direct(
        sequence,
        index=0,
        current=None,
        stream_of=lambda _: now[0],
        given=1,
        alignment=16,
        misaligned=refuse,
        made=(),
        scratch=None,
        scratch_offsets=(),
        check=None,
        follow=None,
        state_of=None,
        state_offsets=(),
    )
    x: Any = SimpleNamespace(data_ptr=lambda: address, device=SimpleNamespace(type="cuda"))
    capturing, serves, status, now, address = False, True, 0, [0], 0x7000

    def called() -> list[Any]:
        log.clear()
        call([x], [])
        return list(log)

    def first(graph: int, stream: int) -> list[Any]:
        return [("made", graph), ("set", graph, 0x7000), ("graph", graph, stream)]

    seen = [called() for now[0] in (5, 5, 6, 7, 5)]
    assert seen == [first(0, 5), [("graph again", 0, 5)], first(0, 6), first(0, 7), first(0, 5)]
    kernels = [("kernel", 0xF00, 5)] * 2
    capturing = True
    assert called() == kernels
    capturing, status = (
        False,
        201,
    )  # as for a thread without a context: the whole way, which says what is wrong
    assert called() == [("graph again", 0, 5), ("set", 0, 0x7000), ("graph", 0, 5)]
    serves, address = False, 0x7010
    assert called() == [("set", 0, 0x7010), *kernels]
    address = 0x7018
    with pytest.raises(AssertionError, match="misaligned"):
        called()
