"""Routes for Hopper at N = 1: weights come to shared memory while the kernels before them still run.

They use programmatic dependent launch, bulk copies and mbarriers, which sm_90 was the first to have.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, TypeVar

from ....specs.base import Count, Flag, Model, Size
from ....specs.errors import Finding, listing
from ....specs.spec import CandidateSpec, ScheduleValues, WorkloadSpec
from ....specs.tiling import TilingError
from ..workload import HyperConnectionWorkload
from .hopper_layout import (
    EXTRA_WARPS,
    DownLayout,
    Staging,
    UpLayout,
    down_layout,
    staging,
    unsuited,
    up_layout,
)

ARCHS = ("sm_90", "sm_90a", "sm_100a")
"""Targets that have what these routes use; sm_120 lacks the shared memory."""
SMALLEST_EPS = 2.0**-70
"""Below it the root's argument leaves the range on which the seeded functions equal IEEE arithmetic."""


_Layout = TypeVar("_Layout", DownLayout, UpLayout)


class DownOptions(Model):
    """How combine, norm and down are spread."""

    rows_per_cta: Count | None = None
    """Rows that a CTA takes of one branch. Default: as few as its branch's CTAs need."""
    rows_at_once: Count | None = None
    """Rows that a thread has in registers at the same time. Default: as many as fit, up to 12."""
    converted: Size | None = None
    """Of those, rows whose weights are converted to FP32 before the wait. Default: 3."""


class LaunchedDownOptions(DownOptions):
    """The same for a launch of its own."""

    ctas: Count = 132
    """CTAs; each serves one branch."""
    threads: Count | None = None
    """Threads of a CTA: one for each lane of the norm's tree, or a multiple, and 64."""


class UpOptions(Model):
    """How up and mix are spread."""

    columns_per_cta: Count | None = None
    """Hidden coordinates that a CTA mixes. Default: as few as its warps and CTAs allow."""
    columns_at_once: Count | None = None
    """Hidden coordinates, with all branches, that a warp has in registers. Default: up to 12 rows of them."""
    converted: Size | None = None
    """Of a lane's chunks of those rows, how many are converted to FP32 before the low rank is known. Default: 20."""
    copies: Count | None = None
    """Bulk copies of each branch's rows. Default: 2."""


class LaunchedUpOptions(UpOptions):
    """The same for a launch of its own."""

    ctas: Count = 132
    """CTAs at most: it has as many as its columns need."""
    threads: Count = 384
    """Threads of a CTA: warps that compute, and 64."""


class Prefetched(CandidateSpec):
    """What both routes share."""

    pace_cycles: Size = 400
    """Clock cycles from one bulk copy of a CTA to the next; 0 issues all at once."""
    hurried: Literal["nothing", "down", "everything"] = "down"
    """Whose copies no longer keep the pace once the kernel before has ended: they are late already."""
    order: Literal["weights_first", "state_first"] = "weights_first"
    """What a thread of down waits for first: its weights, which are there when boundaries follow each other, or the
    state, which is there first where an ordinary kernel stands in front."""
    evict_first: Flag = True
    """Let weights be the first to leave the L2 cache."""
    seeded: Flag = True
    """Reciprocal and root from the hardware's approximation and corrections, without branches; else IEEE division."""

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find targets without the instructions, workloads that don't fit, and options that don't."""
        assert isinstance(workload, HyperConnectionWorkload)
        older = [arch for arch in self.arch if arch not in ARCHS]
        if older:
            message = (
                f'route "{self.route}" needs programmatic launches and bulk copies, which {listing(older)} '
                f"doesn't have; list {listing(ARCHS, 'or')}."
            )
            yield Finding(("arch",), message)
        reasons = list(unsuited(workload, self.route))
        yield from (Finding(("route",), reason) for reason in reasons)
        if self.seeded and workload.eps < SMALLEST_EPS:
            message = f"seeded arithmetic is exact for eps from 2^-70 on; eps is {workload.eps}: set seeded = false."
            yield Finding(("seeded",), message)
        if not reasons:
            yield from self.layout_problems(workload)

    @abstractmethod
    def layout_problems(self, workload: HyperConnectionWorkload) -> Iterator[Finding]:
        """Find options that no layout of this workload can have."""


class OneKernel(Prefetched):
    """A boundary in one launch: the sums of down are exchanged between its CTAs, all of which must be resident."""

    route: Literal["one_kernel"]
    ctas: Count = 132
    """CTAs, all resident at the same time; each serves one branch in down."""
    threads: Count | None = None
    """Threads of a CTA: one for each lane of the norm's tree, or a multiple, and 64."""
    exchange_bytes: Literal[8, 16] = 16
    """Bytes of a load of the exchange: one tagged word, or two."""
    polls: Literal["first_lane", "every_lane"] = "first_lane"
    """Which lanes of a warp wait for the exchange: one lane first, or all."""
    look_after_cycles: Size = 0
    """Cycles after its CTA's sums at which a whole warp looks once, before it waits as `polls` says; 0: never."""
    down: DownOptions = DownOptions()
    """Options of combine, norm and down."""
    up: UpOptions = UpOptions()
    """Options of up and mix."""

    KERNELS: ClassVar[tuple[str, ...]] = ("boundary", "first", "final", "combine")

    def schedule(self) -> ScheduleValues:
        """Give the route and all options; None is the default."""
        return _schedule(self, "down", "up")

    def layouts(self, workload: HyperConnectionWorkload) -> tuple[DownLayout, UpLayout]:
        """Resolve the options.

        Raises:
            TilingError: one doesn't fit.
        """
        options, grid = self.down.model_dump(), self.ctas
        down = _within("down", lambda: down_layout(workload, ctas=grid, threads=self.threads, **options))
        up = self.up.model_dump()
        return down, _within("up", lambda: up_layout(workload, ctas=grid, warps=down.warps, **up))

    def layout_problems(self, workload: HyperConnectionWorkload) -> Iterator[Finding]:
        """Find options that no layout of this workload can have."""
        if self.exchange_bytes == 16 and workload.branches % 2:
            message = f"two words a load need an even number of branches, not {workload.branches}; take 8."
            yield Finding(("exchange_bytes",), message)
        try:
            down, up = self.layouts(workload)
        except _OptionError as error:
            yield error.finding(("ctas", "threads"))
            return
        yield from _shared_problems(staging(workload, down, up), ("ctas",))


