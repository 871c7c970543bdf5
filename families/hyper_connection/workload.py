"""The workload of a `hyper_connection` spec: shape, dtype and trees of a boundary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ...specs.base import (
    Count,
    HalfDType,
    IntervalOrCount,
    IntervalSpec,
    Model,
    Positive,
    TreeList,
    as_list,
    one_or_several,
)
from ...specs.errors import Finding
from ...specs.spec import WorkloadSpec
from ...specs.tree import MAX_COUNT, TreeSpec
from ...table import FieldValue
from .trees import default_trees

SMALLEST_NORMAL = 2.0**-126
"""Of FP32: a smaller eps would lose bits, or become zero."""


class Trees(Model):
    """Reduction trees `[segments, lanes, chunk]`; what isn't stated has the default of docs/spec_files.md."""

    norm: TreeList | None = None
    """Sum of squares of one branch, K = hidden."""
    down: TreeList | None = None
    """Down projection, K = branches * hidden."""
    up: TreeList | None = None
    """Up projection, K = low_rank."""


class HyperConnectionWorkload(WorkloadSpec):
    """Shape and contract of a boundary."""

    dtypes: Annotated[
        tuple[HalfDType, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="dtype"),
        one_or_several(HalfDType),
    ]
    """Storage dtype of all tensors, or a list of them."""
    branches: Annotated[Count, Field(ge=2)]
    """Residual branches, HC."""
    hidden: Count
    """Elements of a branch, H."""
    low_rank: Count
    """Rank of the gate's projection, R."""
    tokens: IntervalOrCount = IntervalSpec(min=1, max=1)
    """Tokens in a call, N: a number, or an interval { min, max }."""
    eps: Positive = 1e-6
    """Added to the mean square before the root; FP32."""
    norm_weight: Literal["per_branch", "shared"] = "per_branch"
    """Whether the norm's weight is [HC * H] or one [H] for all branches."""
    tree: Trees = Trees()
    """Reduction trees; they fix the bits of the result."""

    family: ClassVar[str] = "hyper_connection"
    SHORT_FORM: ClassVar[Mapping[str, str]] = {
        "hc": "branches",
        "h": "hidden",
        "n": "tokens",
        "r": "low_rank",
        "tp": "world_size",
    }

    @property
    def down_rows(self) -> int:
        """Rows of the down weight that are computed: R low-rank rows, then HC injection rows."""
        return self.low_rank + self.branches

    @property
    def padded_down_rows(self) -> int:
        """Rows of the down weight as stored: padded to a multiple of 16."""
        return -(-self.down_rows // 16) * 16

    def fields(self) -> dict[str, FieldValue]:
        """Give the fields of a concrete workload as plain values."""
        return {
            "dtype": self.dtype,
            "branches": self.branches,
            "hidden": self.hidden,
            "low_rank": self.low_rank,
            "tokens": (self.tokens.min, self.tokens.max),
            "world_size": self.world_size,
            "eps": self.eps,
            "norm_weight": self.norm_weight,
        }

    def trees(self) -> dict[str, TreeSpec]:
        """Give the trees of `norm`, `down` and `up`; defaults as in docs/numerics.md#reduction-trees."""
        defaults = default_trees(self.branches, self.hidden, self.low_rank)
        return {name: getattr(self.tree, name) or TreeSpec(*tree) for name, tree in defaults.items()}

    def problems(self) -> Iterator[Finding]:
        """Find trees that don't fit their length, and a weight that is too large to index."""
        if self.eps < SMALLEST_NORMAL:
            yield Finding(
                ("eps",), f"eps is {self.eps}; FP32 holds normal numbers from {SMALLEST_NORMAL:.4g} on."
            )
        lengths = {"norm": self.hidden, "down": self.branches * self.hidden, "up": self.low_rank}
        for name, tree in self.trees().items():
            message = tree.check(lengths[name])
            if message:
                yield Finding(("tree", name), message)
        down = self.padded_down_rows * self.branches * self.hidden
        residual = self.tokens.max * self.branches * self.hidden
        if max(down, residual) > MAX_COUNT:
            message = (
                f"the down weight has {down} elements and the residual {residual}; "
                f"kernels index with 32 bits, at most {MAX_COUNT}."
            )
            yield Finding(("hidden",), message)
