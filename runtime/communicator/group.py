"""The communicator of a process group: one rank a process, one GPU a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from ...table import Table
from ..device import placed
from .agreement import Statement, agree, obstacle, statement
from .channel import Channel, ChannelPlan, channel_plans
from .digests import route_digests
from .memory import MAKERS, Backend, SharedMemory
from .owner import CLOSED, ChannelOwner
from .steps import Outcome, attempt

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


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
            PeerFailed: another rank has raised one of these errors, or another one.
        """
        import torch.distributed as distributed

        super().__init__()
        self.group = group
        self.rank, self.world_size = distributed.get_rank(group), distributed.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                "this process has no rank in the group; call communicator() on the group's ranks alone"
            )

        def stated() -> Statement:
            _check(backend, timeout_s)
            self.device = _device(group) if device is None else placed(device)
            self.timeout_ns = round(timeout_s * 1e9)
            plans = channel_plans(table, self.world_size, specs)
            digests = route_digests(table, self.world_size)
            return statement(self.device, backend or "any", self.timeout_ns, plans, digests)

        statements = self.together("make the communicator", stated).all()
        agree(statements)
        self._absence = obstacle(statements)
        self.backend: Backend | None = None
        if self._absence is None:
            self._open(statements[self.rank].channels, cast("Backend | None", backend))

    def _open(self, plans: Sequence[ChannelPlan], backend: Backend | None) -> None:
        failures: dict[str, str] = {}
        for name in (backend,) if backend else get_args(Backend):
            problem = self._try(name, plans)
            if problem is None:
                self.backend = name
                self.capabilities = frozenset(c for plan in plans for c in plan.capabilities)
                return
            failures[name] = problem
        said = "; ".join(f"{name} failed ({why})" for name, why in failures.items())
        self._absence = f"no backend gives the ranks shared memory: {said}"

    def _try(self, backend: Backend, plans: Sequence[ChannelPlan]) -> str | None:
        """Open all channels, or none on any rank; then the first rank's problem, the same on every rank.

        After every step that may fail the ranks exchange how it went, so that all are at the same step always.
        """
        import torch

        group = self.group if self.group is not None else torch.distributed.group.WORLD
        assert group is not None
        made: list[SharedMemory] = []

        def allocate() -> list[Any]:
            for plan in plans:  # one by one: what was made before one fails is freed
                made.append(MAKERS[backend](plan.size, self.device))  # noqa: PERF401
            return [one.offer for one in made]

        def reach(place: int) -> None:
            plan, shared = plans[place], made[place]
            addresses = shared.reach([offers[place] for offers in allocated.values], group)
            memory = shared.own.view(1, plan.size)
            self._channels[plan.name] = Channel(plan, memory, addresses, self.rank, shared)

        def leave() -> None:
            for one in made:
                one.leave()

        allocated = self.together("allocate its channels", allocate)
        problem, reached = allocated.problem, allocated.problem is None
        for place in range(len(plans) if reached else 0):
            problem = self.together("reach its peers' memory", partial(reach, place)).problem
            if problem is not None:
                break
        if problem is not None:
            self._channels.clear()
            # Memory that a peer still maps must not be freed; where a rank can't unmap it, it stays.
            if not reached or self.together("leave its peers' memory", leave).problem is None:
                for one in made:
                    with suppress(Exception):  # it is one rank's own, and all go on to the next backend
                        one.free()
        return problem

    def close(self, *, free_captured: bool = False) -> None:
        """Give the channels' memory back; see `ChannelOwner.close`."""
        if self._channels:
            self._absence = CLOSED
            super().close(free_captured=free_captured)

    def finish(self) -> None:
        """Wait for the device, where there are channels."""
        import torch

        if self._channels and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def together(self, what: str, step: Callable[[], T]) -> Outcome[T]:
        """Take a step on every rank of the group; see `attempt`."""
        return attempt(what, step, self.group)


def _check(backend: str | None, timeout_s: float) -> None:
    if backend is not None and backend not in get_args(Backend):
        raise ValueError(
            f"backend is {backend!r}; allowed are {', '.join(get_args(Backend))}, or None for whichever works"
        )
    if not 0 < timeout_s < 2**31:
        raise ValueError(f"timeout_s is {timeout_s}; it must be above 0 seconds")


def _device(group: torch.distributed.ProcessGroup | None) -> torch.device:
    import torch
    import torch.distributed as distributed

    # Not get_backend(): a group that was made without naming one says "undefined" there.
    chosen = group if group is not None else distributed.group.WORLD
    served = {kind.type for kind in getattr(chosen, "_device_types", ())}
    if torch.cuda.is_available() and "cuda" in served:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
