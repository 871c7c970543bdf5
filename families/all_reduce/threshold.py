"""Which route serves which payload: thresholds by device, world size and dtype (docs/all_reduce.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from ...specs.base import DEVICE, Count, DType, Flag, IntervalSpec, Model, as_list, one_or_several
from ...specs.errors import Finding, listing
from ...table import Part
from .workload import AllReduceWorkload, WorldSizes

RouteName = Literal["tagged_words", "one_stage", "two_stage"]
ROUTES: tuple[RouteName, ...] = get_args(RouteName)
"""In the order in which they serve growing payloads."""


class Threshold(Model):
    """Payload sizes at which the next route takes over, on one device or on all that have no entry."""

    device: Annotated[str, Field(pattern=DEVICE, max_length=64)] | None = None
    """Name of the device as its driver gives it ("NVIDIA H200"); without one the entry is the default."""
    dtypes: Annotated[
        tuple[DType, ...], BeforeValidator(as_list), Field(min_length=1, alias="dtype"), one_or_several(DType)
    ] = get_args(DType)
    """Storage dtypes that it holds for; default all."""
    world_sizes: Annotated[
        tuple[WorldSizes, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="world_size"),
        one_or_several(WorldSizes),
    ] = get_args(WorldSizes)
    """World sizes that it holds for; default all."""
    one_stage: Count | None = None
    """Payload bytes from which on one stage is taken instead of tagged words; None: never."""
    two_stage: Count | None = None
    """Payload bytes from which on two stages are taken; None: never."""
    measured: Flag = False
    """Whether the sizes were tuned on this device, or taken over from elsewhere."""

    def holds_for(self, workload: AllReduceWorkload) -> bool:
        """Tell whether the entry speaks of a concrete workload."""
        return workload.dtype in self.dtypes and workload.world_size in self.world_sizes

    def route(self, payload_bytes: int) -> RouteName:
        """Give the route of a payload: exactly at a threshold it is the next one."""
        if self.two_stage is not None and payload_bytes >= self.two_stage:
            return "two_stage"
        if self.one_stage is not None and payload_bytes >= self.one_stage:
            return "one_stage"
        return "tagged_words"

    def parts(self, payload_bytes: IntervalSpec) -> tuple[Part, ...]:
        """Split an interval of payloads at the thresholds inside of it."""
        low, high = payload_bytes.min, payload_bytes.max
        crossings = {size for size in (self.one_stage, self.two_stage) if size is not None}
        begins = sorted({low, *(size for size in crossings if low < size <= high)})
        ends = [begin - 1 for begin in begins[1:]] + [high]
        return tuple(
            Part(self.route(begin), begin, end, self.device, self.measured)
            for begin, end in zip(begins, ends, strict=True)
        )


def threshold_findings(
    thresholds: tuple[Threshold, ...], workloads: tuple[AllReduceWorkload, ...], routes: tuple[str, ...]
) -> Iterator[Finding]:
    """Find entries that contradict themselves or each other, and payloads that no route could serve.

    Args:
        thresholds: the file's table; empty where it has none.
        workloads: the concrete workloads.
        routes: routes that the candidates have.
    """
    ours = [route for route in ROUTES if route in routes]
    if not thresholds:
        yield from _findings_without_table(workloads, ours)
        return
    for place, entry in enumerate(thresholds):
        if entry.one_stage is not None and entry.two_stage is not None and entry.one_stage > entry.two_stage:
            message = (
                f"one_stage begins at {entry.one_stage}, after two_stage at {entry.two_stage}; swap them."
            )
            yield Finding(("threshold", place, "one_stage"), message)
        if not any(entry.holds_for(workload) for workload in workloads):
            message = (
                "no workload of this file has a dtype and a world size of this entry; drop or correct it."
            )
            yield Finding(("threshold", place), message)
    for workload in workloads:
        yield from _workload_findings(thresholds, workload, ours)


def _findings_without_table(
    workloads: tuple[AllReduceWorkload, ...], routes: list[RouteName]
) -> Iterator[Finding]:
    if len(routes) > 1:
        message = (
            f"the candidates have the routes {listing(routes)}; state from which payload on each is taken."
        )
        yield Finding(("threshold",), message)
    elif routes == ["tagged_words"] and workloads[0].packet_bytes < workloads[0].capacity:
        message = (
            f"every payload travels as tagged words, up to {workloads[0].capacity} bytes, but packet_bytes is "
            f"{workloads[0].packet_bytes}; raise that, or add another route and a threshold."
        )
        yield Finding(("workload", "packet_bytes"), message)


def _workload_findings(
    thresholds: tuple[Threshold, ...], workload: AllReduceWorkload, routes: list[RouteName]
) -> Iterator[Finding]:
    what = f"{workload.dtype} at world_size {workload.world_size}"
    first: dict[str | None, int] = {}
    for place, entry in enumerate(thresholds):
        if not entry.holds_for(workload):
            continue
        if entry.device in first:
            message = (
                f"threshold[{first[entry.device]}] already holds for {what} there; every case has one entry."
            )
            yield Finding(("threshold", place), message)
            continue
        first[entry.device] = place
        for part in entry.parts(workload.payload_bytes):
            yield from _part_findings(place, part, workload, routes)
    if None not in first:
        message = f"no entry without a device holds for {what}; add one, for the devices that have none."
        yield Finding(("threshold",), message)


def _part_findings(
    place: int, part: Part, workload: AllReduceWorkload, routes: list[RouteName]
) -> Iterator[Finding]:
    if part.route not in routes:
        message = (
            f"payloads of {part.low} to {part.high} bytes would take {part.route}, but the candidates have "
            f"{listing(routes)}; add a candidate, or move the threshold."
        )
        yield Finding(("threshold", place), message)
    elif part.route == "tagged_words" and part.high > workload.packet_bytes:
        message = (
            f"payloads of up to {part.high} bytes would travel as tagged words, but packet_bytes is "
            f"{workload.packet_bytes}; raise that, or lower the threshold."
        )
        yield Finding(("threshold", place), message)
