"""The `kernwright` command: each function parses, calls and prints; the work is done in the packages.

Exit status: 0 done, 1 a check failed, 2 bad input, 3 not available here.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from kernwright.commands import bundle as cli_bundle
from kernwright.commands import console
from kernwright.commands import evidence as cli_evidence
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
    from kernwright.compiler.cache import CacheEntry
    from kernwright.generator import BuildReport, Generation

app = typer.Typer(
    name="kernwright",
    help="Write down a shape; get a CUDA kernel specialised to it, proven exact, and only then dispatched.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kernwright.version import VERSION

        console.say(VERSION)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Write down a shape; get a CUDA kernel specialised to it, proven exact, and only then dispatched."""


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="Folder of the new workspace.")] = Path()) -> None:
    """Lay out a workspace: kernwright.toml, specs/, templates/, and a first spec file to edit."""
    from kernwright.generator.scaffold import lay_out_workspace

    for path in lay_out_workspace(folder):
        console.say(f"wrote {path}")


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Spec files; by default all of the workspace.")] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Check spec files and list the cells they expand into."""
    from kernwright.specs import load_specs

    found = load_specs(open_workspace(), files or None)
    rows = [
        {
            "file": str(spec_file.path),
            "family": spec_file.spec.family,
            "workload": workload.label(),
            "candidates": [c.name for c in spec_file.spec.candidates if c.serves(workload)],
            "archs": list(spec_file.spec.control.arch),
        }
        for spec_file in found
        for workload in spec_file.spec.workloads()
    ]
    if json:
        return console.print_json(rows)
    table = [
        (Path(str(row["file"])).name, row["workload"], ", ".join(row["candidates"]), ", ".join(row["archs"]))
        for row in rows
    ]
    return console.print_table("Valid spec files", ("file", "workload", "candidates", "targets"), table)


@app.command()
def schema(family: Annotated[str, typer.Argument(help="Name of a family.")]) -> None:
    """Print the JSON Schema of a family's spec files; `generate` keeps the committed ones up to date."""
    from kernwright.specs import schema_text

    console.say(schema_text(open_workspace(), family).rstrip("\n"))


@app.command()
def generate(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail with a diff on drift.")] = False,
    json: Json = False,
) -> None:
    """Render the kernels and the dispatch module that the spec files ask for."""
    from kernwright.generator import check_generation, write_generation

    generation = _generation()
    if check:
        difference = check_generation(generation)
        if json:
            console.print_json({"up_to_date": not difference, "diff": difference})
        elif difference:
            console.say(difference.rstrip("\n"))
        if difference:
            console.complain("generated files differ from their spec files; run `kernwright generate`")
            raise typer.Exit(1)
        return None if json else console.say(f"{len(generation.files)} generated files are up to date")
    emission = write_generation(generation)
    if json:
        changes = {"written": emission.written, "removed": emission.removed, "unchanged": emission.unchanged}
        return console.print_json(changes)
    for name in emission.written:
        console.say(f"wrote {name}")
    for name in emission.removed:
        console.say(f"removed {name}")
    return console.say(f"{emission.unchanged} files were up to date")


@app.command()
def compile(  # noqa: A001
    workloads: Workloads = [],  # noqa: B006
    arch: Archs = [],  # noqa: B006
    candidate: Candidates = [],  # noqa: B006
    jobs: Jobs = CORES,
    scheduler: Scheduler = "",
    json: Json = False,
) -> None:
    """Compile what the spec files ask for, without a GPU, and check budgets and expectations."""
    report = _compile(_generation(), workloads, arch, candidate, jobs, scheduler, quiet=json)
    _show_build(report, json)


@app.command()
def build(
    arch: Archs = [],  # noqa: B006
    jobs: Jobs = CORES,
    scheduler: Scheduler = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Also run all on the emulator, once a source.")
    ] = False,
    json: Json = False,
) -> None:
    """Validate, generate and compile the whole workspace."""
    from kernwright.generator import write_generation

    generation = _generation()
    emission = write_generation(generation)
    for name in emission.removed:
        console.complain(f"removed {name}, which no spec file asks for any more")
    report = _compile(generation, [], arch, [], jobs, scheduler, quiet=json)
    _show_build(report, json)
    if verify:
        cli_evidence.verify_all(quiet=json)


