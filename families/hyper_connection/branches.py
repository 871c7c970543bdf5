"""How many branches a hyper-connection call has: by its tensors, else as stated, else by the dispatch table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...table import Table
from .shape import FAMILY

if TYPE_CHECKING:
    import torch


def branches_of(
    table: Table, given: Mapping[str, torch.Tensor], state: int, low_rank: int, stated: int | None
) -> int:
    """HC: from block, injection or a shared norm weight; else as stated; else by the table.

    Args:
        table: of the dispatch module.
        given: the inputs by name.
        state: elements of a residual row.
        low_rank: R; 0 where the kind has none.
        stated: by the caller.

    Raises:
        ValueError: they contradict each other, or nothing tells.
    """
    found: dict[str, int] = {}
    hidden: dict[str, int] = {}
    if "block" in given and given["block"].ndim == 2:
        hidden["block"] = int(given["block"].shape[1])
    if "norm_weight" in given and given["norm_weight"].numel() != state:
        hidden["norm_weight"] = int(given["norm_weight"].numel())
    for name, size in hidden.items():
        if size == 0 or state % size:
            raise ValueError(
                f"{name} has {size} elements a branch, which doesn't divide the {state} of a residual row"
            )
        found[name] = state // size
    if "injection" in given and given["injection"].ndim == 2:
        found["injection"] = int(given["injection"].shape[1])
    if stated is not None:
        found["branches="] = stated
    if not found:
        found["the dispatch table"] = _branches_of_table(table, state, low_rank)
    if len(set(found.values())) > 1:
        raise ValueError(
            "the number of branches is contradictory: "
            + ", ".join(f"{value} by {name}" for name, value in found.items())
        )
    (branches,) = set(found.values())
    if branches < 2 or state % branches:
        raise ValueError(
            f"branches is {branches} by {next(iter(found))}; it must be at least 2 and divide "
            f"the {state} elements of a residual row"
        )
    return branches


def _branches_of_table(table: Table, state: int, low_rank: int) -> int:
    fitting = {
        int(str(work.fields["branches"]))
        for work in table.workloads
        if work.family == FAMILY
        and int(str(work.fields["branches"])) * int(str(work.fields["hidden"])) == state
        and (work.fields["low_rank"], work.fields["norm_weight"]) == (low_rank, "per_branch")
    }
    if len(fitting) == 1:
        return fitting.pop()
    which = f"several ({', '.join(map(str, sorted(fitting)))})" if fitting else "none"
    raise ValueError(
        f"the tensors don't determine the number of branches of a residual row of {state} elements, and the "
        f"dispatch table has {which} for low_rank {low_rank}; pass branches="
    )
