"""The owner rule in types: kernels that talk to peers run only on the communicator that owns their channel.

A channel belongs to one spec, and the communicator that owns it advertises the version of its layout and what
it can do. A capability that the owner lacks means unsupported, whatever else is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ...table import Table

LAYOUT_VERSION = 1
"""Version of the channels' layout that this toolkit's kernels are generated for."""


@runtime_checkable
class Communicator(Protocol):
    """The ranks that work on one call, and the channels between them.

    A communicator that lacks a channel may say why in a method `absence(channel)`, which gives a sentence or None.
    """

    @property
    def rank(self) -> int:
        """This process's rank, 0 to `world_size` - 1."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def layout_version(self) -> int:
        """Version of the layout of this communicator's channels."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can do, by the names that candidates ask for."""

    def owns(self, channel: str) -> bool:
        """Whether `channel` was made by this communicator."""


@dataclass(frozen=True)
class Imagined:
    """A stand-in for a communicator that owns one channel: for questions about shapes, as `fake` devices are."""

    channel: str
    world_size: int
    capabilities: frozenset[str]
    rank: int = 0
    layout_version: int = LAYOUT_VERSION

    def owns(self, channel: str) -> bool:
        return channel == self.channel

    def absence(self, channel: str) -> str:
        return f"the question is about spec {self.channel}; {channel} is another's channel"


def imagined(table: Table, channel: str, world_size: int) -> Imagined:
    """One that can do all that the candidates of a table ask for."""
    needed = (name for work in table.workloads for c in work.candidates for name in c.capabilities)
    return Imagined(channel, world_size, frozenset(needed))


def objection(needed: tuple[str, ...], channel: str, comm: Communicator | None) -> str | None:
    """Why a candidate that needs the capabilities `needed` on `channel` can't run on `comm`, or None.

    A candidate that needs nothing exchanges nothing, so it asks for no owner.
    """
    if not needed:
        return None
    if comm is None:
        return f"it talks to peers over channel {channel}, which needs a communicator; none was given"
    if not comm.owns(channel):
        absence: str | None = getattr(comm, "absence", lambda _: None)(channel)
        unowned = f"the communicator doesn't own channel {channel}; only the one that made it may use it"
        return absence or unowned
    if comm.layout_version != LAYOUT_VERSION:
        return (
            f"the communicator that owns channel {channel} has layout version {comm.layout_version}; "
            f"these kernels are generated for version {LAYOUT_VERSION}"
        )
    lacking = [name for name in needed if name not in comm.capabilities]
    if lacking:
        has = ", ".join(sorted(comm.capabilities)) or "none"
        lacks = ", ".join(lacking)
        return f"the communicator that owns channel {channel} lacks capability {lacks}; it has {has}"
    return None
