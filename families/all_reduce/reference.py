"""The all-reduce without our kernels: torch.distributed, or the sum in rank order that gives the kernels' bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as distributed


def in_rank_order(contributions: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum in FP32, from rank 0's value on, rounded once (docs/numerics.md)."""
    dtype = contributions[0].dtype
    single = dtype in (torch.float16, torch.bfloat16, torch.float32)
    total = contributions[0].float() if single else contributions[0].clone()
    for tensor in contributions[1:]:
        total = total + (tensor.float() if single else tensor)
    return total.to(dtype)


def local_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What a rank contributes to a two-input reduction: rounded to the storage dtype on its own."""
    return in_rank_order([a, b])


def fallback(
    kind: str, ranks: int, group: distributed.ProcessGroup | None, exact: bool
) -> Callable[..., torch.Tensor]:
    """What serves a kind where no kernel does: a function of what a rank, or all of this process, contribute.

    Args:
        kind: `sum2` takes two tensors, the others one.
        ranks: of this process; with several, tensors have the rank as their first dimension.
        group: of a process with one rank.
        exact: see `over_group`.
    """

    def total(*given: torch.Tensor) -> torch.Tensor:
        mine = local_sum(*given) if kind == "sum2" else given[0]
        if ranks == 1:
            return over_group(mine, group, exact)
        return in_rank_order(mine.unbind(0)).expand_as(mine).contiguous()

    return total


def over_group(tensor: torch.Tensor, group: distributed.ProcessGroup | None, exact: bool) -> torch.Tensor:
    """Of a process group: the library's own, or all contributions gathered and added in rank order."""
    given = tensor.contiguous()
    if not exact:
        reduced = given.clone()
        distributed.all_reduce(reduced, group=group)
        return reduced
    found = [torch.empty_like(given) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, given, group=group)
    return in_rank_order(found)
