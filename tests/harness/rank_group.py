"""Ranks on the emulator: their channels, launches of generated kernels, and what these must store.

A family's own group says how a channel looks before its first call, and which buffers a call has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Object, compile_text
from kernwright.evidence.oracle.dtypes import storage
from kernwright.generator.sources import GeneratedCandidate

SECOND = 1_000_000_000
"""Nanoseconds."""
Edit = tuple[str, str]


def edited(text: str, edits: Sequence[Edit], where: str) -> str:
    """A text with changes, each of which must fit."""
    for old, new in edits:
        assert old in text, f"{old!r} isn't in the text of {where}"
        text = text.replace(old, new)
    return text


def to_bits(values: Any, dtype: str) -> Any:
    """Values rounded to a storage dtype, as its bits."""
    values = np.asarray(values, np.float32)
    return values.view(np.uint32) if dtype == "float32" else storage(dtype).store(values)


def spread(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Random values as bits, of sizes so far apart that the order of adding them matters."""
    return to_bits(np.ldexp(rng.standard_normal(shape), rng.integers(-3, 4, shape)), dtype)


@dataclass(kw_only=True)
class RankGroup:
    """Ranks that share a channel; calls append launches and what they must store.

    A subclass sets before the first call: `entry`, the `GeneratedWorkload`; `ranks`, how many; `layout` of their
    channel; and `channels`, a buffer a rank.
    """

    edits: tuple[Edit, ...] = ()
    """Changes to every text; each must fit in each."""
    launches: list[EmulatedLaunch] = field(default_factory=list)
    expected: dict[DeviceBuffer, Any] = field(default_factory=dict)

    def candidate(self, name: str) -> GeneratedCandidate:
        return next(c for c in self.entry.candidates if c.candidate.name == name)

    def kernel(self, name: str) -> Object:
        """A candidate's text with the edits, compiled."""
        return compile_text(edited(self.candidate(name).sources[-1].text, self.edits, name), f"{name}.cu")

    def launch(
        self,
        name: str,
        kernel: str,
        arguments: Mapping[str, Any],
        rank: int,
        *,
        device: int | None = None,
        stream: int = 0,
        one_grid: bool = False,
        timeout_s: int = 30,
    ) -> None:
        """Launch one kernel of a candidate for a rank, or with `one_grid` for all ranks at once.

        Args:
            arguments: the buffers and scalars by name; what every kernel of ranks takes is added.
            device: the emulator's rank; the rank itself by default.
        """
        made = self.candidate(name)
        geometry = made.lowering.kernels[kernel]
        known = {
            "channels": tuple(self.channels),
            "rank_base": np.uint32(rank),
            "timeout_ns": np.uint64(timeout_s * SECOND),
            **arguments,
        }
        grid = (geometry.grid[0], self.ranks if one_grid else 1, geometry.grid[2])
        args: Any = tuple(known[argument] for argument in geometry.args)
        at = rank if device is None else device
        self.launches.append(
            EmulatedLaunch(
                self.kernel(name), made.symbols[kernel], grid, geometry.block, args, rank=at, stream=stream
            )
        )

    def words(self, arrays: Any, rank: int) -> Any:
        """A rank's channel after a run, as 32-bit words."""
        return arrays[self.channels[rank]].view(np.uint32)

    def record(self, arrays: Any, rank: int) -> list[int]:
        """A rank's error record after a run: failures, rank, peer, then what it waited for and saw, and the CTA."""
        found: list[int] = self.words(arrays, rank)[self.layout.record // 4 :][:7].tolist()
        return found
