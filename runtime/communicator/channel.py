"""A channel: memory of every rank that its peers reach, laid out by the workloads of one spec."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...table import DISAGREEMENT, OVERLAP, Table
from ..async_record import AsyncRecord
from ..current import capture_query, capturing
from ..errors import ChannelError, OtherCall, Overlap, PeerTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..direct import Serve
    from .memory import SharedMemory

RECORD_WORDS = 8
"""32-bit words of a rank's error record, the first of which counts its failures."""

CHECK_SECONDS = 0.05
"""Least time between two reads of the error record by calls; a call sees the record as the read before found it."""

_kept: dict[int, Channel] = {}
"""Channels whose addresses are in captured graphs, which may be replayed long after their communicator is gone. They
stay for the life of the process: nothing tells when a graph is gone."""


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """What a dispatch table says about the channel of a spec at one world size."""

    name: str
    """The spec's."""
    offsets: Mapping[str, int]
    """Where its parts begin, and sizes, bytes."""
    capabilities: frozenset[str]
    """What its candidates ask of the communicator."""
    waits: Mapping[int, str] = field(default_factory=dict)
    """What a rank may wait for, by its number in the error record."""

    @property
    def size(self) -> int:
        """Bytes of a rank's memory."""
        return self.offsets["size"]


def channel_plans(table: Table, world_size: int, specs: Iterable[str] | None = None) -> list[ChannelPlan]:
    """The channels that the table's workloads of a world size need.

    Args:
        specs: only these; by default all, but for channels `on_request` that no record has admitted a candidate for.

    Raises:
        ValueError: no workload of that world size belongs to a spec that was named.
    """
    works = [work for work in table.workloads if work.channel and work.fields.get("world_size") == world_size]
    found: dict[str, ChannelPlan] = {}
    for spec in dict.fromkeys(work.spec for work in works):
        mine = [work for work in works if work.spec == spec]
        candidates = [candidate for work in mine for candidate in work.candidates]
        needed = frozenset(name for candidate in candidates for name in candidate.capabilities)
        waits = table.family(mine[-1].family).waits
        found[spec] = ChannelPlan(spec, mine[-1].channel, needed, waits)
    if specs is None:
        admitted = {
            work.spec
            for work in works
            for record in work.records
            if record.verdict == "admitted"
            and any(c.capabilities and c.name == record.candidate for c in work.candidates)
        }
        return [
            plan for plan in found.values() if not plan.offsets.get("on_request") or plan.name in admitted
        ]
    unknown = [name for name in specs if name not in found]
    if unknown:
        raise ValueError(
            f"spec {', '.join(unknown)} has no channel for {world_size} ranks; specs that have one are "
            f"{', '.join(found) or 'none'}: name one of these, or generate the spec for this world size"
        )
    return [found[name] for name in specs]


