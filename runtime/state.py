"""State that kernels keep between calls of one stream; some is preallocated for streams first seen in a capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..table import CtaRecord
from .unpooled import unpooled
from .waits import WaitRecord

if TYPE_CHECKING:
    import torch

SPARES = 8
"""Kept of each: the kinds of an op, all of them captured on a stream without an earlier call."""

_preallocated: dict[StateKind, list[State]] = {}


@dataclass(frozen=True, slots=True)
class StateKind:
    """Whose state, and what it looks like; states of one kind are all alike until they are used."""

    candidate: str
    index: int
    """Ordinal of the device."""
    nbytes: int
    record_at: int | None
    """Where the record of failed waits begins, bytes; None: no kernel waits."""
    record: CtaRecord
    """What the record holds."""

    def make(self) -> State:
        """New state, zeroed on the current stream; not inside a capture, whose replays would zero it again."""
        memory = unpooled(self.nbytes, f"cuda:{self.index}")
        if self.record_at is None:
            return State(memory)
        return State(memory, WaitRecord(memory, self.record_at, self.candidate, self.record))

    def preallocate(self) -> None:
        """Preallocate what is missing; a capture begins with a synchronisation, so the states are zero then."""
        kept = _preallocated.setdefault(self, [])
        while len(kept) < SPARES:
            kept.append(self.make())

    def take_preallocated(self) -> State | None:
        """A preallocated state, if there is one."""
        try:
            return _preallocated[self].pop()
        except (KeyError, IndexError):
            return None


@dataclass(slots=True)
class State:
    """The state of one stream."""

    memory: torch.Tensor
    """uint8 `[bytes]`."""
    record: WaitRecord | None = None
    address: int = field(init=False)

    def __post_init__(self) -> None:
        """Note the address: a call needs nothing else."""
        self.address = self.memory.data_ptr()
