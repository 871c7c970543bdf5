"""The commands that make and read evidence: verify, bench, ledger. `cli.py` registers them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from kernwright.commands import console
from kernwright.commands.options import Archs, Candidates, Json, Workloads, open_workspace

if TYPE_CHECKING:
    from kernwright.evidence.verify import Verification

ledger_app = typer.Typer(help="Read the ledger: what was measured, whether it is consistent, what is stale.")


SHOWN = (
    "workload",
    "candidate",
    "device",
    "control_ms",
    "candidate_ms",
    "of_floor",
    "groups",
    "gain_percent",
    "interval_percent",
    "verdict",
    "all_runs",
)
"""What fits into a line of a record; all of it is in the JSON."""


def verify(
    workloads: Workloads = [],  # noqa: B006
    on: Annotated[str, typer.Option(help="Where kernels run: emulator or cuda.")] = "emulator",
    candidate: Candidates = [],  # noqa: B006
    arch: Archs = [],  # noqa: B006
    case: Annotated[list[str], typer.Option(help="Only this case, as kind:inputs:seed; repeatable.")] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Run every candidate and compare all that it stores, bit for bit, with the control and the oracle."""
    from kernwright.evidence.commands import run_verify
    from kernwright.evidence.ranks import speaks

    results = run_verify(open_workspace(), on, workloads, candidate, arch, case, quiet=json)
    if json and speaks():
        console.print_json([result.to_json() for result in results])
    _show_verified(results, on, quiet=json)


def verify_all(*, quiet: bool) -> None:
    """Verify the whole workspace on the emulator; part of `build --verify`."""
    from kernwright.evidence.commands import run_verify

    _show_verified(
        run_verify(open_workspace(), "emulator", [], [], [], [], quiet=quiet), "emulator", quiet=quiet
    )


def _show_verified(results: list[Verification], on: str, *, quiet: bool) -> None:
    from kernwright.evidence.ranks import speaks

    if speaks() and not quiet:
        columns = ("workload", "candidate", "arch", "against", "cases", "values", "mismatches", "seconds")
        rows = [
            (
                r.workload,
                r.candidate,
                r.arch,
                r.against,
                r.gate.cases,
                r.gate.values,
                r.gate.mismatches,
                "remembered" if r.cached else f"{r.seconds:.1f}",
            )
            for r in results
            if not r.skipped
        ]
        console.print_table(f"Verified on {on}", columns, rows)
        for reason in dict.fromkeys(result.skipped for result in results if result.skipped):
            console.say(f"skipped: {reason}")
    failed = [result for result in results if result.failure]
    for result in failed:
        console.complain(f"failed: {result.failure}")  # by every rank: each may have an artefact of its own
    if failed:
        raise typer.Exit(1)


def fuzz(
    workload: Annotated[str, typer.Argument(help="A spec name or a short form.")],
    candidate: Candidates = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Schedules to run.")] = 100,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Look for races with ThreadSanitizer.")
    ] = False,
    json: Json = False,
) -> None:
    """Run kernels on the emulator under many interleavings; a failing one is printed and replays exactly."""
    from kernwright.evidence.commands import run_fuzz

    results = run_fuzz(
        open_workspace(), workload, candidate, seeds, first_seed, sanitize=sanitize, quiet=json
    )
    if json:
        console.print_json([result.to_json() for result in results])
    else:
        columns = ("workload", "candidate", "kind", "schedules", "seconds", "problems")
        rows = [
            (r.workload, r.candidate, r.kind, r.seeds, f"{r.seconds:.1f}", len(r.problems)) for r in results
        ]
        console.print_table("Fuzzed", columns, rows)
    failed = [result for result in results if result.problems]
    for result in failed:
        console.complain(f"failed: {result.candidate}, {result.kind}, {result.schedule}")
        for problem in result.problems:
            console.complain(f"  {problem}")
    if failed:
        raise typer.Exit(1)


def bench(
    workloads: Workloads = [],  # noqa: B006
    candidate: Candidates = [],  # noqa: B006
    peer: Annotated[list[str], typer.Option(help="Only this baseline; repeat. `none` for none.")] = [],  # noqa: B006
    against: Annotated[
        str, typer.Option(help="Compare with your own: module:function, or file.cu:symbol:GRID:BLOCK.")
    ] = "",
    blocks: Annotated[
        int, typer.Option(min=1, help="Times to allocate and capture anew; 3 for a verdict.")
    ] = 5,
    groups: Annotated[
        int, typer.Option(min=1, help="Valid groups wanted in a block; 3 for it to count.")
    ] = 5,
    replays: Annotated[int, typer.Option(min=1, help="Graph replays behind one sample.")] = 20,
    record: Annotated[bool, typer.Option(help="Write records into the ledger.")] = True,
    json: Json = False,
) -> None:
    """Time candidates against the control, baselines and the read floor; ranks under torchrun, a GPU each."""
    from kernwright.evidence.commands import BenchRequest, run_bench
    from kernwright.evidence.ranks import speaks

    request = BenchRequest(workloads, candidate, peer, against, blocks, groups, replays, record)
    inexact = []
    documents = []
    for result in run_bench(open_workspace(), request, quiet=json):
        if isinstance(result, str):
            console.complain(f"skipped: {result}")
            continue
        inexact += [record.reason for record in result.records if not record.exactness.exact]
        documents.append(result.to_json())
        if json:
            continue
        console.print_bars(result.title, result.bars())
        for line in result.lines():
            console.say(line)
    if json and speaks():
        console.print_json(documents)
    for reason in inexact:
        console.complain(f"failed: {reason}")
    if inexact:
        raise typer.Exit(1)


