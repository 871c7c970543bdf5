"""What communicators with channels have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from ...table import Build
from ..device import Device, current
from ..launch import Module
from ..loader import load
from . import LAYOUT_VERSION
from .channel import Channel

if TYPE_CHECKING:
    import torch


class ChannelOwner(ABC):
    """Channels by the names of their specs, and how kernels that use them are loaded.

    Attributes:
        rank: of this process, or the first of its ranks.
        world_size: number of ranks.
        local_ranks: ranks of this process; with several, tensors carry the rank as their first dimension.
        device: where the ranks of this process work.
        timeout_ns: how long a kernel waits for a peer.
        generation: how often the channels were made anew or closed: what ops remember of them is void then.
        capabilities: what candidates may ask for.
    """

    layout_version = LAYOUT_VERSION
    rank: int
    world_size: int
    local_ranks: int
    device: torch.device
    timeout_ns: int
    capabilities: frozenset[str]
    group: torch.distributed.ProcessGroup | None = None
    generation: int = 0
    torch_name: str | None = None
    """The communicator's name in graphs; `publish` of the dispatch module gives it."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self._absence: str | None = None
        self.capabilities = frozenset()

    def owns(self, channel: str) -> bool:
        """Whether the channel was opened here."""
        return channel in self._channels

    def absence(self, channel: str) -> str | None:
        """Why a channel isn't there, in a sentence; None where nothing is known to stand in its way."""
        return None if channel in self._channels else self._absence

    def channel(self, name: str) -> Channel:
        """An open channel."""
        return self._channels[name]

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the open channels."""
        return tuple(self._channels)

    @property
    def target(self) -> Device:
        """Where kernels of this communicator run."""
        return current(self.device)

    def device_of(self, tensor: torch.Tensor) -> Device:
        """Where a call on the tensor runs."""
        return current(tensor.device)

    def load(self, root: Path, build: Build, arch: str, device: Device) -> Module:
        """As `loader.load`."""
        return load(root, build, arch, device)

    def check(self) -> None:
        """Read all channels' error records; waits for a small copy, not for kernels.

        Raises:
            PeerTimeout: a peer didn't come to a call.
            Overlap: two calls used a channel at the same time.
            OtherCall: a peer made another call than this rank.
        """
        for channel in self._channels.values():
            channel.check()

    def reset(self) -> None:
        """Make the channels as new, after an error; waits for all work on the device. In a group it is collective."""
        self._settle()  # no kernel of any rank is on the channels now
        for channel in self._channels.values():
            channel.clear()
        self._settle()  # and none begins before all are clear
        self.generation += 1

    def close(self) -> None:
        """Give the channels' memory back; as `reset`. Graphs that use them can't be replayed any more."""
        self._settle()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self.generation += 1

    @abstractmethod
    def _settle(self) -> None:
        """Wait for all work on the channels, that of other ranks too."""
