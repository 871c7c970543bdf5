"""The generated dispatch module: the table as data, one function per op."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from jinja2 import Environment

from ..ledger import RecordFile, usable
from ..ledger.stale import Sources
from ..specs import Family, Workspace
from ..specs.family import EXPORTS
from ..table import FORMAT, FamilyEntry
from .environment import render
from .lowering import family_entry
from .records import current_sources, table_records
from .sources import GeneratedWorkload


def dispatch_text(
    environment: Environment,
    workspace: Workspace,
    workloads: list[GeneratedWorkload],
    records: list[RecordFile],
) -> str:
    """Render `dispatch.py` for what was generated and its records in the ledger.

    Raises:
        SpecError: a record contradicts itself, with every problem; dispatch must not rely on it.
    """
    families = {entry.family.name: entry.family for entry in workloads}
    functions = {entry.family.name: entry.functions for entry in workloads}
    more = [name for named in functions.values() for name in named]
    files, current = usable(records), current_sources(workloads)
    entries = [_entry(entry, files, current) for entry in workloads]
    environment.filters["py"] = repr
    return render(
        environment,
        "dispatch.py.j2",
        {
            "title": "kernwright's library" if workspace.is_library else "this workspace",
            "package": ".." if workspace.is_library else "kernwright.",
            "format": FORMAT,
            "families": [_reference(family, workspace) for family in families.values()],
            "functions": functions,
            "workloads": entries,
            "entries": [_family_entry(family, workloads) for family in families.values()],
            "has_parts": any(entry.parts for entry in workloads),
            "exports": sorted([*EXPORTS, *families, *more]),
        },
    )


def _entry(entry: GeneratedWorkload, files: list[RecordFile], current: Sources) -> dict[str, Any]:
    return {
        "family": entry.family.name,
        "spec": entry.spec,
        "workload": entry.workload,
        "candidates": entry.candidates,
        "parts": entry.parts,
        "multiple": getattr(_lowering_of(entry.family), "multiple", lambda _: 1)(entry.workload),
        "channel": entry.channel,
        "trees": {name: tuple(tree.to_list()) for name, tree in entry.workload.trees().items()},
        "records": table_records(entry, files, current),
    }


def _lowering_of(family: Family) -> ModuleType:
    return importlib.import_module(family.lowering_module)


def _family_entry(family: Family, workloads: list[GeneratedWorkload]) -> FamilyEntry:
    lowerings = (
        generated.lowering
        for entry in workloads
        if entry.family.name == family.name
        for generated in entry.candidates
    )
    return family_entry(family.name, _lowering_of(family), lowerings)


def _reference(family: Family, workspace: Workspace) -> dict[str, str]:
    """Where a family's op and reference are imported from."""
    package, _, module = family.op_module.rpartition(".")
    if workspace.is_library and package.startswith("kernwright."):
        package = ".." + package.removeprefix("kernwright.")
    return {"name": family.name, "package": package, "module": module}