@app.command()
def explain(
    workload: Annotated[str, typer.Argument(help="A spec name or a short form, e.g. sm90-fp16-tp2.")],
    arch: Archs = [],  # noqa: B006
    at: Annotated[
        int | None, typer.Option(min=1, help="Value of the workload's interval; by default its low end.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Storage dtype of the call's tensors.")] = None,
    kind: Annotated[str | None, typer.Option(help="Kind of the op; by default its first.")] = None,
    policy: Annotated[str | None, typer.Option(help="measured, verified, control or reference.")] = None,
    device: Annotated[str | None, typer.Option(help="A GPU of the ledger, e.g. 'NVIDIA H200'.")] = None,
    json: Json = False,
) -> None:
    """Say which candidate a shape is dispatched to, and the reason for every candidate."""
    from kernwright.evidence.explain import Question, answer, recorded_devices
    from kernwright.specs import load_specs

    workspace = open_workspace()
    question = Question(workload, tuple(arch), at, dtype, kind, policy, device)
    answers = answer(question, workspace, load_specs(workspace))
    if json:
        documents = [explanation.to_json() for explanation in answers]
        return console.print_json(documents[0] if len(documents) == 1 else documents)
    console.say("\n".join(str(explanation) for explanation in answers))
    for place, names in recorded_devices(workspace).items():
        if device is None and any(explanation.arch == place for explanation in answers):
            console.say(f"note: the ledger has records on {place} for {', '.join(names)}: ask with --device")
    return None


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine can compile and run, and what to install for the rest."""
    from kernwright.runtime.doctor import can_compile, examine

    findings = examine()
    if json:
        console.print_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.what, finding.status, finding.found, finding.remedy) for finding in findings]
        console.print_table("This machine", ("what", "status", "found", "remedy"), rows)
    if not can_compile(findings):
        raise typer.Exit(3)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete every entry of this cache format.")] = False,
    json: Json = False,
) -> None:
    """List or clear the cubin cache."""
    from kernwright.compiler.cache import default_cache, default_folder

    if clear:
        return console.say(f"deleted {default_cache().clear()} entries of {default_folder()}")
    entries = default_cache().entries()
    if json:
        return console.print_json([_cache_row(entry) for entry in entries])
    size = sum(entry.size for entry in entries)
    return console.say(f"{len(entries)} entries, {size / 1e6:.1f} MB, in {default_folder()}")


def _generation() -> Generation:
    from kernwright.generator import plan_generation

    return plan_generation(open_workspace())


def _compile(
    generation: Generation,
    workloads: list[str],
    archs: list[str],
    candidates: list[str],
    jobs: int,
    scheduler: str,
    *,
    quiet: bool,
) -> BuildReport:
    from kernwright.generator import builds, compile_builds
    from kernwright.generator.build import remote_executor

    selected = builds(generation, archs=archs, workloads=workloads, candidates=candidates)
    with (
        console.progress("compiling", len(selected), quiet=quiet) as advance,
        remote_executor(scheduler) as executor,
    ):
        return compile_builds(selected, workers=jobs, executor=executor, on_done=advance)


LISTED = 100
"""Kernels from the cache that a table lists; if there are more, one line sums them up."""


def _show_build(report: BuildReport, json: bool) -> None:
    if json:
        console.print_json(report.to_json())
    else:
        columns = (
            "workload",
            "candidate",
            "kernel",
            "arch",
            "registers",
            "shared",
            "stack",
            "spills",
            "cached",
        )
        known = [kernel for kernel in report.kernels if kernel.cached]
        shown = report.kernels if len(known) <= LISTED else [k for k in report.kernels if not k.cached]
        rows = [
            (
                k.workload,
                k.candidate,
                k.kernel,
                k.arch,
                k.registers,
                k.shared_bytes,
                k.stack_bytes,
                k.spill_bytes,
                k.cached,
            )
            for k in shown
        ]
        if rows:
            console.print_table("Compiled kernels (registers a thread, bytes)", columns, rows)
        if len(shown) < len(report.kernels):
            spilling = sum(k.spill_bytes > 0 for k in known)
            console.say(
                f"{len(known)} kernels came from the cache: at most {max(k.registers for k in known)} registers, "
                f"{spilling} that spill; --json lists them"
            )
    for note in report.notes:
        console.complain(f"note: {note}")
    for failure in report.failures:
        console.complain(f"failed: {failure}")
    if report.failures:
        raise typer.Exit(1)


def _cache_row(entry: CacheEntry) -> dict[str, str | int | None]:
    about = entry.artifact  # None for an entry that is damaged
    return {
        "key": entry.key,
        "bytes": entry.size,
        "arch": about.arch if about else None,
        "kind": about.kind if about else None,
        "source_sha256": about.source_sha256 if about else None,
        "sha256": about.sha256 if about else None,
    }


for command in (
    cli_bundle.bundle,
    cli_evidence.verify,
    cli_evidence.fuzz,
    cli_evidence.bench,
    cli_evidence.tune,
):
    app.command()(command)
app.add_typer(cli_evidence.ledger_app, name="ledger")


NOT_HERE = {
    "kernwright.compiler.toolchain": ("ArchUnsupported", "ToolchainMissing"),
    "kernwright.emulator": ("CompilerMissing", "TextUnsupported", "TooLarge"),
    "kernwright.evidence.health": ("GpuBusy", "HealthUnknown"),
    "kernwright.evidence.session": ("NoGpu", "NotHere"),
    "kernwright.evidence.family_evidence": ("NoEvidence",),
    "kernwright.generator": ("NotGenerated", "SchedulerMissing"),
    "kernwright.runtime.errors": ("LoadError",),
}
"""Errors that end with exit status 3: this machine lacks something, or this version doesn't do that."""

