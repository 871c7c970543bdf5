"""What a warm-up goes through: devices, and one call in each cell of a workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..table import ITEM_BYTES, FieldValue, Workload, low_end
from .communicator import Communicator
from .device import Device


def calls(work: Workload, tokens: Iterable[int] | None, device: Device) -> Iterator[dict[str, FieldValue]]:
    """The calls of a workload to warm up, as fields: those of `tokens` that it serves, else one in each cell."""
    served = work.fields.get("tokens")
    if tokens is None or not isinstance(served, tuple):
        yield from _cells(work, device)
        return
    fields = {name: low_end(value) for name, value in work.fields.items()}
    for count in tokens:
        if served[0] <= count <= served[1]:
            yield {**fields, "tokens": count}


def checked_here(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices as a tuple.

    Raises:
        ValueError: one of them is only imagined.
    """
    found = tuple(devices)
    for device in found:
        if device.index is None:
            raise ValueError(
                f"warm_up was given {device}, which has no CUDA ordinal; it loads on devices that are here: "
                "pass what runtime.device.current(torch.device('cuda', 0)) gives"
            )
    return found


def current_devices(comm: Communicator | None) -> tuple[Device, ...]:
    """The communicator's device, else torch's current one; none where there is no GPU."""
    import torch

    from .device import current

    target: Device | None = getattr(comm, "target", None)
    if target is not None:
        return () if target.arch is None else (target,)
    return (current(torch.device("cuda")),) if torch.cuda.is_available() else ()


def _cells(work: Workload, device: Device) -> list[dict[str, FieldValue]]:
    """Fields of one call in each part of the workload's interval on a device; of one call where it has no parts."""
    fields: dict[str, FieldValue] = {name: low_end(value) for name, value in work.fields.items()}
    if work.interval is None or not work.parts:
        return [fields]
    own = [part for part in work.parts if part.device == device.name]
    parts = own or [part for part in work.parts if part.device is None]
    unit = _unit(work)
    first = [(-(-part.low // unit) * unit, part.high) for part in parts]
    return [{**fields, work.interval: at} for at, high in first if at <= high]


def _unit(work: Workload) -> int:
    """What every value of the interval is a multiple of: bytes come in whole elements, borders of parts needn't."""
    counts_bytes = work.interval is not None and work.interval.endswith("_bytes")
    return ITEM_BYTES[str(work.fields["dtype"])] if counts_bytes else 1