class Channel:
    """The channel as the ranks of this process use it.

    Attributes:
        plan: its layout.
        memory: uint8 `[ranks here, size]`, all zeros before the first call.
        addresses: of every rank's memory, as kernels of this process reach it.
        first: the first rank of this process; the others follow.
    """

    def __init__(
        self,
        plan: ChannelPlan,
        memory: torch.Tensor,
        addresses: tuple[int, ...],
        first: int,
        shared: SharedMemory | None = None,
    ) -> None:
        """Hold memory that a backend has made: `shared`, or, where that is None, this process's alone."""
        import torch

        self.plan, self.memory, self.addresses, self.first = plan, memory, addresses, first
        self._shared = shared
        self.closed = False
        self._checked = time.monotonic()
        self._captures = capture_query() if memory.is_cuda else bool
        self._lock = threading.RLock()
        self._stream: torch.cuda.Stream | None = None
        """Where the last call went."""
        self._handle: int | None = None
        self._ended: torch.cuda.Event | None = None
        """Recorded behind every call on a stream that isn't torch's own: it may be destroyed before the next call."""
        begin = plan.offsets["record"]
        self._record = AsyncRecord(memory[:, begin : begin + 4 * RECORD_WORDS].view(torch.int32))

    @property
    def ranks(self) -> int:
        """Ranks of this process."""
        return self.memory.shape[0]

    def constants(self, timeout_ns: int) -> dict[str, bytes]:
        """The arguments of kernels that are the same for every call."""
        return {
            "channels": b"".join(address.to_bytes(8, "little") for address in self.addresses),
            "rank_base": self.first.to_bytes(4, "little"),
            "timeout_ns": timeout_ns.to_bytes(8, "little"),
        }

    def check(self) -> None:
        """Read the error records, which waits for a small copy but not for kernels.

        Raises:
            PeerTimeout: a peer didn't come.
            Overlap: two calls used the channel at the same time.
            OtherCall: a peer made another call than this rank.
        """
        self._raise(self._record.read())

    def _raise(self, records: list[list[int]]) -> None:
        self._checked = time.monotonic()
        for rank, words in enumerate(records, self.first):
            if words[0] and any(words[4:]):  # the count is written first: the next look finds the rest
                raise self._failure(rank, words)

    def check_sometimes(self) -> None:
        """Raise ChannelError if an earlier call failed, or the channel is closed; waits for nothing."""
        if self.closed:
            raise ChannelError(
                f"channel {self.plan.name} is closed; make a new communicator, and new plans with it"
            )
        if time.monotonic() - self._checked > CHECK_SECONDS and not capturing():
            self._raise(self._record.look() or [])

    def _failure(self, rank: int, words: list[int]) -> ChannelError:
        _, _, peer, waited_for, expected, seen, cta, own = words
        expected, seen = expected % 2**32, seen % 2**32
        if waited_for == OVERLAP:
            return Overlap(
                f"rank {rank} used channel {self.plan.name} in two calls at the same time (call {expected}, CTA "
                f"{cta}); use it on one stream, or give every stream a channel of its own, then call reset() on "
                "all ranks"
            )
        if waited_for == DISAGREEMENT:
            return OtherCall(
                f"rank {rank} found rank {peer} in another call on channel {self.plan.name} (call {expected}, CTA "
                f"{cta}; digest {own % 2**32:#x} here, {seen:#x} there): another kind, size or route; let all ranks "
                "make the same calls in the same order, with the same options, then call reset() on all ranks"
            )
        awaited = self.plan.waits.get(
            waited_for, f"wait {waited_for}, which the dispatch table doesn't name,"
        )
        return PeerTimeout(
            f"rank {rank} waited in vain for rank {peer} on channel {self.plan.name}: {awaited} of call "
            f"{expected} (last seen {seen}, CTA {cta}); see what that rank does, then call reset() on all ranks",
            rank=rank,
            peer=peer,
            channel=self.plan.name,
            expected=expected,
            seen=seen,
        )

    def follow(self, stream: int) -> None:
        """Serialise the channel's calls where the stream changes: the new one waits for the one before.

        Called inside a `turn` that lasts until the call is launched; `stream` is torch's current one. Inside a
        capture only what is captured too may be waited for, so that calls before it are the caller's to end; nor is
        the captured stream the one that a later call has to wait for. What is captured keeps the channel's memory.
        """
        if not self.memory.is_cuda:
            return
        if self._captures():
            self.keep()
            return
        if stream == self._handle and self._ended is None:
            return
        import torch

        with self.turn():
            now = torch.cuda.current_stream(self.memory.device)
            if self._ended is not None:
                now.wait_event(self._ended)
            elif self._stream is not None:
                now.wait_stream(self._stream)
            # Torch's own streams live for ever; only those of others are called by their handles.
            foreign = stream != 0 and now.stream_id == stream
            if not foreign:
                self._ended = None
            elif self._ended is None:
                self._ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._handle, self._stream = stream, None if foreign else now

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let no other thread call between `follow` and the last launch of a call."""
        with self._lock:
            try:
                yield
            finally:
                if self._ended is not None:
                    self._record_end()

    def in_turn(self, serve: Serve) -> Serve:
        """A plan's call that follows and launches as one step; as `turn`, at the lowest cost."""
        acquire, release = self._lock.acquire, self._lock.release  # half the cost of `with`

        def call(
            inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None, /
        ) -> Sequence[torch.Tensor]:
            acquire()
            try:
                return serve(inputs, outputs)
            finally:
                try:
                    if self._ended is not None:
                        self._record_end()
                finally:
                    release()

        return call

    def _record_end(self) -> None:
        import torch

        now = torch.cuda.current_stream(self.memory.device)
        # Of a call that failed before it followed, or was captured, nothing has to be waited for.
        if self._ended is not None and now.cuda_stream == self._handle and not self._captures():
            self._ended.record(now)

    def keep(self) -> None:
        """Keep the memory for the life of the process."""
        _kept[id(self)] = self

    @property
    def captured(self) -> bool:
        """Whether a call on the channel was captured into a CUDA graph."""
        return id(self) in _kept

    def clear(self) -> None:
        """Reset all of this process's memory of the channel; no call may be using it."""
        self.memory.zero_()
        self._record.forget()
        self._stream = self._handle = self._ended = None

    def close(self, *, keep: bool) -> None:
        """Let calls raise from now on, and leave the peers' memory.

        Args:
            keep: graphs use the channel: its memory, and the way to that of its peers, stay for the life of the
                process.
        """
        self.closed = True
        self._record.end()
        if keep:
            self.keep()
            return
        _kept.pop(id(self), None)
        if self._shared is not None:
            self._shared.leave()

    def free(self) -> None:
        """Free the memory, which all ranks have left."""
        if self._shared is not None:
            self._shared.free()
            self._shared = None
