"""The error record of kernels whose CTAs wait for each other: polled by calls, read and cleared on request.

Such a kernel gives up after a while, because another kernel may keep some of its CTAs off the GPU. Its outputs are
then NaN, and the record in the plan's state says which CTA waited for what; until it is cleared, no CTA waits again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..table import CTA_FIELDS, CtaRecord
from .async_record import AsyncRecord, read
from .errors import CtasApart

if TYPE_CHECKING:
    import torch

RECORD = "record"
"""Name of the state that kernels write it to."""
LOOK_SECONDS = 0.05
"""Least time between two reads of the record by calls."""


class WaitRecord:
    """The record in one stream's or capture's state."""

    __slots__ = ("_candidate", "_layout", "_looked", "_polled", "_record")

    def __init__(self, state: torch.Tensor, offset: int, candidate: str, layout: CtaRecord) -> None:
        """Watch `state`, uint8 `[bytes]`, whose record begins at `offset`; `candidate` is for messages."""
        import torch

        self._candidate, self._layout, self._looked = candidate, layout, time.monotonic()
        end = offset + 4 * len(layout.fields)
        self._record = state[offset:end].view(torch.int32)
        self._polled: AsyncRecord | None = None  # nobody polls a capture's

    def poll(self) -> None:
        """Raise CtasApart if a call before this one gave up, without waiting for anything; not while capturing."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            if self._polled is None:
                self._polled = AsyncRecord(self._record)
            self._raise(self._polled.look() or [0] * len(self._layout.fields))

    def check(self) -> None:
        """Raise CtasApart if a kernel that has ended by now gave up; waits for a copy."""
        self._raise(read(self._record))

    def forget(self) -> None:
        """Discard copies of the record that were made before it was cleared."""
        if self._polled is not None:
            self._polled.forget()

    def _raise(self, words: list[int]) -> None:
        found = dict(zip(self._layout.fields, words, strict=True))
        failures, cta, expected, seen = (found[name] for name in CTA_FIELDS)
        if not failures or not expected:  # the count is written first: the next look finds the rest
            return
        awaited = f"{self._layout.awaited.format(**found)} of call {expected % 2**32}"
        others = f"; {failures - 1} more waits failed" if failures > 1 else ""
        raise CtasApart(
            f"candidate {self._candidate} gave up: its CTA {cta} waited in vain for {awaited}, and last saw that of "
            f"call {seen % 2**32}{others}. All outputs since then are NaN. Other work on the GPU kept its CTAs from "
            "being there together, or one state was used on two streams at once, as by two replays of a graph: end "
            "that, or take a candidate whose CTAs don't wait for each other, then call reset() of the plan"
        )
