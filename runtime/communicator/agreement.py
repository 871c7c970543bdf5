"""What ranks must agree on before they share memory, checked in one exchange.

Every rank sees what all ranks said, so all come to the same conclusion: the same error, or the same fallback.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import policy as policies
from ..device import current
from ..errors import Disagreement
from .channel import ChannelPlan

if TYPE_CHECKING:
    import torch

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Statement:
    """What one rank says of itself."""

    host: str
    """Name and boot of the machine: containers may share a name."""
    device: str
    """`cuda:0`, `cpu`, ..."""
    gpu: str | None
    """Identity of the GPU, which two ranks may share; None without one."""
    peers: tuple[str, ...]
    """GPUs of this machine whose memory it can reach."""
    visible: int
    """GPUs that the process sees; of one that sees its own alone nothing can be said of its peers in advance."""
    kind: str
    """Architecture, multiprocessors and name of the GPU, and the policy: what records and thresholds go by."""
    backend: str
    timeout_ns: int
    channels: tuple[ChannelPlan, ...]


def statement(
    device: torch.device, backend: str, timeout_ns: int, channels: Sequence[ChannelPlan]
) -> Statement:
    """This rank's."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    gpu, peers, visible = _gpu(device)
    host = f"{socket.gethostname()} {boot}".strip()
    kind = f"{current(device)}, policy {policies.current()}{', strict' if policies.strict() else ''}"
    return Statement(host, str(device), gpu, peers, visible, kind, backend, timeout_ns, tuple(channels))


def _gpu(device: torch.device) -> tuple[str | None, tuple[str, ...], int]:
    if device.type != "cuda":
        return None, (), 0
    import torch

    def identity(index: int) -> str:
        return str(torch.cuda.get_device_properties(index).uuid)

    own = torch.cuda.current_device() if device.index is None else device.index
    visible = torch.cuda.device_count()
    others = [index for index in range(visible) if index != own]
    reached = [identity(index) for index in others if torch.cuda.can_device_access_peer(own, index)]
    return identity(own), tuple(reached), visible


def exchange(mine: Statement, group: torch.distributed.ProcessGroup | None) -> list[Statement]:
    """Every rank's statement, in rank order."""
    import torch.distributed as distributed

    found: list[Statement | None] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, mine, group=group)
    return [statement for statement in found if statement is not None]


def agree(statements: Sequence[Statement]) -> None:
    """Compare the ranks' statements; Disagreement names what differs, and which ranks have what."""
    _same("the backend", [entry.backend for entry in statements])
    _same("the timeout", [f"{entry.timeout_ns / 1e9:g} s" for entry in statements])
    _same("the kind of device", [entry.device.partition(":")[0] for entry in statements])
    _same("the device and policy", [entry.kind for entry in statements])  # they decide who serves a call
    names = [", ".join(plan.name for plan in entry.channels) or "none" for entry in statements]
    _same("the channels", names)
    for index, plan in enumerate(statements[0].channels):
        plans = [entry.channels[index] for entry in statements]
        what = f"channel {plan.name}"
        _same(f"the size of {what}", [f"{p.size} bytes" for p in plans])
        _same(f"the layout of {what}", [str(sorted(p.offsets.items())) for p in plans])
        _same(f"the spec of {what}", [f"sources {p.sources[:12]}" for p in plans])


def _same(what: str, values: Sequence[str]) -> None:
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    if len(by_value) > 1:
        said = "; ".join(f"{_ranks(ranks)}: {value}" for value, ranks in by_value.items())
        raise Disagreement(
            f"ranks disagree on {what}: {said}. Give all ranks the same, generated from the same spec files"
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def obstacle(statements: Sequence[Statement]) -> str | None:
    """Why these ranks can't share memory, or None."""
    hosts: dict[str, list[int]] = {}
    for rank, entry in enumerate(statements):
        hosts.setdefault(entry.host, []).append(rank)
    if len(hosts) > 1:
        where = "; ".join(f"{_ranks(ranks)} on {host.split(' ')[0]}" for host, ranks in hosts.items())
        return f"the ranks are on {len(hosts)} hosts ({where}), and channels are memory of one"
    if any(entry.gpu is None for entry in statements):
        return f"the ranks work on {statements[0].device.partition(':')[0]} tensors, and channels are memory of GPUs"
    gpus = [entry.gpu for entry in statements]
    for rank, entry in enumerate(statements):
        if gpus.index(entry.gpu) != rank:
            return f"ranks {gpus.index(entry.gpu)} and {rank} share a GPU; take a local communicator for that"
    for rank, entry in enumerate(statements):
        for peer, other in enumerate(statements):
            if peer != rank and other.gpu not in entry.peers and entry.visible > 1:
                return f"the GPU of rank {rank} can't reach the memory of rank {peer}'s"
    return None
