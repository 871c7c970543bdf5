"""What `kernwright verify`, `fuzz`, `bench` and `tune` do, from options to results; the command line prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..commands import console
from ..specs import Workspace
from ..table import Workload
from .bench import NO_LEDGER, bench
from .benchmark_run import Options
from .cells import cells
from .family_evidence import FamilyEvidence, NoEvidence, evidence_of
from .fuzz import FuzzResult, fuzz_workload
from .health import Monitor, monitor
from .ledger_commands import ledger_of
from .outcome import Bench
from .rank_context import RankContext, absence, rank_context_of
from .ranks import RankJob, job
from .session import NotHere, Session, gpu
from .timing import Pace
from .tune import Tuned, steps, tune, write, write_curve
from .verify import Verification, Wanted, chosen_builds, skipped, verify

if TYPE_CHECKING:
    import torch

FAILURES = Path("failures")
"""Where failed comparisons leave their artefacts, below the current folder."""


class UnknownRankContext(ValueError):
    """Kernels run on the emulator or on a GPU, nowhere else."""


def run_verify(
    workspace: Workspace,
    on: str,
    workloads: Sequence[str],
    candidates: Sequence[str],
    archs: Sequence[str],
    cases: Sequence[str],
    *,
    quiet: bool,
) -> list[Verification]:
    """Verify on a GPU or on the emulator.

    Raises:
        UnknownRankContext: `on` is neither.
        NoGpu: there is no GPU here.
        NotHere: nothing of it can be verified here. If only some can't, the results name them with the reason.
        NothingToVerify: the filters leave nothing.
    """
    if on not in ("cuda", "emulator"):
        raise UnknownRankContext(f'kernels run on "emulator" or "cuda"; "{on}" was asked for')
    session = Session.open(workspace)
    chosen = session.workloads(workloads)
    wanted = Wanted(candidates, archs, cases)
    verified = _on_cuda if on == "cuda" else _emulated
    total = sum(len(workload.candidates) for workload in chosen)
    with console.progress("verifying", total, quiet=quiet) as advance:
        results = list(verified(session, chosen, wanted, advance))
    if results and all(result.skipped for result in results):
        raise NotHere("; ".join(dict.fromkeys(result.skipped for result in results)))
    return results


def _emulated(
    session: Session, chosen: Sequence[Workload], wanted: Wanted, advance: Callable[[], None]
) -> Iterator[Verification]:
    from .verify_emulated import ON_EMULATOR, verify_emulated

    for workload in chosen:
        try:
            evidence = evidence_of(session.family(workload))
        except NoEvidence as error:
            yield skipped(workload, str(error), ON_EMULATOR)
            continue
        yield from verify_emulated(
            session.dispatch, evidence, workload, wanted, FAILURES, lambda _r: advance()
        )


def _on_cuda(
    session: Session, chosen: Sequence[Workload], wanted: Wanted, advance: Callable[[], None]
) -> Iterator[Verification]:
    """By the ranks of the job, or by local ones where this is one process."""
    device = gpu()
    with job() as ours:
        for workload in chosen:
            with _placed(session, workload, device, ours, together=False) as found:
                if isinstance(found, str):
                    yield skipped(workload, found)
                    continue
                evidence, place = found
                yield from verify(
                    session.dispatch, evidence, workload, place, wanted, FAILURES, lambda _r: advance()
                )


@contextmanager
def _placed(
    session: Session, workload: Workload, device: torch.device, ours: RankJob, *, together: bool
) -> Iterator[tuple[FamilyEvidence, RankContext] | str]:
    """The evidence of a workload's family and its ranks; a sentence where it can't be run here."""
    try:
        evidence = evidence_of(session.family(workload))
        reason = absence(workload, ours, together=together)
    except NoEvidence as error:
        reason = str(error)
    if reason is not None:
        yield reason
        return
    with rank_context_of(session.dispatch, evidence, workload, device, ours) as place:
        yield place.obstacle(workload) or (evidence, place)


def run_fuzz(
    workspace: Workspace,
    workload: str,
    candidates: Sequence[str],
    seeds: int,
    first: int,
    *,
    sanitize: bool,
    quiet: bool,
) -> list[FuzzResult]:
    """Fuzz the workloads that a spec's name or a short form selects; errors as `fuzz.fuzz_workload`."""
    session = Session.open(workspace)
    results: list[FuzzResult] = []
    chosen = session.workloads([workload])
    with console.progress("fuzzing", sum(len(entry.candidates) for entry in chosen), quiet=quiet) as advance:
        for entry in chosen:
            evidence = evidence_of(session.family(entry))
            for candidate, _ in chosen_builds(entry, Wanted(candidates), lambda c: next(iter(c.builds))):
                results += fuzz_workload(
                    session.dispatch,
                    evidence,
                    entry,
                    [candidate.name],
                    seeds,
                    first,
                    sanitize=sanitize,
                )
                advance()
    return results


