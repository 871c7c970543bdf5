"""What communicators with channels have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from ...table import Build
from ..device import Device, current
from ..launch import Module
from ..loader import load
from . import LAYOUT_VERSION
from .channel import Channel
from .steps import Outcome

if TYPE_CHECKING:
    import torch

    from ..eligibility import LoadKey

T = TypeVar("T")


CLOSED = "the communicator is closed; make a new one"


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
        self.unusable: dict[LoadKey, str] = {}
        """Builds that a rank couldn't load, and why: no rank of this communicator dispatches them."""
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

    @property
    def shared(self) -> bool:
        """Whether other processes have ranks of it, which must decide alike on every call."""
        return self.local_ranks < self.world_size

    def reset(self) -> None:
        """Make the channels as new, after an error; waits for all work on the device. In a group it is collective.

        Raises:
            PeerFailed: another rank could not; on that rank its own error.
        """
        self.together("wait for its work", self.finish).all()  # no kernel of any rank is on the channels now
        self.together("clear its channels", self._clear).all()  # and none begins before all are clear
        self.generation += 1

    def _clear(self) -> None:
        for channel in self._channels.values():
            channel.clear()
        self.finish()

    def settle(self) -> None:
        """Wait until no rank has work on its device; collective, errors as `reset`."""
        self.together("wait for its work", self.finish).all()

    def close(self, *, free_captured: bool = False) -> None:
        """Give the channels' memory back; as `reset`. Calls on them raise from now on.

        Args:
            free_captured: also the memory of channels that a rank has captured in a CUDA graph: no such graph is
                replayed any more. Else that memory stays for the life of the process, because a replay writes to it.
        """
        mine = set() if free_captured else {name for name, entry in self._channels.items() if entry.captured}

        def ended() -> set[str]:
            self.finish()
            return mine

        done = self.together("wait for its work", ended)
        everything = set(self._channels)  # of a rank that failed nothing is known
        kept = {name for found in done.values for name in (everything if found is None else found)}
        left = self.together("leave its peers' memory", lambda: self._leave(kept))
        for name, channel in self._channels.items():
            if left.problem is not None:
                channel.keep()  # a peer may still reach it
            elif name not in kept:
                with suppress(Exception):  # a rank that can't free has nothing left to tell
                    channel.free()
        self._channels.clear()
        self.generation += 1
        for outcome in (done, left):
            outcome.all()

    def _leave(self, kept: set[str]) -> None:
        for channel in self._channels.values():
            channel.closed = True  # all of them, whatever leaving one gives
        for name, channel in self._channels.items():
            channel.close(keep=name in kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close; where an error leaves the block, keep the memory instead: the peers needn't be at the same point."""
        if kind is None or not self.shared:
            self.close()
            return
        for channel in self._channels.values():
            channel.keep()  # whatever closing gives
            with suppress(Exception):  # the error that is on its way says more
                channel.close(keep=True)
        self._channels.clear()
        self._absence = CLOSED
        self.generation += 1

    @abstractmethod
    def finish(self) -> None:
        """Wait for all work of this process on the device."""

    @abstractmethod
    def together(self, what: str, step: Callable[[], T]) -> Outcome[T]:
        """Take a local step, and learn how it went on all ranks; collective in a group. `what` says it in words."""
