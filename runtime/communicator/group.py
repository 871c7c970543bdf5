"""The communicator of a process group: one rank a process, one GPU a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast, get_args

from ...table import Table
from ..device import placed
from ..errors import first_line
from .agreement import agree, exchange, obstacle, statement
from .channel import Channel, ChannelPlan, channel_plans
from .memory import MAKERS, Backend
from .owner import ChannelOwner

if TYPE_CHECKING:
    import torch


class GroupCommunicator(ChannelOwner):
    """Ranks of a `torch.distributed` group, and the channels between their GPUs.

    Making, resetting and closing it are collective: all ranks of the group do so. Where the ranks can't share
    memory it has no channels, `absence` says why, and ops fall back to `torch.distributed`.
    """

    local_ranks = 1

    def __init__(
        self,
        table: Table,
        group: torch.distributed.ProcessGroup | None = None,
        *,
        specs: Iterable[str] | None = None,
        backend: str | None = None,
        device: torch.device | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Agree with the other ranks and open the channels.

        Args:
            table: the dispatch table, whose workloads of the group's size have the channels.
            group: by default the world.
            specs: names of those whose channels are wanted; by default all of the world size.
            backend: `symmetric_memory` or `ipc`; by default the first that works.
            device: by default torch's current CUDA device, or the CPU where the group can't use one.
            timeout_s: how long a kernel waits for a peer.

        Raises:
            ValueError: an unknown backend or spec, or a timeout that isn't above 0.
            Disagreement: the ranks were given different things; every rank raises it.
        """
        import torch.distributed as distributed

        super().__init__()
        if backend is not None and backend not in get_args(Backend):
            raise ValueError(
                f"backend is {backend!r}; allowed are {', '.join(get_args(Backend))}, or None for whichever works"
            )
        if not 0 < timeout_s < 2**31:
            raise ValueError(f"timeout_s is {timeout_s}; it must be above 0 seconds")
        self.group = group
        self.rank, self.world_size = distributed.get_rank(group), distributed.get_world_size(group)
        self.device = _device(group) if device is None else placed(device)
        self.timeout_ns = round(timeout_s * 1e9)
        plans = channel_plans(table, self.world_size, specs)
        mine = statement(self.device, backend or "any", self.timeout_ns, plans)
        self._statements = exchange(mine, group)
        agree(self._statements)
        self._absence = obstacle(self._statements)
        self.backend: Backend | None = None
        if self._absence is None:
            self._open(plans, cast("Backend | None", backend))

    def _open(self, plans: list[ChannelPlan], backend: Backend | None) -> None:
        import torch.distributed as distributed

        failures: dict[str, str] = {}
        for name in (backend,) if backend else get_args(Backend):
            problem = self._try(name, plans)
            problems: list[str | None] = [None] * self.world_size
            distributed.all_gather_object(problems, problem, group=self.group)
            found = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text]
            if not found:
                self.backend = name
                self.capabilities = frozenset(c for plan in plans for c in plan.capabilities)
                return
            failures[name] = found[0]
            self._channels.clear()
        said = "; ".join(f"{name} failed ({why})" for name, why in failures.items())
        self._absence = f"no backend gives the ranks shared memory: {said}"

    def _try(self, backend: Backend, plans: list[ChannelPlan]) -> str | None:
        import torch

        group = self.group if self.group is not None else torch.distributed.group.WORLD
        try:
            for plan in plans:
                shared = MAKERS[backend](plan.size, self.device, group)
                memory = shared.own.view(1, plan.size)
                self._channels[plan.name] = Channel(plan, memory, shared.addresses, self.rank, shared.close)
        except Exception as error:  # what each backend raises where it can't work is its own
            return first_line(error)
        return None

    def close(self) -> None:
        """Give the channels' memory back; see `ChannelOwner.close`."""
        if self._channels:
            super().close()
            self._absence = "the communicator is closed; make a new one"

    def _settle(self) -> None:
        import torch

        if self._channels:
            torch.cuda.synchronize(self.device)
            torch.distributed.barrier(self.group)

    def __enter__(self) -> GroupCommunicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _device(group: torch.distributed.ProcessGroup | None) -> torch.device:
    import torch
    import torch.distributed as distributed

    # Not get_backend(): a group that was made without naming one says "undefined" there.
    chosen = group if group is not None else distributed.group.WORLD
    served = {kind.type for kind in getattr(chosen, "_device_types", ())}
    if torch.cuda.is_available() and "cuda" in served:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
