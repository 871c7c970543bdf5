"""What the lowerings of several routes share: the workload's numbers, trees with tilings, and equal launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ....generator.literals import float_literal
from ....generator.lowering import Lowering
from ....specs import RowTiling
from ....specs.tree import TreeShape
from ....table import Launch
from ..schedules.limits import trees_of
from ..spec import HyperConnectionWorkload, MatrixRoute
from .gates import load_widths

Buffers = dict[str, tuple[tuple[int, ...], str]]


def workload_constants(workload: HyperConnectionWorkload) -> dict[str, Any]:
    """The workload's own numbers, as all templates know them."""
    return {
        "dtype": workload.dtype,
        "branches": workload.branches,
        "hidden": workload.hidden,
        "low_rank": workload.low_rank,
        "eps": float_literal(workload.eps),
        "branches_power_of_two": workload.branches & (workload.branches - 1) == 0,
        "inverse_branches": float_literal(1.0 / workload.branches),
        "per_branch": workload.norm_weight == "per_branch",
    }


@dataclass(frozen=True)
class MatrixShapes:
    """Trees and tilings of a route with two matrix-vector kernels."""

    norm: TreeShape
    down: TreeShape
    up: TreeShape
    tilings: Mapping[str, RowTiling]
    """Of `down`, `down_final` and the up kernel."""

    @classmethod
    def of(cls, workload: HyperConnectionWorkload, candidate: MatrixRoute) -> MatrixShapes:
        """Resolve them."""
        trees = trees_of(workload)
        return cls(
            trees["norm"],
            trees["down"],
            trees["up"],
            {kernel: candidate.tiling(workload, kernel) for kernel in ("down", "down_final", candidate.UP)},
        )

    def constants(self, workload: HyperConnectionWorkload, candidate: MatrixRoute) -> dict[str, Any]:
        """What the templates of all these routes need."""
        return {
            **workload_constants(workload),
            "early_norm_weight": candidate.early_norm_weight,
            "l1_bypass": candidate.l1_bypass,
            "load_widths": load_widths(self.norm, self.down, self.up, *self.tilings.values()),
            "norm": norm_constants(self.norm),
            "down_tree": self.down,
            "up_tree": self.up,
            "tilings": self.tilings,
        }


def norm_threads(norm: TreeShape) -> int:
    """Threads of a CTA of the norm: a butterfly needs whole warps."""
    return max(norm.lanes, 32)


def norm_constants(norm: TreeShape) -> dict[str, Any]:
    """The norm's tree, and the threads that follow it."""
    return {**asdict(norm), "threads": norm_threads(norm)}


def branch_kernels(workload: HyperConnectionWorkload, norm: TreeShape, *more: str) -> dict[str, Launch]:
    """Combine and norm, together and apart, with `more` arguments: a CTA for each branch of each token."""
    arguments = {
        "combine_norm": ("residual", "block", "injection", "norm_weight", "x", "y"),
        "norm": ("residual", "norm_weight", "y"),
        "combine": ("residual", "block", "injection", "x"),
    }
    grid, block = (workload.branches, workload.tokens.max, 1), (norm_threads(norm), 1, 1)
    return {kernel: Launch(grid, block, (*args, *more)) for kernel, args in arguments.items()}


def state_buffers(workload: HyperConnectionWorkload) -> Buffers:
    """State, normalised state and low rank of all tokens, for kinds that don't give them and between kernels."""
    tokens, state = workload.tokens.max, workload.branches * workload.hidden
    return {
        "x": ((tokens, state), workload.dtype),
        "y": ((tokens, state), workload.dtype),
        "lora": ((tokens, workload.low_rank), workload.dtype),
    }


def replicated(
    workload: HyperConnectionWorkload,
    shapes: MatrixShapes,
    template: str,
    constants: Mapping[str, Any],
    blocks: int = 1,
) -> Lowering:
    """The launches of the replicated route, each tile of rows `blocks` times."""
    more = ("tokens",) if workload.tokens.max > 1 else ()

    def rows(kernel: str, *args: str) -> Launch:
        tiling = shapes.tilings[kernel]
        return Launch((tiling.ctas, blocks, 1), (tiling.threads, 1, 1), (*args, *more))

    return Lowering(
        template=f"hyper_connection/{template}.cu.j2",
        constants=constants,
        kernels={
            **branch_kernels(workload, shapes.norm, *more),
            "down": rows("down", "y", "down_weight", "lora", "injection_out"),
            "down_final": rows("down_final", "y", "down_weight", "lora"),
            "up_mix": rows("up_mix", "lora", "up_weight", "y", "block_input"),
        },
        steps={
            "boundary": ("combine_norm", "down", "up_mix"),
            "first": ("norm", "down", "up_mix"),
            "combine": ("combine",),
            "final": ("combine_norm", "down_final", "up_mix"),
        },
        scratch=state_buffers(workload),
        scratch_by=more[0] if more else "",
        arguments=dict.fromkeys(more, "uint32"),
    )
