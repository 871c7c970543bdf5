"""What a caller gets that names a channel."""

from __future__ import annotations

from typing import Any

from .owner import ChannelOwner


class SingleChannel:
    """A view of a communicator, as if it had one channel."""

    def __init__(self, comm: ChannelOwner, channel: str) -> None:
        self.rank, self.world_size, self.layout_version = comm.rank, comm.world_size, comm.layout_version
        self.capabilities, self._comm, self._channel = comm.capabilities, comm, channel

    def owns(self, channel: str) -> bool:
        return channel == self._channel and self._comm.owns(channel)

    def absence(self, channel: str) -> str | None:
        if channel != self._channel:
            return f"channel {self._channel} was asked for"
        return self._comm.absence(channel)

    def __getattr__(self, name: str) -> Any:
        """What plans ask of the owner."""
        return getattr(self._comm, name)
