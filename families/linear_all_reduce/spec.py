"""Family `linear_all_reduce`: a row-parallel linear whose all-reduce hides behind its GEMM.

Routes say who moves and adds what the ranks contribute, and whether that happens slice by slice. `serial` is the
control: the plain linear, then the group's own all-reduce. It is what runs wherever nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ...specs.base import Count, Size, ToleranceSpec
from ...specs.errors import Finding
from ...specs.external import External
from ...specs.spec import CandidateSpec, ScheduleValues, Spec, WorkloadSpec
from ..all_reduce.workload import CHANNEL_CTAS
from .workload import LinearAllReduceWorkload

WARP = 32
MAX_THREADS = 1024
MAX_LOADS = 32
MAX_SLICES = 64

Provider = Literal["torch", "scaled_mm"]
GEMM_OF = {"none": "torch", "fp8_per_token": "scaled_mm"}
"""The library GEMM that serves a quantisation."""


class Linear(CandidateSpec):
    """What all routes share: the GEMM, which is a library's, so that its bits aren't specified."""

    contract: Literal["exact", "tolerance"] = "tolerance"
    """Always "tolerance": the order in which a library GEMM adds isn't stated anywhere, and changes with M."""
    tolerance: ToleranceSpec | None = ToleranceSpec(relative_l2=4e-3)
    """Against FP64 of the (quantised) inputs. The default is twice what BF16 rounding of partials and sum costs."""
    gemm: Provider = "torch"
    """Who multiplies: `torch` (cuBLAS), or `scaled_mm` (FP8, `torch._scaled_mm`)."""

    KERNELS: ClassVar[tuple[str, ...]] = ("quantise",)

    def schedule(self) -> ScheduleValues:
        """Give the route, the GEMM and all options of the route's own."""
        own = [name for name in type(self).model_fields if name not in CandidateSpec.model_fields]
        return {"route": self.route} | {name: getattr(self, name) for name in own}

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a GEMM that doesn't serve the quantisation."""
        assert isinstance(workload, LinearAllReduceWorkload)
        needed = GEMM_OF[workload.quantisation]
        if self.gemm != needed:
            message = (
                f'found "{self.gemm}", but quantisation is "{workload.quantisation}"; that takes "{needed}".'
            )
            yield Finding(("gemm",), message)

    def _own_problems(self) -> Iterator[Finding]:
        yield from super()._own_problems()
        if self.contract == "exact":
            message = 'found "exact"; a library GEMM adds in an unspecified order: drop this key.'
            yield Finding(("contract",), message)


class Grid(Linear):
    """A reduction by our own kernel, with a budget of CTAs."""

    ctas: Annotated[Count, Field(le=CHANNEL_CTAS)]
    """CTAs that add; what they occupy, the GEMM beside them lacks."""
    threads: Annotated[Count, Field(le=MAX_THREADS)] = 512
    """Threads of a CTA."""

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a channel that doesn't hold the rows of a cell."""
        yield from super().problems(workload)
        assert isinstance(workload, LinearAllReduceWorkload)
        if workload.channel_rows < workload.m.max:
            message = (
                f'route "{self.route}" needs all rows of a call in memory that peers can read; channel_rows is '
                f"{workload.channel_rows}, a cell ends at {workload.m.max}: state workload.channel_rows."
            )
            yield Finding(("route",), message)

    def _own_problems(self) -> Iterator[Finding]:
        yield from super()._own_problems()
        if self.threads % WARP:
            message = f"found {self.threads}; a CTA has whole warps, so take a multiple of {WARP}."
            yield Finding(("threads",), message)


class Pulling(Grid):
    """A reduction whose CTAs read from peers."""

    loads_in_flight: Annotated[Count, Field(le=MAX_LOADS)] = 8
    """Words of 16 bytes that a thread loads before it uses the first: a few CTAs must fill a link."""
    KERNELS: ClassVar[tuple[str, ...]] = ("quantise", "reduce")


