"""Which streams a channel's calls wait for, which threads, and what a capture keeps; streams and events are fakes."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.runtime import Device, Plan, plan
from kernwright.runtime.communicator import channel as channel_module
from kernwright.runtime.communicator.channel import Channel, ChannelPlan

GPU = Device("sm_90", 132, "NVIDIA H200", 0)


class Cuda:
    """What torch does with streams, written down; each thread has a current one."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self._here = threading.local()
        self.capturing = False

    def stream(self, handle: int, *, foreign: bool = False) -> Any:
        """A stream of torch's own, or one that was made by its handle, which is then its id."""
        stream = SimpleNamespace(stream_id=handle if foreign else 3, cuda_stream=handle)
        stream.wait_stream = lambda other: self.log.append((handle, "waits for stream", other.cuda_stream))
        stream.wait_event = lambda event: self.log.append((handle, "waits for event of", event.at))
        return stream

    def use(self, stream: Any) -> int:
        self._here.stream = stream
        handle: int = stream.cuda_stream
        return handle

    def current(self, _device: Any = None) -> Any:
        return self._here.stream

    def event(self) -> Any:
        event = SimpleNamespace(at=None)

        def record(stream: Any) -> None:
            event.at = stream.cuda_stream
            self.log.append((stream.cuda_stream, "records"))

        event.record = record
        return event


