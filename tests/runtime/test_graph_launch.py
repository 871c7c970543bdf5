"""Launching a call as a graph: what the driver is told, when arguments are set, and when it isn't worth a graph."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from kernwright.runtime import LoadError, direct, graph_launch, launch
from kernwright.runtime.graph_launch import GraphLaunch, KernelNode
from kernwright.table import Kernel

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
        assert self.mode == 2, "the garbage collector may run while somebody captures"
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
        Kernel((132 + i, 2, 3), (64, 1, 2), ("x",), shared_bytes=1000 + i, symbol=f"k{i}")
        for i in range(count)
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


def test_arguments_are_set_where_they_changed(driver: Driver) -> None:
    graph = made(2)
    driver.done()
    set_and_launched = [("set", 1), ("set", 2), ("launch", STREAM)]
    for given, expected in (
        (b"a", set_and_launched),
        (b"a", [("launch", STREAM)]),
        (b"b", set_and_launched),
        (b"a", set_and_launched),
    ):
        graph.launch(given, STREAM)
        assert driver.done() == expected


def test_arguments_half_set_are_set_again(driver: Driver) -> None:
    graph = made(2)
    graph.launch(b"a", STREAM)
    driver.done()
    driver.fails = {"set": 201}
    with pytest.raises(RuntimeError, match=r"doesn't set the arguments.*: CUDA_ERROR_INVALID_CONTEXT"):
        graph.launch(b"b", STREAM)
    assert driver.done() == [("set", 1)]
    driver.fails = {}
    graph.launch(b"a", STREAM)
    assert driver.done() == [("set", 1), ("set", 2), ("launch", STREAM)]
    driver.fails = {"launch": 1}
    with pytest.raises(RuntimeError, match="doesn't launch a graph: CUDA_ERROR_INVALID_VALUE"):
        graph.launch(b"a", STREAM)


@pytest.mark.parametrize("step", ["add", "instantiate"])
def test_a_graph_that_cannot_be_made_leaves_nothing(driver: Driver, step: str) -> None:
    driver.fails = {step: 1}
    with pytest.raises(RuntimeError, match=r"the driver doesn't .*: CUDA_ERROR_INVALID_VALUE"):
        made(1)
    assert driver.done()[-1] == ("destroy", GRAPH)
    assert driver.mode == 0


def test_which_kernels_are_launched_as_a_graph(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Kernel(ONE, THREADS, ("x",), symbol="k")
    assert graph_launch.suits([plain, plain])
    for name in ("programmatic", "cooperative", "resident"):
        special = Kernel(ONE, THREADS, ("x",), **{name: True}, symbol="k")  # type: ignore[arg-type]
        assert not graph_launch.suits([plain, special]), name
    monkeypatch.setattr(graph_launch, "_functions", lambda: None)
    assert not graph_launch.suits([plain])
    monkeypatch.undo()


def test_a_setting_turns_graphs_off(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNWRIGHT_GRAPH_LAUNCH", "0")
    graph_launch.enabled.cache_clear()
    assert not graph_launch.suits([Kernel(ONE, THREADS, ("x",), symbol="k")])


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


class Call:
    """A plan's call whose graphs and launches are written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernels: int, **more: Any) -> None:
        import cupy_backends.cuda.api.driver

        log: list[Any] = []
        self.log, self.address, self.stream, self.status = log, 0x7000, 5, 0
        self.capturing, self.refuses = False, ""
        call = self

        class Graph:
            def __init__(self, functions: list[int], made: Any, parameters: list[int]) -> None:
                assert functions == [0xF00] * kernels
                assert len(made) == len(parameters) == kernels
                self.ready, self.given = 7, b""
                log.append("made")

            def launch(self, given: bytes, stream: int) -> None:
                log.append(("graph", int.from_bytes(given[:8], "little"), stream))
                if call.refuses:
                    raise RuntimeError(call.refuses)
                self.given = given

        def launch_graph(ready: int, stream: int) -> int:
            assert ready == 7
            log.append(("graph again", stream))
            return call.status

        driver = SimpleNamespace(
            launchKernel=lambda pointer, *rest: log.append(("kernel", pointer, rest[7])),
            cuGraphLaunch=launch_graph,
        )
        monkeypatch.setattr(cupy_backends.cuda.api, "driver", driver)
        monkeypatch.setattr(launch, "GraphLaunch", Graph)
        monkeypatch.setattr(graph_launch, "_functions", lambda: driver)
        monkeypatch.setattr(direct, "capture_query", lambda: lambda: self.capturing)
        monkeypatch.setattr(direct, "allocator", lambda _: None)
        module = launch.CudaModule(SimpleNamespace(get_function=lambda _: SimpleNamespace(ptr=0xF00)), 132)
        self.sequence = launch.LaunchSequence(
            module, [Kernel(ONE, THREADS, ("x",), symbol="k")] * kernels, ("x",)
        )
        fixed: dict[str, Any] = {
            "index": 0,
            "current": None,
            "stream_of": lambda _: self.stream,
            "given": 1,
            "alignment": 16,
            "misaligned": self._misaligned,
            "made": (),
            "scratch": None,
            "scratch_offsets": (),
            "check": None,
            "follow": None,
            "state_of": None,
            "state_offsets": (),
        }
        self._call = direct.direct(self.sequence, **fixed | more)

    def _misaligned(self, _: Any) -> NoReturn:
        raise AssertionError("misaligned")

    def __call__(self) -> list[Any]:
        """What a call did."""
        self.log.clear()
        x: Any = SimpleNamespace(data_ptr=lambda: self.address, device=SimpleNamespace(type="cuda"))
        self._call([x], [])
        return list(self.log)


