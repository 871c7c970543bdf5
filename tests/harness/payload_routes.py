"""The route of a payload, by the parts that the generator writes into the dispatch table."""

from __future__ import annotations

from kernwright.families.all_reduce.lowering import parts
from kernwright.families.all_reduce.spec import AllReduceSpec, AllReduceWorkload


def route_for(
    spec: AllReduceSpec, workload: AllReduceWorkload, payload_bytes: int, device: str | None = None
) -> str:
    """The route that serves a payload of a concrete workload on a device, by its name."""
    found = parts(spec, workload)
    own = [part for part in found if part.device == device] or [part for part in found if part.device is None]
    return next(part.route for part in own if part.low <= payload_bytes <= part.high)
