"""A plan of one all-reduce route, whatever the thresholds say."""

from __future__ import annotations

import torch
from kernwright.generated import dispatch
from kernwright.runtime.communicator.owner import ChannelOwner
from kernwright.runtime.device import serves
from kernwright.runtime.errors import LoadError
from kernwright.runtime.plan import Plan


def plan_of_route(route: str, numel: int, dtype: torch.dtype, *, comm: ChannelOwner) -> Plan:
    """The plan of a route's first candidate that fits on the device, for a tensor of `numel` elements a rank.

    Raises:
        ValueError: no candidate of an open channel carries the payload by this route.
        LoadError: one does, and its CTAs don't fit on the GPU at once.
    """
    size, device = numel * dtype.itemsize, comm.target
    wanted = {"dtype": str(dtype).removeprefix("torch."), "world_size": comm.world_size}
    unfit: LoadError | None = None
    for work in dispatch.TABLE.workloads:
        if work.family != "all_reduce" or not comm.owns(work.spec):
            continue
        if any(work.fields[name] != value for name, value in wanted.items()):
            continue
        most = work.fields["packet_bytes"] if route == "tagged_words" else work.channel["capacity"]
        for candidate in work.candidates:
            arch = serves(candidate.builds, device.arch)
            if candidate.route != route or arch is None or size > int(str(most)):
                continue
            try:
                return dispatch.DISPATCH.plan_named(
                    work.name, candidate.name, arch, "staged", device, comm=comm, at=size
                )
            except LoadError as error:  # its CTAs don't fit; those of a smaller grid may
                unfit = unfit or error
    if unfit is not None:
        raise unfit
    raise ValueError(
        f"no open channel has a candidate of route {route} for {size} bytes of {wanted['dtype']}"
    )
