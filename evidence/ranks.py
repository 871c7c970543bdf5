"""What a sample is when several processes run it together: the time of the slowest."""

from __future__ import annotations


def slowest(milliseconds: float) -> float:
    """The largest of all ranks' values; the value itself where torch.distributed isn't initialised."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return milliseconds
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    worst = torch.tensor([milliseconds], dtype=torch.float64, device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst.item())
