"""Route `wgmma`: both projections by products of whole warpgroups, for tens to thousands of tokens.

It is under a tolerance, as `tensor_core` is: `segments` is all of the order of a sum that can be stated. Weights and
inputs of a product lie in shared memory, and the gates of up are mixed in the registers in which they come out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ....specs.base import Count, ToleranceSpec
from ....specs.errors import Finding, listing
from ....specs.spec import CandidateSpec, ScheduleValues, WorkloadSpec
from ....specs.tree import TreeShape, TreeSpec
from ..workload import HyperConnectionWorkload
from .limits import check_norm, unfit

ARCHS = ("sm_90a",)
"""Targets that have `wgmma`."""
BLOCK = 64
"""Columns of a block: 128 bytes of a row."""
ROW_BYTES = 128
TILE_ALIGNMENT = 1024
GROUP_TOKENS = 64
"""Tokens of a warpgroup's product."""
COORDINATES = 32
"""Hidden coordinates of a tile of up: a thread then has eight in a row."""
MOST_COLUMNS = 256
"""Of a product."""
NORM_CHUNK = 8
"""Elements that a thread of the norm takes at once."""
SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory of a CTA."""


class Wgmma(CandidateSpec):
    """Down and up projection by `wgmma`; combine and norm are those of `replicated`, one launch behind the other."""

    route: Literal["wgmma"]
    contract: Literal["exact", "tolerance"] = "tolerance"
    """Always "tolerance"."""
    tolerance: ToleranceSpec | None = None
    """Against FP64 with the contract's rounding points, of every tensor that is stored; to be stated."""
    segments: Count = 20
    """CTAs that share the columns of a down row. It decides the order of the sum."""
    row_tile: Annotated[Count, Field(multiple_of=8, le=MOST_COLUMNS)] = 56
    """Rows of the down weight that a CTA takes."""
    groups: Annotated[Count, Field(le=4)] = 1
    """Warpgroups of a CTA of down, each of which takes 64 tokens."""
    stages: Annotated[Count, Field(ge=3, le=16)] = 6
    """Blocks of 64 columns that a CTA of down has room for; all but two are on their way."""
    up_groups: Annotated[Count, Field(le=3)] = 2
    """Warpgroups of a CTA of up; they share its weights, and take 64 tokens each in turn."""
    up_ctas: Count = 132
    """CTAs of up, which share the tiles of tokens and coordinates evenly."""
    norm_lanes: Count | None = None
    """Threads that normalise a branch of a token; None: the lanes of the workload's tree. 32 need no barrier."""

    KERNELS: ClassVar[tuple[str, ...]] = (
        "combine_norm",
        "norm",
        "combine",
        "down",
        "down_final",
        "finish",
        "finish_final",
        "up_mix",
    )

    def schedule(self) -> ScheduleValues:
        """Give the route, its options, and the bounds: a text is proven under the bounds that it states."""
        bounds = {} if self.tolerance is None else self.tolerance.model_dump(exclude_none=True)
        own = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name not in CandidateSpec.model_fields
        }
        return {**own, "tolerance": bounds}

    def norm_tree(self, workload: HyperConnectionWorkload) -> TreeSpec:
        """The tree of the sum of squares."""
        return (
            workload.trees()["norm"] if self.norm_lanes is None else TreeSpec(1, self.norm_lanes, NORM_CHUNK)
        )

    def blocks(self, workload: HyperConnectionWorkload) -> int:
        """Blocks of a segment of down."""
        return workload.branches * workload.hidden // (BLOCK * self.segments)

    def weight_bytes(self) -> int:
        """Of a block of down's weights in shared memory."""
        return -(-self.row_tile * ROW_BYTES // TILE_ALIGNMENT) * TILE_ALIGNMENT

    def down_bytes(self) -> int:
        """Shared memory of a CTA of down."""
        return TILE_ALIGNMENT + self.stages * (self.groups * GROUP_TOKENS * ROW_BYTES + self.weight_bytes())

    def up_bytes(self, workload: HyperConnectionWorkload) -> int:
        """Shared memory of a CTA of up."""
        rows = workload.branches * COORDINATES + self.up_groups * GROUP_TOKENS
        return TILE_ALIGNMENT + workload.low_rank // BLOCK * rows * ROW_BYTES

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a shape that tiles don't divide, and options that need more than a CTA has."""
        assert isinstance(workload, HyperConnectionWorkload)
        for name, size, unit in (
            ("hidden", workload.hidden, COORDINATES),
            ("low_rank", workload.low_rank, BLOCK),
            ("branches * hidden", workload.branches * workload.hidden, self.segments * BLOCK),
        ):
            if size % unit:
                yield Finding(
                    ("route",), f'route "wgmma" needs {name} to be a multiple of {unit}; it is {size}.'
                )
                return
        tree = self.norm_tree(workload)
        message = tree.check(workload.hidden)
        if message and self.norm_lanes is not None:
            yield Finding(("norm_lanes",), message)
        elif not message:
            yield from unfit(lambda: check_norm(TreeShape.of(tree, workload.hidden)))
        if workload.branches * COORDINATES > MOST_COLUMNS:
            most = MOST_COLUMNS // COORDINATES
            yield Finding(
                ("route",), f'route "wgmma" serves {most} branches at most; there are {workload.branches}.'
            )
        if self.blocks(workload) < self.stages - 2:
            message = (
                f"{self.stages} stages need {self.stages - 2} blocks of {BLOCK} columns or more in a segment, "
                f"which has {self.blocks(workload)}: lower stages or segments."
            )
            yield Finding(("stages",), message)
        for key, needed, remedy in (
            ("stages", self.down_bytes(), "lower stages, row_tile or groups"),
            ("up_groups", self.up_bytes(workload), "lower up_groups"),
        ):
            if needed > SHARED_LIMIT:
                message = (
                    f"a CTA would need {needed} bytes of shared memory; {SHARED_LIMIT} are allowed: {remedy}."
                )
                yield Finding((key,), message)

    def _own_problems(self) -> Iterator[Finding]:
        yield from super()._own_problems()
        if self.contract == "exact":
            message = (
                'found "exact"; no specification states the order in which tensor cores add: drop this key.'
            )
            yield Finding(("contract",), message)
        others = [arch for arch in self.arch if arch not in ARCHS]
        if others:
            yield Finding(("arch",), f"{listing(others)} lacks wgmma; this route is for {listing(ARCHS)}.")
