"""Memory and streams that outlive a call; they belong to a device, a stream and a layer group.

Scratch grows and never shrinks. A buffer that a captured graph has seen stays alive for good, because the graph has
its address; when more is needed, calls outside of that graph take a new one. Nothing is made while a graph is being
captured: memory would come from the graph's own pool, and be lost to all other calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....runtime.errors import NotWarm
from .lanes import Lanes

if TYPE_CHECKING:
    import torch

MOST_EVENTS = 3 * 64 + 1
"""Of a call: three a slice, of which the specs allow 64, and one at the end."""

Key = tuple[object, int]
"""A device and the handle of a stream."""


@dataclass(eq=False)
class Scratch:
    """Scratch, streams and events of one stream of one layer group."""

    allocate: Callable[[int], torch.Tensor]
    """Gives so many bytes; on the caller's stream."""
    lanes: Lanes
    """Streams and events."""
    _buffer: torch.Tensor | None = None
    _captured: bool = False
    _kept: list[torch.Tensor] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes that it holds now."""
        return 0 if self._buffer is None else self._buffer.numel()

    def take(self, size: int, capturing: bool) -> torch.Tensor:
        """At least `size` bytes, uint8; the same memory as in the last call unless that was too small.

        Raises:
            NotWarm: more is needed than there is, and a CUDA graph is being captured.
        """
        if self._buffer is None or self._buffer.numel() < size:
            if capturing:
                raise NotWarm(
                    f"linear_all_reduce needs {size} bytes of scratch on this stream, has {self.size}, and a CUDA "
                    "graph is being captured; call it with as many rows outside of a capture before, or prepare() it"
                )
            if self._buffer is not None and self._captured:
                self._kept.append(self._buffer)
            self._buffer, self._captured = self.allocate(size), False
        self._captured |= capturing
        return self._buffer


class Pool:
    """The scratch of a layer group, by device and stream.

    One more is always preallocated, as large as what any call has needed: graphs are captured on a stream of
    their own, after a warm-up on another, and inside a capture nothing can be made.
    """

    def __init__(self, make: Callable[[], Scratch]) -> None:
        """Hold what makes a scratch for the current device and stream."""
        self._make = make
        self._taken: dict[Key, Scratch] = {}
        self._preallocated: list[Scratch] = []
        self._retired: list[Scratch] = []
        self._prepared = 0

    def take(self, key: Key, size: int, capturing: bool) -> tuple[Scratch, torch.Tensor]:
        """The scratch of a device and stream, and at least `size` bytes of it.

        Raises:
            NotWarm: a CUDA graph is being captured on a stream without scratch, or with too little, and
                none is preallocated.
        """
        scratch = self._taken.get(key)
        if capturing and (scratch is None or scratch.size < size):
            free = next((free for free in self._preallocated if free.size >= size), None)
            if free is not None:
                if scratch is not None:
                    self._retired.append(scratch)  # earlier graphs have its addresses
                self._preallocated.remove(free)
                self._prepared = 0
                scratch = self._taken[key] = free
        if scratch is None:
            if capturing:
                raise NotWarm(
                    "linear_all_reduce has no scratch for the stream that is being captured, and none preallocated; "
                    "call it once outside of a capture before, or prepare() scratch for the streams to come"
                )
            scratch = self._taken[key] = self._make()
        buffer = scratch.take(size, capturing)
        if not capturing and (not self._preallocated or self._prepared < size):
            self.prepare(size)
        return scratch, buffer

    def prepare(self, size: int, count: int = 1) -> None:
        """Preallocate scratch of at least `size` bytes for `count` streams to come; to be called before a capture."""
        while len(self._preallocated) < count:
            self._preallocated.append(self._make())
        self._prepared = max(size, self._prepared)
        for scratch in self._preallocated:
            scratch.take(self._prepared, capturing=False)

    @property
    def bytes(self) -> int:
        """Bytes that all of it holds."""
        every = [*self._taken.values(), *self._preallocated, *self._retired]
        buffers = [buffer for scratch in every for buffer in (scratch._buffer, *scratch._kept)]
        return sum(buffer.numel() for buffer in buffers if buffer is not None)
