"""State that kernels keep between the calls of one stream, or of one stream's part in one captured graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..table import CtaRecord
from .unpooled import zeroed
from .waits import WaitRecord

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StateKind:
    """Whose state, and what it looks like; states of one kind are all alike until they are used."""

    candidate: str
    device: str
    """`cuda:0`, or `cpu` for the emulator."""
    nbytes: int
    record_at: int | None
    """Where the record of failed waits begins, bytes; None: no kernel waits."""
    record: CtaRecord
    """What the record holds."""

    def make(self) -> State:
        """New state, zero; also inside a capture, which it doesn't become a part of."""
        memory = zeroed(self.nbytes, self.device)
        if self.record_at is None:
            return State(memory)
        return State(memory, WaitRecord(memory, self.record_at, self.candidate, self.record))


@dataclass(slots=True)
class State:
    """One state."""

    memory: torch.Tensor
    """uint8 `[bytes]`."""
    record: WaitRecord | None = None
    address: int = field(init=False)

    def __post_init__(self) -> None:
        """Note the address: a call needs nothing else."""
        self.address = self.memory.data_ptr()
