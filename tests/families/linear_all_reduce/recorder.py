"""Streams that record what is enqueued, and a clock that plays it back with any delays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Event:
    """Happens when its last record does; a wait sees the record that there was when it was enqueued."""

    record: Record | None = None


@dataclass(eq=False)
class Record:
    time: float | None = None


@dataclass(eq=False)
class Work:
    """Something that takes time on a stream."""

    what: tuple[Any, ...]
    began: float = -1.0
    ended: float = -1.0


@dataclass
class Recorded:
    """A stream; `deaf` ones forget to wait."""

    lanes: RecordedLanes
    deaf: bool = False
    entries: list[Any] = field(default_factory=list)

    def record(self, event: Event) -> None:
        event.record = Record()
        self.entries.append(event.record)

    def wait(self, event: Event) -> None:
        if not self.deaf:
            assert event.record is not None
            self.entries.append(("wait", event.record))

    @contextmanager
    def enqueue(self) -> Iterator[None]:
        before, self.lanes.current = self.lanes.current, self
        yield
        self.lanes.current = before


class RecordedLanes:
    """A pair of streams, or one."""

    def __init__(self, *, overlapped: bool = True, deaf: str = "") -> None:
        self.main = Recorded(self, deaf == "main")
        self.side = Recorded(self, deaf == "side") if overlapped else self.main
        self.current = self.main
        self._events: list[Event] = []

    def events(self, count: int) -> Sequence[Event]:
        """The same ones in every call."""
        self._events += [Event() for _ in range(count - len(self._events))]
        return self._events[:count]

    def add(self, *what: Any) -> None:
        self.current.entries.append(Work(what))

    def play(self, delays: Iterator[float]) -> list[Work]:
        """Let both streams run as early as they may; gives the work in the order of its beginning."""
        streams = [self.main] if self.side is self.main else [self.main, self.side]
        clocks, places = [0.0] * len(streams), [0] * len(streams)
        done = []
        while any(place < len(stream.entries) for stream, place in zip(streams, places, strict=True)):
            moved = False
            for index, stream in enumerate(streams):
                while places[index] < len(stream.entries):
                    entry = stream.entries[places[index]]
                    if isinstance(entry, Work):
                        entry.began = clocks[index]
                        clocks[index] = entry.ended = entry.began + next(delays)
                        done.append(entry)
                    elif isinstance(entry, Record):
                        entry.time = clocks[index]
                    elif entry[1].time is None:
                        break
                    else:
                        clocks[index] = max(clocks[index], entry[1].time)
                    places[index] += 1
                    moved = True
            assert moved, "the streams wait for each other"
        return sorted(done, key=lambda work: work.began)
