"""The workload as the oracle sees it: sizes, dtype and trees of one hyper-connection boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...evidence.oracle.dtypes import Storage, storage
from ...evidence.oracle.trees import check
from ...table import Tree
from .shape import BoundaryShape


@dataclass(frozen=True, slots=True)
class OracleShape(BoundaryShape):
    """Everything besides the tensors that fixes the right answer of a boundary (docs/hyper_connection.md).

    Raises:
        ValueError: for an unknown dtype, a size below 1 or a tree that doesn't fit its length.
    """

    trees: Mapping[str, Tree] = field(kw_only=True)
    """(segments, lanes, chunk) of `norm` over H, `down` over HC*H and `up` over R."""

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
