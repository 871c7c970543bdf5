"""Route `tensor_core`: both projections by `mma`, for a few hundred tokens.

It is under a tolerance, because no specification states the order in which tensor cores add. The options here
fix the rest of that order, so that a token has the same bits in every batch, whatever the other tokens are: a row's
sum is cut into `segments` x `warps` parts, whose sums are added in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ....specs.base import Count, ToleranceSpec
from ....specs.errors import Finding, listing
from ....specs.spec import CandidateSpec, ScheduleValues, WorkloadSpec
from ..workload import HyperConnectionWorkload
from .limits import check_norm, trees_of, unfit

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120")
"""Targets that have `mma.m16n8k16` for FP16 and BF16."""
TILE_ROWS = 16
"""Rows of weights in an `mma`."""
TILE_TOKENS = 8
"""Tokens in an `mma`."""
STEP = 32
"""Columns of a step: a lane's 16 bytes of a row are two `mma` deep."""
MOST_TOKENS = 1024
HELD_LIMIT = 128
"""32-bit words of weights that a thread holds while it goes through the tokens."""
SHARED_LIMIT = 96 * 1024
"""Bytes of shared memory of a CTA, on every one of the targets."""
STATIC_SHARED_LIMIT = 48 * 1024
PADDING = 4
"""Floats behind the rows of a token in shared memory: a warp then stores to 32 different banks."""


class TensorCore(CandidateSpec):
    """Down and up projection on tensor cores, weights in registers; combine and norm are those of `replicated`."""

    route: Literal["tensor_core"]
    contract: Literal["exact", "tolerance"] = "tolerance"
    """Always "tolerance"."""
    tolerance: ToleranceSpec | None = None
    """Against FP64 with the contract's rounding points, of every tensor that is stored; to be stated."""
    segments: Count = 8
    """CTAs that share the columns of a down row. It decides the order of the sum: keep it the same for all tokens."""
    warps: Annotated[Count, Field(le=16)] = 8
    """Warps of a CTA of down, which share the columns once more. It decides the order as well."""
    row_tiles: Annotated[Count, Field(le=4)] = 1
    """Times 16 rows of down that a CTA takes: with more, the activations are read less often."""
    tokens_per_cta: Count | None = None
    """Tokens that a CTA takes, a multiple of 8: with more, weights are read less often. Default: 16 to 64."""

    KERNELS = ("combine_norm", "norm", "combine", "down", "down_final", "finish", "finish_final", "up_mix")

    def schedule(self) -> ScheduleValues:
        """Give the route, its options, and the bounds: a text is proven under the bounds that it states."""
        bounds = {} if self.tolerance is None else self.tolerance.model_dump(exclude_none=True)
        return {
            "route": self.route,
            "segments": self.segments,
            "warps": self.warps,
            "row_tiles": self.row_tiles,
            "tokens_per_cta": self.tokens_per_cta,
            "tolerance": bounds,
        }

    def tokens_at_once(self, workload: HyperConnectionWorkload) -> int:
        """Tokens that a CTA takes."""
        if self.tokens_per_cta is not None:
            return self.tokens_per_cta
        # Two tiles at least: without a loop over them the compiler loads weights one by one, where they are used.
        return min(max(2, -(-workload.tokens.max // TILE_TOKENS)) * TILE_TOKENS, 64)

    def steps(self, workload: HyperConnectionWorkload) -> int:
        """Steps of a warp of down."""
        return workload.branches * workload.hidden // (self.segments * self.warps * STEP)

    def sum_bytes(self, workload: HyperConnectionWorkload) -> int:
        """Shared memory in which the warps of down leave their sums."""
        rows = self.row_tiles * TILE_ROWS + PADDING
        return self.warps * self.tokens_at_once(workload) * rows * 4

    def gate_bytes(self, workload: HyperConnectionWorkload) -> int:
        """Shared memory in which the branches of up leave their gates."""
        return workload.branches * self.tokens_at_once(workload) * (TILE_ROWS + PADDING) * 4

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a shape that tiles don't divide, and options that need more than a CTA has."""
        assert isinstance(workload, HyperConnectionWorkload)
        for name, size, unit in (
            ("hidden", workload.hidden, TILE_ROWS),
            ("low_rank", workload.low_rank, STEP),
            ("branches * hidden", workload.branches * workload.hidden, self.segments * self.warps * STEP),
        ):
            if size % unit:
                yield Finding(
                    ("route",), f'route "tensor_core" needs {name} to be a multiple of {unit}; it is {size}.'
                )
                return
        if workload.tokens.max > MOST_TOKENS:
            message = f'route "tensor_core" serves up to {MOST_TOKENS} tokens; tokens is up to {workload.tokens.max}.'
            yield Finding(("route",), message)
        if workload.branches > 32:
            yield Finding(
                ("route",), f"every branch has a warp of up_mix, 32 at most; there are {workload.branches}."
            )
        yield from self._capacity(workload)
        yield from unfit(lambda: check_norm(trees_of(workload)["norm"]))

    def _capacity(self, workload: HyperConnectionWorkload) -> Iterator[Finding]:
        per_step = 2 * 4  # two rows of a tile, 16 bytes each
        for key, held, remedy in (
            (
                "row_tiles",
                self.row_tiles * self.steps(workload) * per_step,
                "lower row_tiles or raise segments",
            ),
            ("route", workload.low_rank // STEP * per_step, "take another route for so large a low_rank"),
        ):
            if held > HELD_LIMIT:
                message = f"a thread would hold {held} words of weights; {HELD_LIMIT} are allowed: {remedy}."
                yield Finding((key,), message)
        at_once = self.tokens_at_once(workload)
        for kernel, needed, limit in (
            ("down", self.sum_bytes(workload), SHARED_LIMIT),
            ("up_mix", self.gate_bytes(workload), STATIC_SHARED_LIMIT),
        ):
            if needed > limit:
                message = (
                    f"{at_once} tokens of a CTA of {kernel} need {needed} bytes of shared memory; "
                    f"{limit} are allowed: lower tokens_per_cta{' or row_tiles' if kernel == 'down' else ''}."
                )
                yield Finding(("tokens_per_cta",), message)

    def _own_problems(self) -> Iterator[Finding]:
        yield from super()._own_problems()
        if self.contract == "exact":
            message = (
                'found "exact"; no specification states the order in which tensor cores add: drop this key.'
            )
            yield Finding(("contract",), message)
        old = [arch for arch in self.arch if arch not in ARCHS]
        if old:
            yield Finding(
                ("arch",), f"{listing(old)} lacks mma.m16n8k16; this route is for {listing(ARCHS)}."
            )
        if self.tokens_per_cta is not None and self.tokens_per_cta % TILE_TOKENS:
            message = (
                f"found {self.tokens_per_cta}; an mma takes {TILE_TOKENS} tokens, so take a multiple of that."
            )
            yield Finding(("tokens_per_cta",), message)
