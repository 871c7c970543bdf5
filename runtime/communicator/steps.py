"""Steps that ranks take together: a local part, which may fail on any rank, then one exchange of how it went.

A rank that leaves a sequence of collectives early takes the next one for the one that its peers are in, and so
does the application's own. So whatever is collective here goes through `attempt`: every rank comes to the exchange,
and afterwards all know what happened on all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import PeerFailed, first_line

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How a step went."""

    what: str
    """The step in words: `wait for its work`."""
    values: list[Any]
    """What it gave on each rank; None where it failed."""
    problems: list[str | None]
    """Why it failed, by rank."""
    error: Exception | None
    """This rank's own."""

    @property
    def problem(self) -> str | None:
        """The first rank that failed, and why; the same on every rank."""
        return next((f"rank {rank}: {text}" for rank, text in enumerate(self.problems) if text), None)

    def all(self) -> list[T]:
        """What the step gave on each rank.

        Raises:
            PeerFailed: it failed on another rank; on the rank itself its own error.
        """
        if self.error is not None:
            raise self.error
        if self.problem is not None:
            raise PeerFailed(f"another rank could not {self.what}; {self.problem}")
        return self.values


def attempt(what: str, step: Callable[[], T], group: torch.distributed.ProcessGroup | None) -> Outcome[T]:
    """Take a local step and learn how it went on all ranks of `group`: one exchange, whatever the step does.

    What the step gives is pickled for the peers.
    """
    import torch.distributed as distributed

    value: T | None = None
    error: Exception | None = None
    try:
        value = step()
    except Exception as caught:  # what a step may raise is its own, and the peers wait either way
        error = caught
    problem = None if error is None else first_line(error)
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, (value, problem), group=group)
    return Outcome(what, [entry[0] for entry in found], [entry[1] for entry in found], error)
