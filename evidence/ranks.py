"""What a sample is when several processes run it together: the time of the slowest, valid where it is everywhere.

All ranks must decide alike: one that takes a replay or a group more than its peers waits for them for ever.
"""

from __future__ import annotations


def slowest(milliseconds: float) -> float:
    """The largest of all ranks' values; the value itself where torch.distributed isn't initialised."""
    import torch
    import torch.distributed as dist

    if not _several():
        return milliseconds
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    worst = torch.tensor([milliseconds], dtype=torch.float64, device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst.item())


def agreed(problem: str | None) -> str | None:
    """The first rank's problem that has one, on every rank; the problem itself where there is one process."""
    import torch.distributed as dist

    if not _several():
        return problem
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((f"rank {rank}: {found}" for rank, found in enumerate(problems) if found), None)


def _several() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
