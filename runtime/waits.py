"""The error record of kernels whose CTAs wait for each other: polled by calls, read and cleared on request.

Such a kernel gives up after a while, because another kernel may keep some of its CTAs off the GPU. Its outputs are
then NaN, and the record in the plan's state says which CTA waited for what; until it is cleared, no CTA waits again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .async_record import AsyncRecord
from .errors import CtasApart

if TYPE_CHECKING:
    import torch

RECORD = "record"
"""Name of the state that kernels write it to."""
WORDS = 8
"""Its 32-bit words: failures; then of the first one CTA, row, branch, expected and seen generation."""
LOOK_SECONDS = 0.05
"""Least time between two reads of the record by calls."""


class WaitRecord:
    """The record in one stream's state."""

    __slots__ = ("_candidate", "_looked", "_record")

    def __init__(self, state: torch.Tensor, offset: int, candidate: str) -> None:
        """Watch `state`, uint8 `[bytes]`, whose record begins at `offset`; `candidate` is for messages."""
        import torch

        self._candidate, self._looked = candidate, time.monotonic()
        self._record = AsyncRecord(state[offset : offset + 4 * WORDS].view(torch.int32))

    def poll(self) -> None:
        """Raise if a call before this one gave up, without waiting for anything; not while capturing.

        Raises:
            CtasApart: one did.
        """
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._raise(self._record.look() or [0] * WORDS)

    def check(self) -> None:
        """Read what the kernels that have ended by now left; waits for a copy.

        Raises:
            CtasApart: one gave up.
        """
        self._raise(self._record.read())

    def forget(self) -> None:
        """Discard copies of the record that were made before it was cleared."""
        self._record.forget()

    def _raise(self, words: list[int]) -> None:
        failures, cta, row, branch, expected, seen = words[:6]
        if not failures or not expected:  # the count is written first: the next look finds the rest
            return
        others = f"; {failures - 1} more waits failed" if failures > 1 else ""
        raise CtasApart(
            f"candidate {self._candidate} gave up: its CTA {cta} waited in vain for row {row} of branch {branch} of "
            f"call {expected % 2**32}, and last saw that of call {seen % 2**32}{others}. All outputs since then are "
            "NaN. Other work on the GPU kept its CTAs from being there together, or one state was used on two "
            "streams at once, as by two replays of a graph: end that, or take a candidate of route two_kernels, then "
            "call reset() of the plan"
        )