@dataclass(frozen=True)
class BenchRequest:
    workloads: Sequence[str]
    candidates: Sequence[str]
    peers: Sequence[str]
    against: str
    blocks: int
    groups: int
    replays: int
    record: bool


def run_bench(workspace: Workspace, request: BenchRequest, *, quiet: bool) -> Iterator[Bench | str]:
    """Bench workload after workload, part after part, or say why not; a record is written as soon as it is made.

    Under `torchrun` every rank takes the GPU of its local rank, and only rank 0 writes and gives results; unless
    workloads are named, those of as many ranks are benched.

    Raises:
        NoGpu: there is no GPU here.
        NotHere: nothing of it can be timed here.
        HealthUnknown, GpuBusy: see `health.monitor`.
        LedgerRefused: a record can't be written.
    """
    session = Session.open(workspace)
    device = gpu()
    options = Options(
        pace=Pace(request.groups, request.replays, 2 * request.groups),
        blocks=request.blocks,
        peers=None if not request.peers else tuple(name for name in request.peers if name != "none"),
        failures=FAILURES,
        against=request.against,
    )
    timed, reasons = 0, []
    with job() as ours, monitor(device, ours.pids) as watch:
        for workload in session.workloads(request.workloads):
            if ours.size > 1 and not request.workloads and not workload.channel:
                continue
            for result in _benched(session, workload, device, ours, watch, options, request, quiet=quiet):
                timed += isinstance(result, Bench)
                if isinstance(result, str):
                    reasons.append(result)
                if not ours.rank:  # rank 0 reports for all: every sample was the slowest rank's
                    yield result
    if not timed:
        raise NotHere("; ".join(dict.fromkeys(reasons)) or "no workload has as many ranks as this job")


def _benched(
    session: Session,
    workload: Workload,
    device: torch.device,
    ours: RankJob,
    watch: Monitor,
    options: Options,
    request: BenchRequest,
    *,
    quiet: bool,
) -> Iterator[Bench | str]:

    ledger = NO_LEDGER if ours.rank else ledger_of(session, workload, writes=request.record)
    with _placed(session, workload, device, ours, together=True) as found:
        if isinstance(found, str):
            yield found
            return
        evidence, place = found
        for cell in cells(workload, place, place.here.name, evidence):
            named = [entry for entry in workload.candidates if entry.name in request.candidates]
            if named and not any(cell.admits(entry) for entry in named):
                continue
            title = f"timing {workload.label} {cell.title(workload)}".rstrip()
            with console.progress(title, len(workload.candidates), quiet=quiet) as advance:
                yield bench(
                    session.dispatch,
                    evidence,
                    workload,
                    cell,
                    watch,
                    request.candidates,
                    options,
                    lambda _name: advance(),  # called while this iteration lasts
                    ledger=ledger,
                )


def run_tune(
    workspace: Workspace, workloads: Sequence[str], pace: Pace, out: Path, *, into_specs: bool, quiet: bool
) -> Iterator[tuple[Tuned, Path]]:
    """Tune workload after workload, under `torchrun` with a GPU a rank; gives each with its curve's file in `out`.

    Raises:
        NoGpu: there is no GPU here.
        NotHere: a workload that was named can't be tuned here, or none can.
        HealthUnknown, GpuBusy: see `health.monitor`.
        SpecError: the spec file doesn't take the thresholds.
    """
    session = Session.open(workspace)
    device = gpu()
    chosen = [entry for entry in session.workloads(workloads) if workloads or entry.parts]
    reasons: list[str] = []
    tuned = 0
    with job() as ours, monitor(device, ours.pids) as watch:
        for workload in chosen:
            with _placed(session, workload, device, ours, together=True) as placed:
                if isinstance(placed, str):
                    reasons.append(placed)
                    continue
                evidence, place = placed
                title = f"tuning {workload.label}"
                with console.progress(title, steps(evidence, workload), quiet=quiet) as advance:
                    found = tune(session.dispatch, evidence, workload, place, watch, pace, advance)
            tuned += 1
            if not ours.rank:
                curve = write_curve(out, found)
                if into_specs:
                    write(session.path_of(workload), found)
                yield found, curve
    if not tuned:
        raise NotHere("; ".join(dict.fromkeys(reasons)) or "no workload of this workspace has thresholds")