class Memory:
    """Memory that says it is a GPU's."""

    is_cuda, device, shape = True, torch.device("cuda", 0), (1, 64)

    def __getitem__(self, _: Any) -> Memory:
        return self

    def view(self, _: Any) -> Memory:
        return self

    def zero_(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    found = Cuda()
    monkeypatch.setattr(torch.cuda, "current_stream", found.current)
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(channel_module, "capture_query", lambda: lambda: found.capturing)
    record = SimpleNamespace(forget=lambda: None, end=lambda: None, look=list)
    monkeypatch.setattr(channel_module, "AsyncRecord", lambda _: record)
    monkeypatch.setattr(channel_module, "_kept", {})
    return found


def channel() -> Channel:
    memory: Any = Memory()
    return Channel(ChannelPlan("mini", {"record": 0, "size": 64}, frozenset()), memory, (0,), 0)


def call(made: Channel, cuda: Cuda, stream: Any) -> None:
    """One call, which is launched between following and the end of the turn."""
    with made.turn():
        made.follow(cuda.use(stream))
        cuda.log.append((stream.cuda_stream, "launches"))


def test_a_call_on_another_stream_waits_for_the_one_before(cuda: Cuda) -> None:
    made, first, second = channel(), cuda.stream(11), cuda.stream(22)
    for stream in (first, first, second, second, first):
        call(made, cuda, stream)
    assert cuda.log == [
        (11, "launches"),
        (11, "launches"),
        (22, "waits for stream", 11),
        (22, "launches"),
        (22, "launches"),
        (11, "waits for stream", 22),
        (11, "launches"),
    ]


def test_a_stream_of_others_is_never_asked_again(cuda: Cuda) -> None:
    """It may be destroyed after its call, and another may get its handle: an event was recorded behind the call."""
    made, theirs, own = channel(), cuda.stream(11, foreign=True), cuda.stream(22)
    call(made, cuda, theirs)
    again = cuda.stream(11, foreign=True)
    call(made, cuda, again)
    call(made, cuda, own)
    call(made, cuda, theirs)
    waits = [entry for entry in cuda.log if "wait" in entry[1]]
    assert waits == [
        (11, "waits for event of", 11),
        (22, "waits for event of", 11),
        (11, "waits for stream", 22),
    ]
    ends = [index for index, entry in enumerate(cuda.log) if entry == (11, "records")]
    launches = [index for index, entry in enumerate(cuda.log) if entry == (11, "launches")]
    assert all(index + 1 in ends for index in launches)
    assert (22, "records") not in cuda.log  # torch's own cost a call nothing


def test_a_call_that_fails_before_it_follows_changes_nothing(cuda: Cuda) -> None:
    """The call before it, on a stream that may be gone, is still what the next one waits for."""
    made, own = channel(), cuda.stream(22)
    call(made, cuda, cuda.stream(11, foreign=True))
    cuda.use(own)
    for turn in (made.turn(), made.turn()):
        with pytest.raises(KeyError), turn:
            raise KeyError
    with pytest.raises(ZeroDivisionError):
        made.in_turn(lambda *_: 1 // 0)([], None)  # type: ignore[arg-type, return-value]
    cuda.log.clear()
    call(made, cuda, own)
    assert cuda.log == [(22, "waits for event of", 11), (22, "launches")]


def test_the_default_stream_is_torchs_own(cuda: Cuda) -> None:
    made, default = channel(), cuda.stream(0)
    default.stream_id = 0
    call(made, cuda, default)
    call(made, cuda, cuda.stream(22))
    assert cuda.log == [(0, "launches"), (22, "waits for stream", 0), (22, "launches")]


def test_a_reset_channel_waits_for_nothing(cuda: Cuda) -> None:
    made = channel()
    call(made, cuda, cuda.stream(11, foreign=True))
    made.clear()
    cuda.log.clear()
    call(made, cuda, cuda.stream(22))
    assert cuda.log == [(22, "launches")]


def test_a_capture_waits_for_nothing_outside_and_is_not_waited_for(cuda: Cuda) -> None:
    made, first, captured = channel(), cuda.stream(11), cuda.stream(22, foreign=True)
    call(made, cuda, first)
    cuda.capturing = True
    call(made, cuda, captured)
    call(made, cuda, first)
    cuda.capturing = False
    call(made, cuda, first)
    assert cuda.log == [(11, "launches"), (22, "launches"), (11, "launches"), (11, "launches")]


@pytest.mark.parametrize("capturing", [False, True])
def test_a_capture_keeps_its_channel(cuda: Cuda, capturing: bool) -> None:
    """On the stream of the call before too: its addresses are in a graph that outlives the communicator."""
    made, stream = channel(), cuda.stream(11)
    call(made, cuda, stream)
    cuda.capturing = capturing
    call(made, cuda, stream)
    cuda.capturing = False
    assert made.captured == capturing
    memory = weakref.ref(made.memory)
    del made
    gc.collect()
    assert (memory() is not None) == capturing


def test_closing_keeps_what_graphs_use_and_frees_it_where_told_to(cuda: Cuda) -> None:
    did: list[str] = []
    shared: Any = SimpleNamespace(leave=lambda: did.append("leave"), free=lambda: did.append("free"))
    for keep in (True, False):
        memory: Any = Memory()
        made = Channel(ChannelPlan("mini", {"record": 0, "size": 64}, frozenset()), memory, (0,), 0, shared)
        cuda.capturing = True
        call(made, cuda, cuda.stream(11))
        cuda.capturing = False
        made.close(keep=keep)
        assert (made.closed, made.captured) == (True, keep)
        assert did == ([] if keep else ["leave"])
    made.free()
    made.free()
    assert did == ["leave", "free"]


def launched_in_turn(log: list[tuple[str, int]]) -> bool:
    """Whether every call that began ended before the next one began."""
    return all(
        log[at] == ("begins", who) and log[at + 1] == ("ends", who)
        for at, who in ((i, log[i][1]) for i in range(0, len(log), 2))
    )


@pytest.mark.parametrize("how", ["serve", "run"])
def test_following_and_launching_is_one_step_for_threads(
    make: ModuleType, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Else both calls follow first, and then run at the same time."""
    log: list[tuple[str, int]] = []
    made, real = channel(), Channel.follow

    def follow(self: Channel, stream: int) -> None:
        log.append(("begins", stream))
        real(self, stream)
        time.sleep(0.02)

    monkeypatch.setattr(Channel, "follow", follow)
    monkeypatch.setattr(plan, "current_stream", lambda _: cuda.current().cuda_stream)
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: cuda.current().cuda_stream)
    monkeypatch.setattr(plan, "device_query", lambda: None)
    monkeypatch.setattr(plan, "device_guard", lambda _: threading.Lock())

    class Module(make.FakeModule):  # type: ignore[misc, name-defined]
        def launcher(self, kernel: Any) -> Any:
            del kernel
            return lambda stream, _parameters, _extra: log.append(("ends", stream))

    candidate = make.candidate("control", steps={"combine": ("combine",)})
    work = make.workload(candidate)
    request = (
        make.dispatch_of(work)
        ._operator("hyper_connection")
        .request_for({**work.fields, "tokens": 1}, "combine")
    )
    both = [
        Plan(candidate, "sm_90", "combine", request.signature, GPU, Module([]), channel=made)
        for _ in range(2)
    ]
    inputs = make.tensors(kind="combine")[:3]
    buffers = {buffer.name: torch.empty(buffer.shape, dtype=torch.float16) for buffer in both[0].buffers}
    monkeypatch.setattr(plan, "_check", lambda *_: None)

    def calls(which: int) -> None:
        cuda.use(cuda.stream(11 * (which + 1)))
        for _ in range(3):
            both[which].serve(inputs, None) if how == "serve" else both[which].run(buffers)

    threads = [threading.Thread(target=calls, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 12
    assert launched_in_turn(log)
