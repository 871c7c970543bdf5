"""Family `hyper_connection`: one hyper-connection boundary of a decoder (docs/hyper_connection.md).

The workload is a batch of N tokens with `branches` residual branches of `hidden` elements, mixed through a
gate of rank `low_rank`. All routes compute the same bits; they differ in what a rank computes and exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...specs.base import DTYPE_BYTES, Flag, Size
from ...specs.errors import Finding, listing
from ...specs.external import External
from ...specs.matrix import MatrixOptions, tiling_findings
from ...specs.spec import CandidateSpec, ScheduleValues, Spec, WorkloadSpec
from ...specs.tiling import RowTiling, row_tiling
from .schedules.hopper import OneKernel, TwoKernels
from .schedules.limits import check_fused, check_replicated, check_sharded, unfit
from .schedules.tensor_core import TensorCore
from .schedules.wgmma import Wgmma
from .workload import HyperConnectionWorkload

__all__ = [
    "SPEC",
    "FusedUpMixGather",
    "GateSharded",
    "HiddenSharded",
    "HyperConnectionSpec",
    "HyperConnectionWorkload",
    "MatrixRoute",
    "OneKernel",
    "Replicated",
    "Sharded",
    "TensorCore",
    "TwoKernels",
    "Wgmma",
]


class MatrixRoute(CandidateSpec, MatrixOptions):
    """What all routes of ours share: two matrix-vector kernels whose work is spread by options."""

    down: MatrixOptions | None = None
    """Options of the down kernels alone; they win over the flat ones."""
    early_norm_weight: Flag = False
    """Load the norm's weight before its reduction instead of after it."""
    l1_bypass: Flag = False
    """Load weights past the L1 cache."""

    UP: ClassVar[str] = "up_mix"
    """The up kernel, and the key of its options."""
    FLAT: ClassVar[tuple[str, ...]] = ("down", "up_mix")
    """Kernels that the flat options hold for."""

    def options(self, kernel: str) -> dict[str, Any]:
        """Give the tiling options of the down or the up kernel, flat ones merged in; None is the default."""
        table: MatrixOptions = getattr(self, kernel) or MatrixOptions()
        return table.over(self if kernel in self.FLAT else MatrixOptions())

    def schedule(self) -> ScheduleValues:
        """Give the route, the merged options of both matrix kernels, and the switches."""
        kernels = ("down", self.UP)
        elsewhere = {*CandidateSpec.model_fields, *MatrixOptions.model_fields, *kernels}
        switches = {name: getattr(self, name) for name in type(self).model_fields if name not in elsewhere}
        return {"route": self.route, **{kernel: self.options(kernel) for kernel in kernels}, **switches}

    def rows(self, workload: HyperConnectionWorkload) -> dict[str, int]:
        """Give the rows that one rank computes, by kernel."""
        return {"down": workload.down_rows, "down_final": workload.low_rank, self.UP: workload.hidden}

    def tiling(self, workload: HyperConnectionWorkload, kernel: str) -> RowTiling:
        """Resolve the tiling of `down`, `down_final` or the up kernel, whose row handles all its branches.

        Raises:
            TilingError: an option doesn't fit.
        """
        options = self.options(self.UP if kernel == self.UP else "down")
        if kernel == "down_final" and options["ctas"] is not None:
            # The final mixer has fewer rows: a grid that suits `down` shrinks to what it keeps busy.
            whole = self._tiling(workload, kernel, options | {"ctas": None})
            options["ctas"] = min(options["ctas"], whole.tiles)
        return self._tiling(workload, kernel, options)

    def _tiling(
        self, workload: HyperConnectionWorkload, kernel: str, options: Mapping[str, Any]
    ) -> RowTiling:
        up = kernel == self.UP
        tree = workload.trees()["up" if up else "down"]
        return row_tiling(
            rows=self.rows(workload)[kernel],
            row_elements=workload.low_rank if up else workload.branches * workload.hidden,
            tree=tree,
            element_bytes=DTYPE_BYTES[workload.dtype],
            may_stage=up,
            default_threads=256 if up or tree.lanes < 32 else tree.lanes,
            **options,
        )

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find options that no tiling of this workload can have."""
        assert isinstance(workload, HyperConnectionWorkload)
        kernels = ("down", self.UP)  # what fits `down` also fits `down_final`, which has fewer rows
        makers = {kernel: partial(self.tiling, workload, kernel) for kernel in kernels}
        tables: dict[str, MatrixOptions | None] = {kernel: getattr(self, kernel) for kernel in kernels}
        found = list(tiling_findings(makers, tables))
        yield from found or unfit(partial(self._check, workload))

    def _check(self, workload: HyperConnectionWorkload) -> None:
        """Check what the templates and the hardware can hold, of tilings that there are; raises Unfit."""


class Replicated(MatrixRoute):
    """Every rank computes everything; nothing is exchanged. The control."""

    route: Literal["replicated"]
    up_mix: MatrixOptions | None = None
    """Options of the up kernel alone; they win over the flat ones."""

    KERNELS: ClassVar[tuple[str, ...]] = ("combine_norm", "norm", "combine", "down", "down_final", "up_mix")

    def _check(self, workload: HyperConnectionWorkload) -> None:
        check_replicated(workload, self)


class Sharded(MatrixRoute):
    """Routes that split the rows over the ranks and exchange packets."""

    packed_down: Flag = False
    """Store the rank's down rows packed, in the order that its threads read them."""
    down_split: Literal[1, 2, 4] | None = None
    """Split the down rows into so many parts and fuse the tail into the last; None keeps the tail apart."""
    fuse_down_gather: Flag = False
    """Send the down packet from the down kernel itself."""
    fuse_combine_norm: Flag = False
    """Combine and normalise inside the down kernel."""
    prefetch_chunks: Size = 0
    """Chunks of the down weight that are under way before the norm is known; needs fuse_combine_norm."""

    BEFORE_UP: ClassVar[tuple[str, ...]] = (
        "combine_norm",
        "norm",
        "combine",
        "down",
        "down_first",
        "down_final",
        "gather_down",
        "gather_down_final",
    )
    """Kernels of all sharded routes; `down_first` is there where combine and norm are fused into the down kernels."""

    def rows(self, workload: HyperConnectionWorkload) -> dict[str, int]:
        """Give the rows that one rank computes, by kernel: its share of the low-rank and injection rows."""
        ranks = workload.world_size
        return {
            "down": workload.down_rows // ranks,
            "down_final": workload.low_rank // ranks,
            self.UP: workload.hidden // ranks,
        }

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find a world size that the rows can't be split over, and options that don't fit."""
        assert isinstance(workload, HyperConnectionWorkload)
        ranks = workload.world_size
        if ranks == 1:
            message = (
                f'route "{self.route}" shares the rows between ranks, but world_size is 1; take 2, 4 or 8.'
            )
            yield Finding(("route",), message)
            return
        indivisible = [
            f"{name} ({size})"
            for name in ("hidden", "low_rank", "branches")
            if (size := getattr(workload, name)) % ranks
        ]
        if indivisible:
            message = (
                f'route "{self.route}" needs a world_size that divides hidden, low_rank and branches; '
                f"{ranks} doesn't divide {listing(indivisible)}."
            )
            yield Finding(("route",), message)
            return
        if self.prefetch_chunks and not self.fuse_combine_norm:
            message = f"prefetch_chunks is {self.prefetch_chunks}, which needs fuse_combine_norm = true."
            yield Finding(("prefetch_chunks",), message)
        yield from super().problems(workload)

    def gates(self, workload: HyperConnectionWorkload) -> int:
        """Gates of a row that a team computes, one after the other."""
        return workload.branches

    def _check(self, workload: HyperConnectionWorkload) -> None:
        check_sharded(workload, self, self.gates(workload))


class GateSharded(Sharded):
    """A rank computes the gates of its branches for all hidden coordinates; the gates are exchanged."""

    route: Literal["gate_sharded"]
    up: MatrixOptions | None = None
    """Options of the up kernel alone; they win over the flat ones."""

    UP: ClassVar[str] = "up"
    FLAT: ClassVar[tuple[str, ...]] = ("down", "up")
    KERNELS: ClassVar[tuple[str, ...]] = (*Sharded.BEFORE_UP, "up", "mix")

    def rows(self, workload: HyperConnectionWorkload) -> dict[str, int]:
        """Give the rows that one rank computes, by kernel: all hidden rows, of its own branches only."""
        return super().rows(workload) | {"up": workload.hidden}

    def gates(self, workload: HyperConnectionWorkload) -> int:
        """Those of the rank's own branches."""
        return workload.branches // workload.world_size


