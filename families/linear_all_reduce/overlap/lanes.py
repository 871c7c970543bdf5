"""Lanes: a pair of CUDA streams with events that are kept, or one lane where there is nothing to overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ....runtime.captures import beside_captures

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

HIGH = -1
"""Priority of a side stream: its small kernels go first wherever an SM has room."""


class Stream:
    """Work in order: the current stream, or the CPU, where nothing is to overlap, so nothing has to wait."""

    def record(self, event: Any) -> None:
        """Let `event` happen behind what has been enqueued so far."""

    def wait(self, event: Any) -> None:
        """Let what is enqueued from now on come after `event`."""

    def enqueue(self) -> AbstractContextManager[None]:
        """What is launched inside goes here."""
        return nullcontext()


class Lanes:
    """The caller's stream, and one beside it where slices are reduced: here the same, nothing overlaps."""

    side = Stream()

    @property
    def main(self) -> Stream:
        """The caller's, which is current when a call begins."""
        return self.side

    def events(self, count: int) -> Sequence[Any]:
        """So many events; they may be those of an earlier call."""
        return (None,) * count


IN_ORDER = Lanes()


class CudaStream(Stream):
    """A stream of torch."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Hold the stream."""
        self.stream = stream

    def record(self, event: torch.cuda.Event) -> None:
        """As of every stream."""
        event.record(self.stream)

    def wait(self, event: torch.cuda.Event) -> None:
        """As of every stream."""
        self.stream.wait_event(event)

    @contextmanager
    def enqueue(self) -> Iterator[None]:
        """As of every stream."""
        import torch

        with torch.cuda.stream(self.stream):
            yield


class CudaLanes(Lanes):
    """A side stream and events, made before any capture, beside whatever stream is current when a call begins."""

    def __init__(self, device: torch.device, events: int) -> None:
        """Make the side stream and so many events; each has happened once, so that none is new inside a capture."""
        import torch

        self._device = device
        with beside_captures():
            self.side = CudaStream(torch.cuda.Stream(device, priority=HIGH))  # type: ignore[no-untyped-call]
            self._events = [torch.cuda.Event() for _ in range(events)]  # type: ignore[no-untyped-call]
            for event in self._events:
                self.side.record(event)

    @property
    def main(self) -> CudaStream:
        """The current stream."""
        import torch

        return CudaStream(torch.cuda.current_stream(self._device))

    def events(self, count: int) -> Sequence[torch.cuda.Event]:
        """The first ones."""
        return self._events[:count]
