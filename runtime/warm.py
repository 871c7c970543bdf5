"""What a warm-up goes through: devices, and one call in each cell of a workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..table import FieldValue, Table, Workload, low_end
from .communicator import Communicator
from .device import Device


def named(table: Table, names: Iterable[str] | None) -> tuple[Workload, ...]:
    """The workloads with these labels or of these specs, by default all; ValueError for an unknown one."""
    works = table.workloads
    if names is None:
        return works
    wanted = set(names)
    unknown = wanted.difference(*((work.label, work.spec) for work in works))
    if unknown:
        labels, specs = ({getattr(work, of): None for work in works} for of in ("label", "spec"))
        raise ValueError(
            f"no workload is called {', '.join(map(repr, sorted(unknown)))}; labels are "
            f"{', '.join(labels) or 'none'}; specs are {', '.join(specs) or 'none'}"
        )
    return tuple(work for work in works if not wanted.isdisjoint((work.label, work.spec)))


def sizes_by_interval(table: Table, sizes: Mapping[str, Iterable[int] | None]) -> dict[str, tuple[int, ...]]:
    """The sizes that were named, each once, by the name of the interval; ValueError where no workload has it."""
    known = dict.fromkeys(work.interval for work in table.workloads if work.interval is not None)
    for name in sizes:
        if name not in known:
            raise ValueError(
                f"warm_up was given sizes of {name!r}, which no workload has as an interval; intervals are "
                f"{', '.join(known) or 'none'}"
            )
    return {name: tuple(dict.fromkeys(values)) for name, values in sizes.items() if values is not None}


def calls(work: Workload, sizes: Iterable[int] | None, device: Device) -> list[dict[str, FieldValue]]:
    """The calls of a workload to warm up, as fields: those of `sizes` that it serves, else one in each cell."""
    fields = {name: low_end(value) for name, value in work.fields.items()}
    served = work.fields.get(work.interval or "")
    if not isinstance(served, tuple) or (sizes is None and not work.parts):
        return [fields]
    if sizes is not None:
        found = [size for size in sizes if served[0] <= size <= served[1]]
    else:
        own = [part for part in work.parts if part.device == device.name]
        parts = own or [part for part in work.parts if part.device is None]
        first = [(-(-part.low // work.multiple) * work.multiple, part.high) for part in parts]
        found = [at for at, high in first if at <= high]
    return [{**fields, str(work.interval): size} for size in found]


def checked_here(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices as a tuple; ValueError where one is only imagined."""
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
