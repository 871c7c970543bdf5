"""Who runs when: a seed and a policy, from which a run follows exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

SchedulerPolicy = Literal["round_robin", "random", "adversarial"]
POLICIES: tuple[SchedulerPolicy, ...] = get_args(SchedulerPolicy)


@dataclass(frozen=True, slots=True)
class Interleaving:
    """One interleaving of all CUDA threads; docs/emulator.md says what each policy does."""

    seed: int = 0
    policy: SchedulerPolicy = "round_robin"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"Policy {self.policy!r} is unknown; use one of {', '.join(POLICIES)}.")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"Seed {self.seed} is out of range; it must be from 0 to 2**64 - 1.")

    def __str__(self) -> str:
        return f"Interleaving(seed={self.seed}, policy={self.policy!r})"


def schedules(seeds: int, first: int = 0) -> Iterator[Interleaving]:
    """So many different schedules: round robin once, then random and adversarial in turn."""
    for seed in range(first, first + seeds):
        yield Interleaving(seed, "round_robin" if seed == 0 else "random" if seed % 2 else "adversarial")
