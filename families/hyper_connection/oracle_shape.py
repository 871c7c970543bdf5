"""The workload as the oracle sees it: sizes, dtype and trees of one hyper-connection boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...evidence.oracle.dtypes import Storage, storage
from ...evidence.oracle.trees import check
from ...table import Tree
from .shape import Kind

NormWeight = Literal["per_branch", "shared"]

_ROW_MULTIPLE = 16
"""down_weight is padded to a multiple of so many rows."""


@dataclass(frozen=True, slots=True)
class OracleShape:
    """Everything besides the tensors that fixes the right answer of a boundary (docs/hyper_connection.md).

    Raises:
        ValueError: for an unknown dtype, a size below 1 or a tree that doesn't fit its length.
    """

    dtype: str
    """Storage dtype: float16 or bfloat16."""
    branches: int
    """HC."""
    hidden: int
    """H."""
    low_rank: int
    """R."""
    tokens: int
    """N."""
    trees: Mapping[str, Tree]
    """(segments, lanes, chunk) of `norm` over H, `down` over HC*H and `up` over R."""
    norm_weight: NormWeight = "per_branch"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        storage(self.dtype)
        if min(self.branches, self.hidden, self.low_rank, self.tokens) < 1:
            raise ValueError(
                f"branches {self.branches}, hidden {self.hidden}, low_rank {self.low_rank} and "
                f"tokens {self.tokens} must all be at least 1."
            )
        if set(self.trees) != {"norm", "down", "up"}:
            raise ValueError(f"Trees {sorted(self.trees)} were given; norm, down and up are needed.")
        check(self.trees["norm"], self.hidden)
        check(self.trees["down"], self.width)
        check(self.trees["up"], self.low_rank)

    @property
    def storage(self) -> Storage:
        """The storage dtype."""
        return storage(self.dtype)

    @property
    def width(self) -> int:
        """HC * H: the elements of one token's state."""
        return self.branches * self.hidden

    def down_rows(self, kind: Kind) -> int:
        """Rows of down_weight: R for the final mixer, else R + HC padded to a multiple of 16."""
        rows = self.low_rank + self.branches
        return self.low_rank if kind == "final" else rows + -rows % _ROW_MULTIPLE
