"""The shape of a hyper-connection call: fields, buffers, label and reduction trees; no tensors here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...runtime.request import Request, Signature
from ...table import Buffer, Contract, FieldValue, Table, Tree

FAMILY = "hyper_connection"

ALIGNMENT = 16
"""Bytes; the widest load of a kernel."""

Kind = Literal["boundary", "first", "combine", "final"]

INPUTS: Mapping[str, tuple[str, ...]] = {
    "boundary": ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight"),
    "first": ("residual", "norm_weight", "down_weight", "up_weight"),
    "combine": ("residual", "block", "injection"),
    "final": ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight"),
}
"""What each kind takes, in the order of the op's arguments; the others are None."""

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "boundary": ("x", "block_input", "injection_out"),
    "first": ("block_input", "injection_out"),
    "combine": ("x",),
    "final": ("block_input",),
}
"""What each kind gives, in the order of the op's results; the others are None."""

EXACT_TOKENS = 16
"""Up to so many tokens the reference follows the trees; above, a GEMM library under a tolerance."""

DTYPE_SHORT: Mapping[str, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
"""Storage dtypes that the reference serves, with their short form."""

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
    norm_weight: str
    """`per_branch`, `shared`, or empty for kind `combine`."""
    eps: float
    world_size: int

    @property
    def state(self) -> int:
        """Elements of a token's residual, HC * H."""
        return self.branches * self.hidden

    def down_rows(self, kind: str) -> int:
        """Rows of the down weight that are computed: the final mixer has no injection."""
        return self.low_rank if kind == "final" else self.low_rank + self.branches

    def stored_down_rows(self, kind: str) -> int:
        """Rows of the down weight as stored."""
        rows = self.down_rows(kind)
        return rows if kind == "final" else -(-rows // DOWN_ROW_MULTIPLE) * DOWN_ROW_MULTIPLE

    def fields(self, kind: str) -> dict[str, FieldValue]:
        """The workload fields that a call of this kind determines."""
        fields: dict[str, FieldValue] = {
            "dtype": self.dtype,
            "branches": self.branches,
            "hidden": self.hidden,
            "tokens": self.tokens,
            "world_size": self.world_size,
        }
        if kind != "combine":
            fields |= {"low_rank": self.low_rank, "eps": self.eps, "norm_weight": self.norm_weight}
        return fields

    def signature(self, kind: str) -> Signature:
        """The buffers of a kind."""
        state, hidden = (self.tokens, self.state), (self.tokens, self.hidden)
        shapes = {
            "residual": state,
            "block": hidden,
            "injection": (self.tokens, self.branches),
            "norm_weight": (self.hidden if self.norm_weight == "shared" else self.state,),
            "down_weight": (self.stored_down_rows(kind), self.state),
            "up_weight": (self.state, self.low_rank),
            "x": state,
            "block_input": hidden,
            "injection_out": (self.tokens, self.branches),
        }
        return Signature(
            inputs=tuple(Buffer(name, shapes[name], self.dtype) for name in INPUTS[kind]),
            outputs=tuple(Buffer(name, shapes[name], self.dtype) for name in OUTPUTS[kind]),
            alignment=ALIGNMENT,
        )

    def label(self, kind: str) -> str:
        """Short form, as workloads have it: `fp16-hc4-h2560-n1-r320-tp1`."""
        rank = f"-r{self.low_rank}" if kind != "combine" else ""
        size = f"hc{self.branches}-h{self.hidden}-n{self.tokens}{rank}"
        return f"{DTYPE_SHORT[self.dtype]}-{size}-tp{self.world_size}"

    def request(self, kind: str, trees: ChosenTrees, problems: tuple[str, ...] = ()) -> Request:
        """The request for selection."""
        contract: Contract = "exact" if self.tokens <= EXACT_TOKENS else "tolerance"
        library = f"torch with library GEMMs, because {self.tokens} tokens are more than {EXACT_TOKENS}"
        return Request(
            family=FAMILY,
            kind=kind,
            fields=self.fields(kind),
            signature=self.signature(kind),
            label=self.label(kind),
            reference_contract=contract,
            reference_note=f"torch, tree-exact, {trees.origin}" if contract == "exact" else library,
            problems=problems,
            constants={"tokens": self.tokens.to_bytes(4, "little")},
        )


@dataclass(frozen=True, slots=True)
class ChosenTrees:
    """The reduction trees of a call, and where they come from."""

    trees: Mapping[str, Tree]
    origin: str


def trees_for(table: Table, shape: BoundaryShape, kind: str) -> ChosenTrees:
    """The trees of the table's workload of this shape, else the defaults.

    A workload that has the shape but other tokens, or another dtype, world size, norm or eps is second choice: its
    trees are legal, and more likely to be what a later spec states than the defaults.
    """
    if kind == "combine":
        return ChosenTrees({}, "no sums")
    lengths = {"branches": shape.branches, "hidden": shape.hidden, "low_rank": shape.low_rank}
    same = [
        work
        for work in table.workloads
        if work.family == FAMILY and all(work.fields[name] == value for name, value in lengths.items())
    ]
    alike = shape.fields(kind).items()
    best = max(same, key=lambda work: sum(_has(work.fields[name], v) for name, v in alike), default=None)
    if best is not None:
        return ChosenTrees(best.trees, f"trees of workload {best.label}")
    trees = default_trees(shape)
    return ChosenTrees(trees, "default trees " + ", ".join(f"{name} {list(t)}" for name, t in trees.items()))


def _has(served: FieldValue, value: FieldValue) -> bool:
    if isinstance(served, tuple) and isinstance(value, int):
        return served[0] <= value <= served[1]
    return served == value


def default_trees(shape: BoundaryShape) -> dict[str, Tree]:
    """The defaults of docs/spec_files.md; where a chunk doesn't divide its length, chunks of one element."""
    chunk = 8 if shape.hidden % 8 == 0 else 1
    lanes = _lanes(shape.hidden // chunk)
    return {
        "norm": (1, lanes, chunk),
        "down": (shape.branches, lanes, chunk),
        "up": (1, 32, 2 if shape.low_rank % 2 == 0 else 1),
    }


def _lanes(limit: int) -> int:
    """The largest legal number of lanes up to `limit`: multiples of 32 up to 1024, powers of two below 32."""
    if limit >= 32:
        return min(limit, 1024) // 32 * 32
    return 1 << int(math.log2(max(limit, 1)))