def tune(
    workloads: Workloads = [],  # noqa: B006
    groups: Annotated[int, typer.Option(min=1, help="Valid groups wanted at each size.")] = 7,
    replays: Annotated[int, typer.Option(min=1, help="Graph replays behind one sample.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the measured curves.")] = Path("figures"),
    write: Annotated[bool, typer.Option(help="Write the thresholds into the spec file.")] = True,
    json: Json = False,
) -> None:
    """Measure where one route overtakes another on this machine's GPUs; start it with torchrun, a GPU a rank."""
    from kernwright.evidence.commands import run_tune
    from kernwright.evidence.ranks import speaks
    from kernwright.evidence.timing import Pace

    pace = Pace(groups, replays, 2 * groups)
    documents = []
    for tuned, curve in run_tune(open_workspace(), workloads, pace, out, into_specs=write, quiet=json):
        documents.append(tuned.to_json())
        if json:
            continue
        title = f"{tuned.workload} on {tuned.device}, microseconds a call"
        console.print_table(title, (tuned.unit, *tuned.curve.times, "taken"), tuned.rows())
        begins = ", ".join(
            f"{route} from {begin}" for route, begin in tuned.crossings.begins.items() if begin
        )
        console.say(
            f"{begins or 'one route for all'}; {tuned.crossings.loss:.1%} over the fastest; curve in {curve}"
        )
    if json and speaks():
        console.print_json(documents)
    elif write and documents:
        console.say("the spec files have new thresholds; run `kernwright generate`")


@ledger_app.command("show")
def ledger_show(
    json: Json = False,
    markdown: Annotated[str, typer.Option(help="Print those of this family as a table for a document.")] = "",
) -> None:
    """List the records."""
    from kernwright.ledger import markdown as document
    from kernwright.ledger import read_records, rows

    files = read_records(_folder())
    if markdown:
        own = [file for file in files if file.record.family == markdown]
        return console.say(document(own).rstrip("\n"))
    table = rows(files)
    if json:
        return console.print_json(table)
    return console.print_table("Ledger", SHOWN, [[row[column] for column in SHOWN] for row in table])


@ledger_app.command("check")
def ledger_check() -> None:
    """Recompute every verdict from its samples; fails where a record contradicts itself or is gone."""
    from kernwright.evidence.ledger_commands import check_ledger

    problems, said = check_ledger(open_workspace())
    for problem in problems:
        console.complain(str(problem))
    if problems:
        raise typer.Exit(1)
    for line in said:
        console.say(line)


@ledger_app.command("index")
def ledger_index() -> None:
    """Enter records into the index that no command entered, such as those of another checkout."""
    from kernwright.ledger import enter, read_index, read_records, usable, written

    folder = _folder()
    known = read_index(folder).seals  # one with another seal was replaced, and stays a fault
    new = [file for file in usable(read_records(folder)) if file.name not in known]
    if new:
        enter(folder, [written(file) for file in new])
    console.say(f"{len(new)} records were entered")


@ledger_app.command("stale")
def ledger_stale(json: Json = False) -> None:
    """List the records whose source has changed since: what to measure again."""
    from kernwright.evidence.ledger_commands import stale_rows

    table = stale_rows(open_workspace())
    if json:
        return console.print_json(table)
    if not table:
        return console.say("no record is stale")
    return console.print_table("Stale records", tuple(table[0]), [tuple(row.values()) for row in table])


@ledger_app.command("rekey")
def ledger_rekey(
    folder: Annotated[
        Path, typer.Option("--from", help="A `generated` folder as it was when records were measured.")
    ],
    json: Json = False,
) -> None:
    """Give records today's digest of their code where tokens or machine code prove that it is what they measured."""
    from kernwright.evidence.rekey import rekey
    from kernwright.generator import ledger_folder, plan_generation
    from kernwright.ledger import read_records

    workspace = open_workspace()
    total = len(read_records(ledger_folder(workspace)))
    with console.progress("proving records", total, quiet=json) as advance:
        found = rekey(plan_generation(workspace), folder, advance)
    left = [entry for entry in found if entry.outcome == "stale"]
    if json:
        console.print_json([asdict(entry) for entry in found])
    else:
        counts = Counter(entry.outcome.replace("_", " ") for entry in found)
        console.print_table("Records by proof", ("proof", "records"), list(counts.items()))
        for entry in left:
            console.complain(f"stale: {entry.file}: {entry.reason}")
        if any(entry.outcome in ("tokens", "machine_code") for entry in found):
            console.say("records were rewritten; run `kernwright generate`")
    if left:
        raise typer.Exit(1)


def _folder() -> Path:
    from kernwright.generator import ledger_folder

    return ledger_folder(open_workspace())