class HiddenSharded(Sharded):
    """A rank computes all branches of its hidden coordinates and mixes them; the outputs are exchanged."""

    route: Literal["hidden_sharded"]
    up_mix: MatrixOptions | None = None
    """Options of the up kernel alone; they win over the flat ones."""

    KERNELS: ClassVar[tuple[str, ...]] = (*Sharded.BEFORE_UP, "up_mix", "gather")


class FusedUpMixGather(Sharded):
    """As `hidden_sharded`, with up, mix and gather in one launch. Flat options are those of that launch."""

    route: Literal["fused_up_mix_gather"]
    up_mix: MatrixOptions | None = None
    """The flat options once more, under the kernel's name; they win."""
    parallel_gates: Flag = False
    """Give the branches of a row to different teams, instead of one after the other to one team."""

    FLAT: ClassVar[tuple[str, ...]] = ("up_mix",)
    KERNELS: ClassVar[tuple[str, ...]] = (*Sharded.BEFORE_UP, "up_mix")

    def rows(self, workload: HyperConnectionWorkload) -> dict[str, int]:
        """Give the rows that one rank computes; with parallel gates every gate is a row of its own."""
        rows = super().rows(workload)
        gates = workload.branches if self.parallel_gates else 1
        return rows | {"up_mix": rows["up_mix"] * gates}

    def gates(self, workload: HyperConnectionWorkload) -> int:
        """One of a row, where every gate is a row."""
        return 1 if self.parallel_gates else workload.branches

    def _check(self, workload: HyperConnectionWorkload) -> None:
        super()._check(workload)
        gates = workload.branches if self.parallel_gates else 1
        check_fused(self, self.tiling(workload, "up_mix"), gates)


HyperConnectionRoute = Annotated[
    Replicated
    | OneKernel
    | TwoKernels
    | TensorCore
    | Wgmma
    | GateSharded
    | HiddenSharded
    | FusedUpMixGather
    | External,
    Field(discriminator="route"),
]


class HyperConnectionSpec(Spec):
    """A spec file of this family."""

    family: Literal["hyper_connection"]
    workload: HyperConnectionWorkload
    """What is computed."""
    candidate: Annotated[tuple[HyperConnectionRoute, ...], Field(min_length=1)]
    """How it may be computed; the first is the control."""


SPEC = HyperConnectionSpec