CHECK_FAILED = {
    "kernwright.compiler.nvrtc": ("CompileFailed",),
    "kernwright.emulator": ("HostCompileFailed",),
    "kernwright.evidence.benchmark_run": ("GraphEmpty",),
}
"""Errors that end with exit status 1: a check failed, in the project's own files or in a user's."""

BAD_INPUT = {
    "kernwright.compiler.bundle": ("BundleInvalid",),
    "kernwright.evidence.commands": ("UnknownRankContext",),
    "kernwright.evidence.explain": ("QuestionError",),
    "kernwright.evidence.external": ("ExternalUnusable",),
    "kernwright.evidence.session": ("Drifted",),
    "kernwright.evidence.verify": ("NothingToVerify",),
    "kernwright.generator": ("NothingSelected", "ScheduleError", "TemplateBroken"),
    "kernwright.generator.manifest": ("ManifestInvalid",),
    "kernwright.generator.scaffold": ("WorkspaceExists",),
    "kernwright.ledger": ("LedgerRefused",),
    "kernwright.runtime.errors": ("InvalidSetting",),
    "kernwright.specs": ("ShortFormError", "SpecError", "UnknownFamily"),
    "builtins": ("OSError",),
}
"""Errors that end with exit status 2."""


def exit_status(error: Exception) -> int | None:
    """The exit status of an expected error; None for an internal error.

    The classes are named, not imported: the code that raised one has loaded its module, and no command pays for
    the modules of the others.
    """
    for status, errors in ((3, NOT_HERE), (2, BAD_INPUT), (1, CHECK_FAILED)):
        for module, names in errors.items():
            known = sys.modules.get(module)
            classes = tuple(getattr(known, name) for name in names) if known else ()
            if isinstance(error, classes):
                return status
    return None


def main() -> None:
    """Run the command line; an expected error is its sentence on standard error, never a traceback."""
    try:
        app()
    except Exception as error:
        status = exit_status(error)
        if status is None:
            raise
        console.complain(str(error))
        sys.exit(status)


if __name__ == "__main__":
    main()
