"""The channel of the tensor-parallel hyper-connection routes: where its parts lie (family text, section 4).

It follows from the workload alone, so that all candidates of a spec share one, whatever their route; it is memory
of its own, apart from any all-reduce channel. New parts are appended, so that the offsets of older ones stay.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ._hyper_connection_workload import HyperConnectionWorkload

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
PARITIES = 2
"""Slots of an exchange: even and odd generations."""
ALIGNMENT = 256
"""Bytes; no two parts share a cache line or a sector."""
TAG_BITS = 16


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
    """Where the parts of a rank's channel begin, bytes."""

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
        at = _aligned(4 * RECORD_WORDS)
        exchanges: dict[str, Exchange] = {}
        for number, (name, (counters, words)) in enumerate(parts.items()):
            exchanges[name] = Exchange(number, at, counters, words, ranks)
            at += _aligned(exchanges[name].size)
        size = at + _aligned(4 * (LARGEST_GRID - FUSED_CTAS))
        return cls(record=0, **exchanges, more_counters=at, size=size)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All of them, in the order of their numbers."""
        return (self.down, self.gates, self.outputs, self.fused)

    def initial(self, generation: int = 0) -> bytes:
        """What every rank's channel holds before its first call, which is to be `generation`.

        The slot that a generation will use has the tag of the one two before, so that nothing is mistaken for
        ready.
        """
        memory = bytearray(self.size)
        for at, words in self._counters():
            struct.pack_into(f"<{words}I", memory, at, *[generation % 2**32] * words)
        for exchange in self.exchanges:
            words = exchange.ranks * exchange.words
            for upcoming in (generation, generation + 1):
                stale = (upcoming - PARITIES) % 2**TAG_BITS << TAG_BITS
                at = exchange.words_at + upcoming % PARITIES * 4 * words
                struct.pack_into(f"<{words}I", memory, at, *[stale] * words)
        return bytes(memory)

    def _counters(self) -> Iterator[tuple[int, int]]:
        yield from ((exchange.at, exchange.counters) for exchange in self.exchanges)
        yield self.more_counters, LARGEST_GRID - FUSED_CTAS


def exchange_ctas(words: int) -> int:
    """CTAs of a kernel that only exchanges so many words of each rank."""
    return -(-words // EXCHANGE_THREADS)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
