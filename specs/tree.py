"""Reduction trees: the order in which a dot product is added up (docs/numerics.md#reduction-trees)."""

from __future__ import annotations

from dataclasses import dataclass

from ..table import MAX_LANES, legal_lanes
from .errors import shown

MAX_COUNT = 2**31 - 1
"""No number of a spec is larger: kernels count and index with 32-bit integers."""


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """`[segments, lanes, chunk]`: part of the workload, because it fixes the bits of the result.

    Raises:
        ValueError: a number isn't positive or the lanes aren't legal; the text is a sentence.
    """

    segments: int
    """Equal contiguous parts of K, reduced independently and then added in order."""
    lanes: int
    """Partial sums of a segment."""
    chunk: int
    """Consecutive elements that one lane takes at a time."""

    def __post_init__(self) -> None:
        if self.segments < 1 or self.chunk < 1:
            raise ValueError(
                f"found {self.segments} segments and a chunk of {self.chunk}; a tree has at least 1 of each."
            )
        if not legal_lanes(self.lanes):
            raise ValueError(
                f"found {self.lanes} lanes; allowed are powers of two up to 32 "
                f"and multiples of 32 up to {MAX_LANES}."
            )

    @classmethod
    def parse(cls, value: object) -> TreeSpec:
        """Read the TOML form `[segments, lanes, chunk]`.

        Raises:
            ValueError: it isn't a list of three integers, or not a legal tree.
        """
        if isinstance(value, TreeSpec):
            return value
        if not isinstance(value, list | tuple) or len(value) != 3 or any(type(n) is not int for n in value):
            raise ValueError(
                f"found {shown(value)}; a tree is three whole numbers, [segments, lanes, chunk]."
            )
        if max(value) > MAX_COUNT:
            raise ValueError(f"found {shown(value)}; the numbers of a tree are at most {MAX_COUNT}.")
        return cls(*value)

    def to_list(self) -> list[int]:
        """Give the TOML form, `[segments, lanes, chunk]`."""
        return [self.segments, self.lanes, self.chunk]

    def check(self, k: int) -> str | None:
        """Say in a sentence why this tree can't reduce `k` elements; None if it can."""
        step = self.segments * self.chunk
        if k % step == 0:
            return None
        return (
            f"segments {self.segments} x chunk {self.chunk} = {step} doesn't divide the length, {k}; "
            "segments x chunk must divide it."
        )

    def __str__(self) -> str:
        return f"[{self.segments}, {self.lanes}, {self.chunk}]"


@dataclass(frozen=True)
class TreeShape:
    """A reduction tree applied to a length: the numbers a kernel needs (docs/numerics.md#reduction-trees)."""

    segments: int
    lanes: int
    chunk: int
    group: int
    """Lanes of one butterfly."""
    groups: int
    """Butterflies of a segment, whose results are added in order."""
    segment: int
    """Elements of a segment."""
    chunks: int
    """Chunks of a segment."""
    steps: int
    """Rounds in which the lanes take one chunk each."""
    idle_lanes: bool
    """In the last step some lanes have no chunk."""
    load_bytes: int
    """Widest word that divides a chunk, at most 16 bytes."""

    @classmethod
    def of(cls, tree: TreeSpec, length: int, element_bytes: int = 2) -> TreeShape:
        """Apply `tree` to rows of `length` elements; the spec has checked that it divides them."""
        segment = length // tree.segments
        chunks = segment // tree.chunk
        group = min(tree.lanes, 32)
        chunk_bytes = tree.chunk * element_bytes
        return cls(
            segments=tree.segments,
            lanes=tree.lanes,
            chunk=tree.chunk,
            group=group,
            groups=tree.lanes // group,
            segment=segment,
            chunks=chunks,
            steps=-(-chunks // tree.lanes),
            idle_lanes=chunks % tree.lanes != 0,
            load_bytes=min(16, chunk_bytes & -chunk_bytes),
        )
