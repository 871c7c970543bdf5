"""Options that several commands share: the same word everywhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kernwright.specs import Workspace

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Archs = Annotated[
    list[str], typer.Option("--arch", help="Only this architecture, e.g. sm_90; repeat for several.")
]
Workloads = Annotated[list[str], typer.Argument(help="Spec names or short forms; by default all.")]
Candidates = Annotated[
    list[str], typer.Option("--candidate", help="Only this candidate; repeat for several.")
]

CORES = os.cpu_count() or 1

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Worker processes.")]
Scheduler = Annotated[
    str, typer.Option(help="Address of a Dask scheduler that compiles, e.g. tcp://host:8786.")
]


def open_workspace() -> Workspace:
    from kernwright.specs import find_workspace

    return find_workspace()
