"""Lanes: a pair of CUDA streams with events that are kept, or one lane where there is nothing to overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

HIGH = -1
"""Priority of a side stream: its small kernels go first wherever an SM has room."""


class InOrder:
    """One lane, and its own stream: the current one, or the CPU. All is in order, so nothing has to wait."""

    def record(self, event: Any) -> None:
        """Nothing to do."""

    def wait(self, event: Any) -> None:
        """Nothing to do."""

    def enqueue(self) -> AbstractContextManager[None]:
        """Launch where the caller does."""
        return nullcontext()

    @property
    def main(self) -> InOrder:
        """Itself."""
        return self

    side = main

    def events(self, count: int) -> Sequence[Any]:
        """None are needed."""
        return (None,) * count


IN_ORDER = InOrder()


class CudaStream:
    """A stream of torch, as `pipeline.Stream`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Hold the stream."""
        self.stream, self.wait = stream, stream.wait_event

    def record(self, event: torch.cuda.Event) -> None:
        """As the protocol says."""
        event.record(self.stream)

    @contextmanager
    def enqueue(self) -> Iterator[None]:
        """As the protocol says."""
        import torch

        with torch.cuda.stream(self.stream):
            yield


class CudaLanes:
    """A side stream and events, made before any capture, beside whatever stream is current when a call begins."""

    def __init__(self, device: torch.device, events: int) -> None:
        """Make the side stream and so many events; each has happened once, so that none is new inside a capture."""
        import torch

        self._device = device
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