class TwoKernels(Prefetched):
    """A boundary in two launches: combine, norm and down; then up and mix."""

    route: Literal["two_kernels"]
    down: LaunchedDownOptions = LaunchedDownOptions()
    """Options of combine, norm and down."""
    up_mix: LaunchedUpOptions = LaunchedUpOptions()
    """Options of up and mix."""

    KERNELS: ClassVar[tuple[str, ...]] = (
        "combine_norm_down",
        "norm_down",
        "combine_norm_down_final",
        "up_mix",
        "up_mix_final",
        "combine",
    )

    def schedule(self) -> ScheduleValues:
        """Give the route and all options; None is the default."""
        return _schedule(self, "down", "up_mix")

    def layouts(self, workload: HyperConnectionWorkload) -> tuple[DownLayout, UpLayout]:
        """Resolve the options.

        Raises:
            TilingError: one doesn't fit.
        """
        down = _within("down", lambda: down_layout(workload, **self.down.model_dump()))
        return down, _within("up_mix", lambda: self._up(workload))

    def _up(self, workload: HyperConnectionWorkload) -> UpLayout:
        options = self.up_mix.model_dump()
        threads = options.pop("threads")
        warps = threads // 32 - EXTRA_WARPS
        if threads % 32 or warps < 1 or threads > 1024:
            raise TilingError(
                "threads",
                f"threads is {threads}; it must be a multiple of 32 from 96 to 1024: two warps don't compute.",
            )
        return up_layout(workload, warps=warps, **options)

    def layout_problems(self, workload: HyperConnectionWorkload) -> Iterator[Finding]:
        """Find options that no layout of this workload can have."""
        try:
            down, up = self.layouts(workload)
        except _OptionError as error:
            yield error.finding(())
            return
        yield from _shared_problems(staging(workload, down, None), ("down", "ctas"))
        yield from _shared_problems(staging(workload, None, up), ("up_mix", "columns_per_cta"))


class _OptionError(TilingError):
    """An option of a table that doesn't fit."""

    def __init__(self, table: str, error: TilingError) -> None:
        self.table = table
        super().__init__(error.option, str(error))

    def finding(self, flat: tuple[str, ...]) -> Finding:
        """Point at the option's key: in its table, unless it is one of `flat`."""
        path = (self.option,) if self.option in flat else (self.table, self.option)
        return Finding(path, f"{self.table}: {self}")


def _within(table: str, make: Callable[[], _Layout]) -> _Layout:
    try:
        return make()
    except TilingError as error:
        raise _OptionError(table, error) from error


def _shared_problems(memory: Staging, key: tuple[str, ...]) -> Iterator[Finding]:
    problem = memory.problem()
    if problem is not None:
        yield Finding(key, problem)


def _schedule(candidate: Prefetched, *tables: str) -> ScheduleValues:
    elsewhere = {*CandidateSpec.model_fields, *tables} - {"route"}
    flat = {name: getattr(candidate, name) for name in type(candidate).model_fields if name not in elsewhere}
    return {
        "route": candidate.route,
        **flat,
        **{table: getattr(candidate, table).model_dump() for table in tables},
    }
