"""The command that writes a bundle; `cli.py` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from kernwright.commands import console
from kernwright.commands.options import (
    CORES,
    Archs,
    Candidates,
    Jobs,
    Json,
    Scheduler,
    Workloads,
    open_workspace,
)

if TYPE_CHECKING:
    from kernwright.compiler.artifact import Artifact


def bundle(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the bundle; an older one is replaced.")
    ],
    workloads: Workloads = [],  # noqa: B006
    arch: Archs = [],  # noqa: B006
    candidate: Candidates = [],  # noqa: B006
    ptx: Annotated[
        list[str],
        typer.Option("--ptx", help="Also PTX of this architecture's builds, for newer GPUs; repeat."),
    ] = [],  # noqa: B006
    jobs: Jobs = CORES,
    scheduler: Scheduler = "",
    json: Json = False,
) -> None:
    """Compile into a folder that travels to machines without the compiler (KERNWRIGHT_BUNDLE names it there)."""
    from kernwright.compiler.bundle import check_replaceable, write_bundle
    from kernwright.generator import builds, plan_generation, remote_executor
    from kernwright.generator.artifacts import collect, ptx_jobs

    check_replaceable(output)
    generation = plan_generation(open_workspace())
    selected = builds(generation, archs=arch, workloads=workloads, candidates=candidate)
    as_ptx = ptx_jobs(selected, ptx)
    with (
        console.progress("compiling", len(selected) + len(as_ptx), quiet=json) as advance,
        remote_executor(scheduler) as executor,
    ):
        collected = collect(selected, as_ptx, workers=jobs, executor=executor, on_done=advance)
    for note in collected.notes:
        console.complain(f"note: {note}")
    for failure in collected.failures:
        console.complain(f"failed: {failure}")
    if collected.failures:
        console.complain(f"nothing was written to {output}")
        raise typer.Exit(1)
    write_bundle(output, collected.artifacts)
    rows = [_row(artifact) for artifact in collected.artifacts]
    size = sum(row["bytes"] for row in rows)
    if json:
        return console.print_json({"folder": str(output), "bytes": size, "artifacts": rows})
    return console.say(f"{len(rows)} artifacts, {size / 1e6:.1f} MB, in {output}")


def _row(artifact: Artifact) -> dict[str, Any]:
    return {
        "source_sha256": artifact.source_sha256,
        "arch": artifact.arch,
        "kind": artifact.kind,
        "sha256": artifact.sha256,
        "bytes": len(artifact.data),
    }
