"""Family `all_reduce`: the sum of all ranks' payloads in symmetric memory (docs/all_reduce.md).

All routes give the same bits on every rank; they differ in the rank that moves the data, and in how ranks wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...specs.base import Count, raise_findings
from ...specs.errors import Finding
from ...specs.external import External
from ...specs.spec import CandidateSpec, ScheduleValues, Spec, WorkloadSpec
from .threshold import Threshold, threshold_findings
from .workload import CHANNEL_CTAS, AllReduceWorkload, ChannelLayout

__all__ = [
    "SPEC",
    "AllReduceSpec",
    "AllReduceWorkload",
    "ChannelLayout",
    "Collective",
    "OneStage",
    "TaggedWords",
    "Threshold",
    "TwoStage",
]

WARP = 32
MAX_THREADS = 1024
MAX_LOADS = 32


class Collective(CandidateSpec):
    """What all routes share: a grid of fixed size that strides over words."""

    ctas: Annotated[Count, Field(le=CHANNEL_CTAS)]
    """CTAs of a rank. All of them wait for peers, so all ranks of one GPU must fit on it at once."""
    threads: Annotated[Count, Field(le=MAX_THREADS)]
    """Threads of a CTA."""
    word_bytes: Literal[8, 16] = 16
    """Bytes of a word as it is loaded, or pushed to a peer."""
    loads_in_flight: Annotated[Count, Field(le=MAX_LOADS)] = 8
    """Words that a thread loads before it uses the first, those of all ranks counted."""

    KERNELS: ClassVar[tuple[str, ...]] = ("symmetric", "staged", "sum2")

    def schedule(self) -> ScheduleValues:
        """Give the route, the grid and the width of a word."""
        return {
            "route": self.route,
            "ctas": self.ctas,
            "threads": self.threads,
            "word_bytes": self.word_bytes,
            "loads_in_flight": self.loads_in_flight,
        }

    def payload_word_bytes(self) -> int:
        """Bytes of payload in a word."""
        return self.word_bytes

    def _own_problems(self) -> Iterator[Finding]:
        yield from super()._own_problems()
        if self.threads % WARP:
            yield Finding(
                ("threads",), f"found {self.threads}; a CTA has whole warps, so take a multiple of {WARP}."
            )


class TaggedWords(Collective):
    """Every rank pushes its payload to all peers, each 4 bytes with their epoch; there is no barrier."""

    route: Literal["tagged_words"]

    def payload_word_bytes(self) -> int:
        """Bytes of payload in a word: the other half are epochs."""
        return self.word_bytes // 2

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a channel without packets."""
        assert isinstance(workload, AllReduceWorkload)
        if workload.packet_bytes == 0:
            message = (
                'route "tagged_words" needs packets in the channel, but packet_bytes is 0; state '
                "workload.packet_bytes, the largest payload that this route takes."
            )
            yield Finding(("route",), message)


class OneStage(Collective):
    """Every rank reads the payloads of all and adds them."""

    route: Literal["one_stage"]


class TwoStage(Collective):
    """Every rank adds one part of the payload, then reads the other parts' sums from its peers."""

    route: Literal["two_stage"]

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find payloads of less than a word a rank."""
        assert isinstance(workload, AllReduceWorkload)
        needed = workload.world_size * self.word_bytes
        if workload.capacity < needed:
            message = (
                f"the largest payload has {workload.capacity} bytes, less than a word of {self.word_bytes} for each "
                f"of {workload.world_size} ranks ({needed}); take one_stage, or raise payload_bytes.max."
            )
            yield Finding(("route",), message)


AllReduceRoute = Annotated[TaggedWords | OneStage | TwoStage | External, Field(discriminator="route")]


class AllReduceSpec(Spec):
    """A spec file of this family."""

    family: Literal["all_reduce"]
    workload: AllReduceWorkload
    """What is computed."""
    candidate: Annotated[tuple[AllReduceRoute, ...], Field(min_length=1)]
    """How it may be computed; the first is the control."""
    threshold: tuple[Threshold, ...] = ()
    """From which payload on a route is taken; needed where the candidates have several routes."""

    @model_validator(mode="after")
    def _rules(self) -> Self:
        routes = tuple(dict.fromkeys(candidate.route for candidate in self.candidate))
        raise_findings(
            [
                *self.findings(self.workload, dict(enumerate(self.candidate))),
                *dict.fromkeys(threshold_findings(self.threshold, self.workload.expand(), routes)),
            ]
        )
        return self


SPEC = AllReduceSpec