def test_several_kernels_are_a_graph_unless_they_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph a stream, of so many streams; where the driver refuses, the kernels are launched."""
    monkeypatch.setattr(launch, "MOST_GRAPHS", 2)
    call = Call(monkeypatch, 2)
    assert call() == ["made", ("graph", 0x7000, 5)]
    assert call() == [("graph again", 5)]
    call.address = 0x7010
    assert call() == [("graph", 0x7010, 5)]
    call.stream = 6
    assert call() == ["made", ("graph", 0x7010, 6)]
    call.stream = 7  # a third one
    assert call() == [("kernel", 0xF00, 7)] * 2
    call.stream, call.capturing = 6, True
    assert call() == [("kernel", 0xF00, 6)] * 2
    call.capturing, call.status = (
        False,
        201,
    )  # a thread without a context: the kernels' launch says what is wrong
    call.refuses = "CUDA_ERROR_INVALID_CONTEXT"
    assert call() == [("graph again", 6), ("graph", 0x7010, 6), *[("kernel", 0xF00, 6)] * 2]
    call.refuses, call.status = "", 0
    assert call() == [("graph again", 6)]
    call.address, call.refuses = 0x7020, "CUDA_ERROR_OUT_OF_MEMORY"
    assert call() == [("graph", 0x7020, 6), *[("kernel", 0xF00, 6)] * 2]
    call.refuses, call.address = "", 0x7030
    assert call() == [("kernel", 0xF00, 6)] * 2  # not tried again and again


def test_one_kernel_is_a_graph_for_addresses_that_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting them costs as much as launching the kernel."""
    call, kernel = Call(monkeypatch, 1), [("kernel", 0xF00, 5)]
    assert call() == kernel
    assert call() == ["made", ("graph", 0x7000, 5)]
    assert call() == [("graph again", 5)]
    call.address = 0x7010
    assert call() == kernel
    assert call() == [("graph", 0x7010, 5)]
    for call.address in (0x7020, 0x7030, 0x7020, 0x7030):
        assert call() == kernel


def test_a_misaligned_call_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame, too; a channel isn't followed, and no state is made."""
    followed: list[int] = []
    for more in ({}, {"follow": followed.append}):
        call = Call(monkeypatch, 2, **more)
        call()
        frames = list(call.sequence.frames)
        followed.clear()
        call.address = 0x7008
        with pytest.raises(AssertionError, match="misaligned"):
            call()
        assert call.sequence.frames == frames
        assert followed == []
