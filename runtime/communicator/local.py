"""The communicator of ranks that share a process: one GPU runs them all in one grid, for tests and porting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ...table import ALIGNMENT, Table, aligned
from ..device import placed
from .channel import Channel, channel_plans
from .owner import ChannelOwner
from .steps import Outcome

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class LocalCommunicator(ChannelOwner):
    """All ranks of a call in one launch: tensors carry the rank as their first dimension.

    Kernels wait for each other across ranks, so all ranks' CTAs must fit on the GPU at once; a candidate that
    doesn't is rejected with that reason.
    """

    rank = 0

    def __init__(
        self,
        table: Table,
        world_size: int,
        device: torch.device,
        *,
        specs: Iterable[str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Open the channels of the table's workloads of that world size.

        Raises:
            ValueError: no workload of that world size belongs to a spec that was named.
        """
        import torch

        super().__init__()
        self.world_size = self.local_ranks = world_size
        self.device = device = placed(device)
        self.timeout_ns = round(timeout_s * 1e9)
        plans = channel_plans(table, world_size, specs)
        for plan in plans:
            stride = aligned(plan.size)
            block = torch.zeros(world_size * stride + ALIGNMENT, dtype=torch.uint8, device=device)
            begin = -block.data_ptr() % ALIGNMENT
            memory = block[begin : begin + world_size * stride].view(world_size, stride)[:, : plan.size]
            addresses = tuple(memory[rank].data_ptr() for rank in range(world_size))
            self._channels[plan.name] = Channel(plan, memory, addresses, 0)
        self.finish()
        self.capabilities = frozenset(name for plan in plans for name in plan.capabilities)

    def finish(self) -> None:
        """Wait for the device: other streams aren't ordered behind the current one, which has zeroed the memory."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def together(self, what: str, step: Callable[[], T]) -> Outcome[T]:
        """Take the step: all ranks are here."""
        return Outcome(what, [step()], [None], None)
