"""The channel of the tensor-parallel hyper-connection routes: where its parts lie (docs/hyper_connection.md).

It follows from the workload alone, so that all candidates of a spec share one, whatever their route; it is memory
of its own, apart from any all-reduce channel. New parts are appended, so that the offsets of older ones stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...table import aligned
from .workload import HyperConnectionWorkload

LAYOUT_VERSION = 1
"""Version of `HyperConnectionChannel`; ranks whose layouts differ can't talk."""
RECORD_WORDS = 8
"""32-bit words of a rank's error record."""
EXCHANGE_THREADS = 256
"""Threads of a CTA of the kernels that only exchange; a thread has one word of each rank."""
FUSED_CTAS = 160
"""CTAs that the fused launch counts calls for in front of its words: those of the public schedule."""
LARGEST_GRID = 320
"""The largest grid of the fused launch; counters beyond `FUSED_CTAS` are a part of their own, the last one."""
FIRST_GENERATION = 2
"""Of a channel that is all zeros: its counters say that no call was made, its slots have the tag of generation 0."""
FIRST_NUMBER = 4
"""Numbers of the exchanges in error records begin here; smaller ones are what an all-reduce waits for."""
PARITIES = 2
"""Slots of an exchange: even and odd generations."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One kind of packet: counters of this rank alone, then words that its peers write, [parity, peer, word]."""

    number: int
    """What an error record calls it."""
    at: int
    """Offset in the channel, bytes."""
    counters: int
    """CTAs that count their calls here, 4 bytes each."""
    words: int
    """32-bit words that a rank sends to each peer: payload low, generation tag high."""
    ranks: int

    @property
    def words_at(self) -> int:
        """Where the words begin: right behind the counters."""
        return self.at + 4 * self.counters

    @property
    def size(self) -> int:
        """Bytes of counters and words."""
        return 4 * (self.counters + PARITIES * self.ranks * self.words)


@dataclass(frozen=True, slots=True)
class HyperConnectionChannel:
    """Where the parts of a rank's channel begin, bytes. A new channel is all zeros."""

    record: int
    """The first failure of this rank; its first word is 0 as long as there is none."""
    down: Exchange
    """A rank's low-rank and injection values."""
    gates: Exchange
    """Gate logits of a rank's branches (`gate_sharded`)."""
    outputs: Exchange
    """Block inputs of a rank's hidden coordinates (`hidden_sharded`)."""
    fused: Exchange
    """The same, between the CTAs of the fused launch (`fused_up_mix_gather`)."""
    more_counters: int
    """Counters of CTAs `FUSED_CTAS` to `LARGEST_GRID` - 1 of the fused launch."""
    size: int
    """Bytes of the whole channel."""

    @classmethod
    def of(cls, workload: HyperConnectionWorkload) -> HyperConnectionChannel:
        """Lay out the channel of a concrete workload whose rows can be split over its ranks."""
        ranks = workload.world_size
        gates, outputs = workload.branches // ranks * workload.hidden, workload.hidden // ranks
        parts = {
            "down": (1, workload.down_rows // ranks),
            "gates": (exchange_ctas(workload.hidden), gates),
            "outputs": (exchange_ctas(outputs), outputs),
            "fused": (FUSED_CTAS, outputs),
        }
        at = aligned(4 * RECORD_WORDS)
        exchanges: dict[str, Exchange] = {}
        for number, (name, (counters, words)) in enumerate(parts.items(), FIRST_NUMBER):
            exchanges[name] = Exchange(number, at, counters, words, ranks)
            at += aligned(exchanges[name].size)
        size = at + aligned(4 * (LARGEST_GRID - FUSED_CTAS))
        return cls(record=0, **exchanges, more_counters=at, size=size)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All of them, in the order of their numbers."""
        return (self.down, self.gates, self.outputs, self.fused)

    def offsets(self) -> dict[str, int]:
        """Give where the parts begin, and the size of all, bytes: what a communicator needs to know."""
        return {
            "record": self.record,
            "down": self.down.at,
            "gates": self.gates.at,
            "outputs": self.outputs.at,
            "fused": self.fused.at,
            "more_counters": self.more_counters,
            "size": self.size,
        }


def shards(workload: HyperConnectionWorkload) -> bool:
    """Tell whether sharded routes can serve a workload, which then has a channel."""
    ranks = workload.world_size
    sizes = (workload.hidden, workload.low_rank, workload.branches)
    return ranks > 1 and workload.tokens.max == 1 and not any(size % ranks for size in sizes)


def exchange_ctas(words: int) -> int:
    """CTAs of a kernel that only exchanges so many words of each rank."""
    return -(-words // EXCHANGE_THREADS)
