"""What a family's schedule module answers: the kernels of a candidate and how to launch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..specs import CandidateSpec, TreeSpec, WorkloadSpec
from ..table import Launch


class NotGenerated(Exception):
    """The spec is valid, but this toolkit has no templates for what it asks for (exit status 3)."""


class ScheduleError(Exception):
    """The schedule can't be built as asked, whatever the templates (exit status 2)."""


@dataclass(frozen=True)
class Lowering:
    """A candidate turned into template, numbers and launches."""

    template: str
    constants: Mapping[str, Any]
    """Numbers for the template, all computed here: templates do no arithmetic."""
    kernels: Mapping[str, Launch]
    steps: Mapping[str, tuple[str, ...]]
    """Kernels to launch, in order, for each kind of the op."""
    scratch: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Buffers of one call."""
    state: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Buffers that the kernels keep between calls, all zeros before the first."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a family's op needs of the schedule, as plain values, if it does more than launch kernels."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments that aren't one tensor: `uint32`, `uint64`, or `pointers[4]`, a struct of so many."""
    capabilities: tuple[str, ...] = ()
    channel: Mapping[str, int] = field(default_factory=dict)
    """Layout of the memory in which ranks talk; the same for all candidates of a workload."""


class LoweringModule(Protocol):
    """A family's schedule module (`generator/families/<family>.py`).

    It may also have `FUNCTIONS`, more functions of the dispatch module by the op's methods, and
    `parts(spec, workload)`, which splits the workload's interval by the spec's thresholds.
    """

    def lower(self, workload: WorkloadSpec, candidate: CandidateSpec) -> Lowering:
        """Kernels and launches, the same on every architecture that the candidate lists.

        Raises:
            NotGenerated, ScheduleError: where there is nothing to launch.
        """


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
