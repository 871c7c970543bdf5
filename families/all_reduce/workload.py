"""The workload of an `all_reduce` spec: payloads and ranks, and their channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ...specs.base import DTYPE_BYTES, Count, IntervalSpec, Size, as_list, one_or_several
from ...specs.errors import Finding
from ...specs.spec import WorkloadSpec
from ...specs.tree import TreeSpec
from ...table import FieldValue, laid_out

WorldSizes = Literal[2, 4, 8]

LAYOUT_VERSION = 3
"""Version of `ChannelLayout`; ranks whose layouts differ can't talk."""
CHANNEL_CTAS = 256
"""Flags of each barrier of a rank: the largest grid that a channel serves."""
BARRIERS = 2
"""Barriers of a call: at its start, and behind its reads or its first stage."""
RECORD_WORDS = 8
"""32-bit words of a rank's error record."""
INPUT_SLOTS = 2
"""Inputs that a producer may hold at once; they never alias."""
PARITIES = 2
"""Flags, and slots of what a kernel itself writes for its peers: odd and even epochs."""
WORD = 16
"""Bytes of the widest load: views of an input begin at a multiple of it."""
MAX_PAYLOAD = 2**29
"""Bytes; kernels count elements with 32 bits."""


class AllReduceWorkload(WorkloadSpec):
    """The sum over all ranks of payloads of one size, in FP32, in rank order, rounded once (docs/numerics.md)."""

    world_sizes: Annotated[
        tuple[WorldSizes, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="world_size"),
        one_or_several(WorldSizes),
    ]
    """Number of ranks, or a list of them."""
    widths: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Elements of a row, a number for each tensor of the payload: [3584, 7168] is [M, 3584] and [M, 7168]."""
    payload_bytes: IntervalSpec
    """Bytes that a rank contributes to one call; the most is the channel's capacity."""
    packet_bytes: Size = 0
    """Largest payload that may travel as tagged words, bytes; the channel keeps packets for it."""

    family: ClassVar[str] = "all_reduce"
    SHORT_FORM: ClassVar[Mapping[str, str]] = {"w": "width", "b": "payload_bytes", "tp": "world_size"}

    @property
    def width(self) -> int:
        """Elements of a row of the whole payload."""
        return sum(self.widths)

    @property
    def capacity(self) -> int:
        """Bytes of the largest payload."""
        return self.payload_bytes.max

    def fields(self) -> dict[str, FieldValue]:
        """Give the fields of a concrete workload as plain values."""
        return {
            "dtype": self.dtype,
            "width": self.width,
            "widths": "+".join(map(str, self.widths)),
            "payload_bytes": (self.payload_bytes.min, self.payload_bytes.max),
            "packet_bytes": self.packet_bytes,
            "world_size": self.world_size,
        }

    def trees(self) -> dict[str, TreeSpec]:
        """Give no tree: the order of the ranks is the order of the sum."""
        return {}

    def problems(self) -> Iterator[Finding]:
        """Find payloads that aren't whole elements, and packets that don't fit."""
        element = DTYPE_BYTES[self.dtype]
        for end in ("min", "max"):
            size = getattr(self.payload_bytes, end)
            if size % element:
                message = f"{size} bytes aren't whole elements of {self.dtype}; take a multiple of {element}."
                yield Finding(("payload_bytes", end), message)
        if self.capacity > MAX_PAYLOAD:
            message = (
                f"the largest payload has {self.capacity} bytes; a channel carries {MAX_PAYLOAD} at most."
            )
            yield Finding(("payload_bytes", "max"), message)
        row = self.width * element
        if row > self.capacity:
            message = (
                f"one row has {row} bytes in {self.dtype}, more than the largest payload, {self.capacity}."
            )
            yield Finding(("payload_bytes", "max"), message)
        if self.packet_bytes % WORD or self.packet_bytes > self.capacity:
            message = (
                f"found {self.packet_bytes}; it must be a multiple of {WORD}, and at most the largest payload, "
                f"{self.capacity} bytes."
            )
            yield Finding(("packet_bytes",), message)


def meeting_parts(ranks: int) -> dict[str, int]:
    """Bytes of what ranks meet by, in the order of `ChannelLayout`, where it is explained."""
    return {
        "ticket": 8,
        "departures": 4,
        "record": 4 * RECORD_WORDS,
        "flags": 8 * PARITIES * BARRIERS * CHANNEL_CTAS * ranks,
    }


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """Where the parts of a rank's channel begin, bytes. It follows from the workload: all candidates share it.

    A new channel is all zeros; epoch 0 is never used, so that zero means "not written yet".
    """

    ticket: int
    """64 bits: which call is inside, below the epoch of the last one; this rank's alone."""
    departures: int
    """CTAs that have left their call; a whole call adds `CHANNEL_CTAS`, whatever its grid."""
    record: int
    """The first failure of this rank; its first word is 0 as long as there is none."""
    flags: int
    """[parity, barrier, CTA, peer], 64 bits: epoch and digest of the call where the peer's CTA is; peers write it."""
    packets: int
    """[parity, peer]: payloads as tagged words, twice as long as their data; peers write them."""
    staged: int
    """[parity]: what this rank contributes to a call that copies its input in; peers read it."""
    scratch: int
    """This rank's part of a sum in two stages; peers read it."""
    inputs: int
    """[slot]: what a producer writes for a call without a copy; peers read it."""
    capacity: int
    """Bytes of an input or staged payload, rounded up to whole words."""
    packet: int
    """Bytes of one packet."""
    size: int
    """Bytes of the whole channel."""

    @classmethod
    def of(cls, workload: AllReduceWorkload) -> ChannelLayout:
        """Lay out the channel of a concrete workload."""
        ranks = workload.world_size
        capacity, packet = _whole_words(workload.capacity), 2 * workload.packet_bytes
        parts = {
            **meeting_parts(ranks),
            "packets": PARITIES * ranks * packet,
            "staged": PARITIES * capacity,
            "scratch": _whole_words(-(-capacity // ranks)),
            "inputs": INPUT_SLOTS * capacity,
        }
        offsets, size = laid_out(parts)
        return cls(**offsets, capacity=capacity, packet=packet, size=size)


def _whole_words(size: int) -> int:
    return -(-size // WORD) * WORD
