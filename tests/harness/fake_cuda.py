"""CUDA on a machine without it, while another thread captures: what the driver would refuse raises, and is noted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.runtime import captures, extended_launch

RELAXED = 2
SIDE, DEFAULT, CURRENT = 0x51DE, 0, 0x7777
"""Handles: of the stream that `side_stream` makes, torch's default one, and that of the test's thread."""


class FakeCuda:
    """Stands for the driver's library and for `torch.cuda`.

    Attributes:
        log: what was done on streams, in order.
        refused: unsafe calls of threads whose capture mode wasn't relaxed; each of them invalidates the capture.
        capture: the number of the capture that the test's stream is in; None outside of one.
    """

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.refused: list[str] = []
        self.capture: int | None = None
        self._thread = threading.local()

    # ---- the driver ----

    @property
    def mode(self) -> int:
        """The thread's mode; 0 is the default one, global."""
        return getattr(self._thread, "mode", 0)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        before, self._thread.mode = self.mode, mode._obj.value
        mode._obj.value = before
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream: Any, status: Any, number: Any, *rest: None) -> int:
        assert (stream.value, rest) == (CURRENT, (None,) * 3)
        status._obj.value, number._obj.value = self.capture is not None, self.capture or 0
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, index: int) -> int:
        context._obj.value = 0xC0 + index
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self._thread.context = context.value
        return 0

    def cuCtxPopCurrent_v2(self, _context: Any) -> int:
        self._thread.context = None
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        assert flags == captures.NON_BLOCKING
        assert self._thread.context == 0xC0 + 3
        self.unsafe("make a stream")
        stream._obj.value = SIDE
        return 0

    def unsafe(self, what: str) -> None:
        """What may wait for the device."""
        if self.mode != RELAXED:
            self.refused.append(what)
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    # ---- torch.cuda ----

    def current_stream(self, _device: Any = None) -> Stream:
        return Stream(self, getattr(self._thread, "stream", self._own()))

    def _own(self) -> int:
        return CURRENT if threading.current_thread() is threading.main_thread() else DEFAULT

    def set_stream(self, stream: Stream) -> None:
        self._thread.stream = stream.cuda_stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self.set_stream(stream)
        yield
        self.set_stream(before)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        assert torch.device(device).index == 3
        yield

    @contextmanager
    def device_of(self, index: int) -> Iterator[None]:
        """What takes the place of `cupy.cuda.Device`."""
        assert index == 3
        yield

    def memory(self, how: str) -> Any:
        """What takes the place of `torch.empty` and `torch.zeros`."""
        make = getattr(torch, how)

        def allocate(*shape: Any, **options: Any) -> Any:
            if options.pop("pin_memory", False):
                self.unsafe("pin memory")
            elif torch.device(options.get("device", "cpu")).type == "cuda":
                self.unsafe("allocate")
                self.log.append((how, self.current_stream().cuda_stream))
            return Memory(self, make(*shape, **options | {"device": "cpu"}))

        return allocate

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(extended_launch, "driver", lambda: self)
        monkeypatch.setattr(torch, "empty", self.memory("empty"))
        monkeypatch.setattr(torch, "zeros", self.memory("zeros"))
        cuda = SimpleNamespace(
            current_stream=self.current_stream,
            default_stream=lambda _device=None: Stream(self, DEFAULT),
            set_stream=self.set_stream,
            stream=self.stream,
            device=self.device,
            ExternalStream=lambda handle, _device: Stream(self, handle),
            Event=lambda: Event(self),
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.capture is not None,
        )
        monkeypatch.setattr(torch, "cuda", cuda)
        captures.side_stream.cache_clear()


class Stream:
    """A stream of device 3."""

    device = torch.device("cuda", 3)

    def __init__(self, cuda: FakeCuda, handle: int) -> None:
        self._cuda, self.cuda_stream = cuda, handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return self.cuda_stream

    def wait_stream(self, other: Stream) -> None:
        self._cuda.log.append((self.cuda_stream, "waits for", other.cuda_stream))

    def synchronize(self) -> None:
        self._cuda.unsafe("wait for a stream")
        self._cuda.log.append(("ended", self.cuda_stream))


class Event:
    """An event; what it was recorded behind has ended."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def record(self) -> None:
        self._cuda.log.append(("recorded", self._cuda.current_stream().cuda_stream))

    def query(self) -> bool:
        self._cuda.unsafe("query an event")
        return True

    def synchronize(self) -> None:
        self._cuda.unsafe("wait for an event")


class Memory:
    """Memory on the device, or pinned memory: a tensor of the CPU underneath."""

    is_cuda = True
    device = Stream.device

    def __init__(self, cuda: FakeCuda, tensor: torch.Tensor) -> None:
        self._cuda, self.tensor = cuda, tensor
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def tolist(self) -> Any:
        return self.tensor.tolist()

    def copy_(self, other: Memory, non_blocking: bool) -> None:
        assert non_blocking
        self._cuda.log.append(("copied", self._cuda.current_stream().cuda_stream))
        self.tensor.copy_(other.tensor)

    def zero_(self) -> Memory:
        self._cuda.log.append(("zeroed", self._cuda.current_stream().cuda_stream))
        self.tensor.zero_()
        return self

    def record_stream(self, stream: Stream) -> None:
        self._cuda.log.append(("kept for", stream.cuda_stream))


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """CUDA without a GPU, on device 3."""
    found = FakeCuda()
    found.install(monkeypatch)
    yield found
    captures.side_stream.cache_clear()
