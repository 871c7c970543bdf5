"""Samples of several processes that run together: the time of the slowest, valid if it is valid on every rank.

All ranks must decide alike: one that takes a replay or a group more than its peers waits for them for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PROBLEM_BYTES = 256
"""Room for a problem's text on its way to the other ranks; longer ones are cut."""


@dataclass(frozen=True)
class RankJob:
    """The processes that measure together."""

    rank: int
    size: int
    """How many there are."""
    pids: frozenset[int]
    """Process IDs of all ranks: not foreign to one another."""


def in_job() -> bool:
    """Whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ  # WORLD_SIZE alone is set by many a cluster


def speaks() -> bool:
    """Whether this process prints what its job found: rank 0 does, and a process alone."""
    return not in_job() or os.environ.get("RANK") == "0"


@contextmanager
def job() -> Iterator[RankJob]:
    """Join the job of `torchrun` if it started this process; else be a job of one rank."""
    if not in_job():
        yield RankJob(0, 1, frozenset({os.getpid()}))
        return
    import torch
    import torch.distributed as dist

    # A multicast object is a resource of the whole host, and nothing measured here needs one.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        pids = _gathered(torch.tensor([os.getpid()], dtype=torch.int64))
        yield RankJob(dist.get_rank(), dist.get_world_size(), frozenset(int(pid) for pid in pids))
    finally:
        dist.destroy_process_group()


def slowest(milliseconds: float) -> float:
    """The largest of all ranks' values; the value itself where torch.distributed isn't initialised."""
    return max(_each(milliseconds))


def total(number: int) -> int:
    """The sum of all ranks' numbers."""
    return int(sum(_each(number)))


def _each(number: float) -> list[float]:
    """Every rank's number; this process's alone where torch.distributed isn't initialised."""
    import torch

    if not _several():
        return [number]
    return [float(value) for value in _gathered(torch.tensor([number], dtype=torch.float64))]


def agreed(problem: str | None) -> str | None:
    """The first rank's problem that has one, on every rank; the problem itself where there is one process."""
    if not _several():
        return problem
    problems = _texts(problem or "")
    return next((f"rank {rank}: {found}" for rank, found in enumerate(problems) if found), None)


def first_says(text: str) -> str:
    """Rank 0's text, on every rank: of what each could read for itself, such as a folder that one writes."""
    return _texts(text)[0] if _several() else text


def _texts(text: str) -> list[str]:
    """Every rank's text, cut to `PROBLEM_BYTES`."""
    import torch

    # Bytes, not objects: torch gathers objects by pickle.
    data = text.encode()[:PROBLEM_BYTES]
    padded = torch.tensor([*data, *bytes(PROBLEM_BYTES - len(data))], dtype=torch.uint8)
    return [bytes(found.tolist()).rstrip(b"\0").decode(errors="replace") for found in _gathered(padded)]


def _gathered(mine: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's tensor, in rank order, on the CPU."""
    import torch
    import torch.distributed as dist

    mine = mine.cuda() if dist.get_backend() == "nccl" else mine
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [tensor.cpu() for tensor in everyone]


def _several() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