class Sliced(Linear):
    """Rows in slices: one is reduced on a stream of its own while the next is multiplied."""

    slices: Annotated[
        Annotated[Count, Field(le=MAX_SLICES)]
        | Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_SLICES)],
        Field(union_mode="left_to_right"),
    ]
    """How many of equal size, or their weights: `[3, 3, 2]` gives the last a quarter of the rows."""
    align: Count = 1
    """Bounds are multiples of this many rows, such as those of whole waves; the last slice takes the rest."""
    min_m: Count = 1
    """M from which on the schedule is worth considering; it isn't generated for cells that end below."""
    free_sms: Annotated[Size, Field(le=128)] = 0
    """SMs that the GEMM should leave free (cuBLASLt's SM count target)."""

    def weights(self) -> tuple[int, ...]:
        """Give the slices' relative sizes; equal ones for a count."""
        return (1,) * self.slices if isinstance(self.slices, int) else self.slices

    def serves(self, workload: WorkloadSpec) -> bool:
        """Tell whether a cell reaches up to `min_m`."""
        assert isinstance(workload, LinearAllReduceWorkload)
        return workload.m.max >= self.min_m

    def schedule(self) -> ScheduleValues:
        """Give the slices as relative sizes."""
        return {**super().schedule(), "slices": list(self.weights())}

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a `min_m` that no row reaches."""
        yield from super().problems(workload)
        assert isinstance(workload, LinearAllReduceWorkload)
        if len(self.weights()) > workload.m.max:
            message = f"{len(self.weights())} slices of at most {workload.m.max} rows; take fewer."
            yield Finding(("slices",), message)


class Serial(Linear):
    """The plain linear, then the group's own all-reduce (NCCL, Gloo)."""

    route: Literal["serial"]


class SerialSm(Pulling):
    """The plain linear into memory that peers can read, then our two-stage all-reduce, on one stream."""

    route: Literal["serial_sm"]


class SlicedNccl(Sliced):
    """Slices, each reduced by the group's own all-reduce."""

    route: Literal["sliced_nccl"]


class SlicedSm(Sliced, Pulling):
    """Slices, each reduced by our two-stage all-reduce on a budget of CTAs."""

    route: Literal["sliced_sm"]


class SlicedCopyEngine(Sliced, Grid):
    """Slices, each fetched from the peers by copy engines and added locally; no SM waits for a link."""

    route: Literal["sliced_copy_engine"]
    ctas: Annotated[Count, Field(le=CHANNEL_CTAS)] = 64
    """CTAs of the local addition."""
    stages: Literal[1, 2] = 2
    """1: every rank fetches and adds whole slices. 2: it adds its part of a slice and fetches the others' sums."""
    additions: Literal["side", "main"] = "side"
    """Where slices are added: beside the GEMM, for which it must leave SMs free, or between GEMMs, on all SMs."""
    KERNELS: ClassVar[tuple[str, ...]] = ("quantise", "meet", "add", "close")


LinearAllReduceRoute = Annotated[
    Serial | SerialSm | SlicedNccl | SlicedSm | SlicedCopyEngine | External, Field(discriminator="route")
]


class LinearAllReduceSpec(Spec):
    """A spec file of this family; its first candidate is `serial`."""

    family: Literal["linear_all_reduce"]
    workload: LinearAllReduceWorkload
    """What is computed."""
    candidate: Annotated[tuple[LinearAllReduceRoute, ...], Field(min_length=1)]
    """How it may be computed; the first is the control, and has route `serial`."""

    EXACT_CONTROL: ClassVar[bool] = False

    @classmethod
    def findings(
        cls, workload: WorkloadSpec | None, candidates: Mapping[int, CandidateSpec]
    ) -> Iterator[Finding]:
        """Find broken rules that reach over the parts of a file, and schedules that no cell would ever take."""
        yield from super().findings(workload, candidates)
        if not isinstance(workload, LinearAllReduceWorkload):
            return
        cells = workload.expand()
        for index, candidate in candidates.items():
            if isinstance(candidate, Sliced) and not any(map(candidate.serves, cells)):
                message = (
                    f"found {candidate.min_m}, but M ends at {max(cell.m.max for cell in cells)}; lower it."
                )
                yield Finding(("candidate", index, "min_m"), message)

    @classmethod
    def _set_findings(cls, candidates: Mapping[int, CandidateSpec]) -> Iterator[Finding]:
        yield from super()._set_findings(candidates)
        control = candidates.get(0)
        if control is not None and control.route != "serial":
            message = (
                f'the control "{control.name}" has route "{control.route}"; the first candidate is the plain path, '
                'route = "serial": it runs wherever nothing was measured.'
            )
            yield Finding(("candidate", 0, "route"), message)


SPEC = LinearAllReduceSpec
