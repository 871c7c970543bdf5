"""Digests of what decides who serves a call: ranks that differ in it would run different kernels on one channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from ...table import Candidate, Table

_SCHEDULE = tuple(field.name for field in fields(Candidate) if field.name != "builds")


def route_digests(table: Table, world_size: int) -> Mapping[str, Mapping[str, str]]:
    """What decides calls of `world_size` ranks, by spec, and by what it is, so that a difference can be named.

    Every workload of that size counts, also one whose channel isn't opened: its other candidates may be dispatched.
    It takes a few milliseconds, which only a new communicator of a group pays.
    """
    works = [work for work in table.workloads if work.fields.get("world_size") == world_size]
    found = {}
    for spec in dict.fromkeys(work.spec for work in works):
        mine = [work for work in works if work.spec == spec]
        candidates = [(work.label, candidate) for work in mine for candidate in work.candidates]
        entries = [repr(table.family(family)) for family in dict.fromkeys(work.family for work in mine)]
        # Dataclasses of plain values in the order of the generated module, which is deterministic.
        found[spec] = {
            "workloads": _digest(
                [(w.family, w.label, w.fields, w.trees, w.multiple, w.channel) for w in mine], entries
            ),
            "builds": _digest([(label, c.name, c.builds) for label, c in candidates]),
            "schedules": _digest(
                [(label, *[getattr(c, name) for name in _SCHEDULE]) for label, c in candidates]
            ),
            "thresholds": _digest([(w.label, part) for w in mine for part in w.parts]),
            "records": _digest([(w.label, record) for w in mine for record in w.records]),
        }
    return found


def _digest(entries: list[tuple[object, ...]], more: object = None) -> str:
    """How many entries there are and, in 64 hexadecimal digits, which."""
    import hashlib  # a millisecond or two that only those pay who ask

    return f"{len(entries)}, digest {hashlib.sha256(repr((entries, more)).encode()).hexdigest()}"
