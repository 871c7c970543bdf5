"""The shape of a hyper-connection call: kinds, sizes and reduction trees; no tensors here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ...runtime.declaration import Kind
from ...table import FieldValue, Table, Tree
from .trees import default_trees

FAMILY = "hyper_connection"

KINDS: Mapping[str, Kind] = {
    "boundary": Kind(
        inputs=("residual", "block", "injection", "norm_weight", "down_weight", "up_weight"),
        outputs=("x", "block_input", "injection_out"),
    ),
    "first": Kind(
        inputs=("residual", "norm_weight", "down_weight", "up_weight"),
        outputs=("block_input", "injection_out"),
    ),
    "combine": Kind(
        inputs=("residual", "block", "injection"),
        outputs=("x",),
        without=frozenset({"low_rank", "eps", "norm_weight"}),
    ),
    "final": Kind(
        inputs=("residual", "block", "injection", "norm_weight", "down_weight", "up_weight"),
        outputs=("block_input",),
    ),
}

EXACT_TOKENS = 16
"""Up to so many tokens the reference follows the trees; above, a GEMM library under a tolerance."""

DOWN_ROW_MULTIPLE = 16
"""The down weight's rows are padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class BoundaryShape:
    """The numbers of one call; a kind without a matrix has neither low_rank nor norm_weight."""

    dtype: str
    branches: int
    hidden: int
    low_rank: int
    """R; 0 for kind `combine`."""
    tokens: int
    norm_weight: str = "per_branch"
    """`per_branch`, `shared`, or empty for kind `combine`."""
    eps: float = 1e-6
    world_size: int = 1

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The shape of a call's workload fields."""
        absent = {"low_rank": 0, "norm_weight": "", "eps": 0.0}
        return cls(**{**absent, **fields})

    @property
    def width(self) -> int:
        """Elements of a token's residual, HC * H."""
        return self.branches * self.hidden

    def down_rows(self, kind: str) -> int:
        """Rows of the down weight that are computed: the final mixer has no injection."""
        return self.low_rank if kind == "final" else self.low_rank + self.branches

    def stored_down_rows(self, kind: str) -> int:
        """Rows of the down weight as stored."""
        rows = self.down_rows(kind)
        return rows if kind == "final" else -(-rows // DOWN_ROW_MULTIPLE) * DOWN_ROW_MULTIPLE

    def tensors(self, kind: str) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors of a kind, by name."""
        state, hidden, injection = (
            (self.tokens, self.width),
            (self.tokens, self.hidden),
            (self.tokens, self.branches),
        )
        return {
            "residual": state,
            "block": hidden,
            "injection": injection,
            "norm_weight": (self.hidden if self.norm_weight == "shared" else self.width,),
            "down_weight": (self.stored_down_rows(kind), self.width),
            "up_weight": (self.width, self.low_rank),
            "x": state,
            "block_input": hidden,
            "injection_out": injection,
        }


def trees_for(table: Table, fields: Mapping[str, Any], kind: str) -> tuple[Mapping[str, Tree], str]:
    """The trees of the table's workload of these fields, else the defaults; and where they come from, in words.

    A workload that has the shape but other tokens, or another dtype, world size, norm or eps is second choice: its
    trees are legal, and more likely to be what a later spec states than the defaults.
    """
    if kind == "combine":
        return {}, "no sums"
    lengths = {name: fields[name] for name in ("branches", "hidden", "low_rank")}
    same = [
        work
        for work in table.workloads
        if work.family == FAMILY and all(work.fields[name] == value for name, value in lengths.items())
    ]
    alike = fields.items()
    best = max(same, key=lambda work: sum(_has(work.fields[name], v) for name, v in alike), default=None)
    if best is not None:
        return best.trees, f"trees of workload {best.label}"
    trees = default_trees(**lengths)
    return trees, "default trees " + ", ".join(f"{name} {list(t)}" for name, t in trees.items())


def _has(served: FieldValue, value: FieldValue) -> bool:
    if isinstance(served, tuple) and isinstance(value, int):
        return served[0] <= value <= served[1]
    return served == value
