"""What ranks must agree on before they share memory, checked in one exchange.

Every rank sees what all ranks said, so all come to the same conclusion: the same error, or the same fallback.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...table import FORMAT
from ...version import VERSION
from .. import policy as policies
from ..device import current
from ..errors import Disagreement
from ..loader import compilers
from . import LAYOUT_VERSION
from .channel import ChannelPlan

if TYPE_CHECKING:
    import torch

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

GENERATED = "Give all ranks the same, generated from the same spec files and records"


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
    """Architecture, multiprocessors and name of the GPU: what records and thresholds go by."""
    backend: str
    timeout_ns: int
    channels: tuple[ChannelPlan, ...]
    policy: str = ""
    """The policy in force where no call says otherwise, and strict mode."""
    versions: str = ""
    """Of the toolkit, the table's data model, the channels' layout and the compilers."""
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What decides calls, by spec; see `route_digests`."""


def statement(
    device: torch.device,
    backend: str,
    timeout_ns: int,
    channels: Sequence[ChannelPlan],
    digests: Mapping[str, Mapping[str, str]],
) -> Statement:
    """This rank's."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    gpu, peers, visible = _gpu(device)
    host = f"{socket.gethostname()} {boot}".strip()
    return Statement(
        host,
        str(device),
        gpu,
        peers,
        visible,
        str(current(device)),
        backend,
        timeout_ns,
        tuple(channels),
        policy=f"{policies.current()}{', strict' if policies.strict() else ''}",
        versions=f"kernwright {VERSION}, table format {FORMAT}, channel layout {LAYOUT_VERSION}, {_compilers()}",
        digests=digests,
    )


def _compilers() -> str:
    """Records are of one compiler's machine code, so it decides, too."""
    return f"NVRTC {', '.join(version or 'none' for version in compilers())}"


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


def agree(statements: Sequence[Statement]) -> None:
    """Compare the ranks' statements; Disagreement names what differs, and which ranks have what."""
    alike = "Give all ranks the same"
    same("the backend", [entry.backend for entry in statements], alike)
    same("the timeout", [f"{entry.timeout_ns / 1e9:g} s" for entry in statements], alike)
    same("the kind of device", [entry.device.partition(":")[0] for entry in statements], alike)
    # The rest decides who serves a call.
    same("the device", [entry.kind for entry in statements], "Take GPUs of one kind")
    same("the versions", [entry.versions for entry in statements], "Install one version on all ranks")
    same("the policy", [entry.policy for entry in statements], "Set the same on all ranks")
    names = [", ".join(plan.name for plan in entry.channels) or "none" for entry in statements]
    same("the channels", names)
    for index, plan in enumerate(statements[0].channels):
        plans = [entry.channels[index] for entry in statements]
        what = f"channel {plan.name}"
        same(f"the size of {what}", [f"{p.size} bytes" for p in plans])
        same(f"the layout of {what}", [str(sorted(p.offsets.items())) for p in plans])
    same("the specs", [", ".join(entry.digests) or "none" for entry in statements])
    for spec, digests in statements[0].digests.items():
        for what in digests:
            told = [entry.digests[spec].get(what, "none") for entry in statements]
            same(f"the {what} of spec {spec}", _shortened(told))


def _shortened(told: Sequence[str]) -> list[str]:
    """Twelve digits of a digest, where these differ."""
    short = [text[: text.rfind(" ") + 13] for text in told]
    return short if len(set(short)) == len(set(told)) else list(told)


def same(what: str, values: Sequence[str], remedy: str = GENERATED) -> None:
    """Compare what each rank says; Disagreement names the values and the ranks."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    if len(by_value) > 1:
        said = "; ".join(f"{_ranks(ranks)}: {value}" for value, ranks in by_value.items())
        raise Disagreement(f"ranks disagree on {what}: {said}. {remedy}")


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
