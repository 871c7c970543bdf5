"""Compiling what was generated, and checking each candidate's budget and expectations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ..compiler.artifact import Artifact
from ..compiler.cache import Cache, default_folder
from ..compiler.compile import Job, compile_all
from ..compiler.disassembly import ExpectationsSkipped, remembered_counts, unmet
from ..compiler.resources import over_budget
from ..compiler.toolchain import require_arch
from ..specs import Selector, select
from ..specs.errors import listing, nearest
from .generate import Generation
from .sources import GeneratedCandidate, GeneratedWorkload, Source


@dataclass(frozen=True)
class SourceBuild:
    """One source to compile, with what it belongs to."""

    workload: GeneratedWorkload
    candidate: GeneratedCandidate
    source: Source

    @property
    def name(self) -> str:
        """How messages call it."""
        return (
            f"{self.workload.spec} {self.workload.workload.label()}, "
            f"candidate {self.candidate.candidate.name}, {self.source.arch}"
        )

    @property
    def job(self) -> Job:
        """What the compiler needs of it."""
        return Job(self.source.text, self.source.path, self.source.arch)


@dataclass(frozen=True)
class KernelReport:
    """Resources of one compiled kernel."""

    workload: str
    candidate: str
    kernel: str
    arch: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    source_sha256: str
    cubin_sha256: str
    cached: bool
    seconds: float


@dataclass(frozen=True)
class BuildReport:
    """Outcome of a compile run: a row a kernel, sentences for what failed and for what wasn't checked."""

    kernels: tuple[KernelReport, ...]
    artifacts: tuple[Artifact, ...]
    """One of each text and architecture that was compiled."""
    failures: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """The rows as plain data."""
        return [asdict(kernel) for kernel in self.kernels]


class NothingSelected(ValueError):
    """A filter names something that no spec file asks for."""


def builds(
    generation: Generation,
    *,
    archs: Collection[str] = (),
    workloads: Collection[str] = (),
    candidates: Collection[str] = (),
) -> list[SourceBuild]:
    """The sources to compile; each filter that is empty admits everything.

    Args:
        archs: architectures, `sm_90`.
        workloads: spec names, or short forms of single workloads (whose target is a filter too).
        candidates: names.

    Raises:
        NothingSelected: an architecture or candidate that nothing was generated for.
        ShortFormError: a workload that doesn't exist.
    """
    found = [
        SourceBuild(workload, candidate, source)
        for workload in generation.workloads
        for candidate in workload.candidates
        for source in candidate.sources
    ]
    _check_names("architecture", archs, {build.source.arch for build in found})
    _check_names("candidate", candidates, {build.candidate.candidate.name for build in found})
    selections = [select(text, generation.specs) for text in workloads]
    selected = [
        build
        for build in found
        if (not archs or build.source.arch in archs)
        and (not candidates or build.candidate.candidate.name in candidates)
        and (not selections or any(_selected(selection, build) for selection in selections))
    ]
    if found and not selected:
        filters = {"workload": workloads, "candidate": candidates, "architecture": archs}
        raise NothingSelected(
            "no source matches all of the filters: "
            + "; ".join(f"{what} {listing(names)}" for what, names in filters.items() if names)
            + ". Name fewer things, or see `kernwright validate` for what there is"
        )
    return selected


def _selected(selection: Selector, build: SourceBuild) -> bool:
    return (
        selection.file.spec.name == build.workload.spec
        and build.workload.workload.label() in {workload.label() for workload in selection.workloads}
        and selection.arch in (None, build.source.arch)
    )


def _check_names(what: str, wanted: Collection[str], known: Collection[str]) -> None:
    for name in wanted:
        if name not in known:
            raise NothingSelected(
                f'no spec file asks for {what} "{name}"; there are {listing(sorted(known))}'
                f"{nearest(name, known)}"
            )


CONNECT_SECONDS = 10
"""How long a Dask scheduler may take to answer."""


class SchedulerMissing(Exception):
    """A Dask scheduler was named, but it doesn't answer, or Dask's client isn't installed."""


@contextmanager
def remote_executor(address: str) -> Iterator[Executor | None]:
    """An executor on the Dask cluster at `address`; None where no address is given.

    Raises:
        SchedulerMissing: Dask isn't installed here, or no scheduler answers at `address`.
    """
    if not address:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise SchedulerMissing(
            "compiling on a cluster needs Dask's client: pip install 'kernwright[cluster]'"
        ) from None
    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise SchedulerMissing(
            f"no Dask scheduler answers at {address} ({error}); start one there with `dask scheduler`, or "
            "name the address that yours prints, e.g. tcp://host:8786"
        ) from None
    with client:
        yield client.get_executor()


def compile_builds(
    selected: list[SourceBuild],
    *,
    workers: int,
    executor: Executor | None = None,
    cache: Cache | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> BuildReport:
    """Compile, then check budgets and expectations; failures are collected, not raised.

    A text without a kernel, which only states the schedule of libraries, isn't compiled.

    Raises:
        ToolchainMissing, ArchUnsupported: nothing can be compiled here for what was asked.
    """
    without = [build for build in selected if not build.candidate.symbols]
    for _ in without:
        on_done()
    selected = [build for build in selected if build.candidate.symbols]
    for arch in sorted({build.source.arch for build in selected}):
        require_arch(arch)
    results = compile_all(
        [build.job for build in selected],
        executor=executor,
        workers=workers,
        cache=cache,
        on_done=lambda _job, _result: on_done(),
    )
    kernels: list[KernelReport] = []
    artifacts: dict[Job, Artifact] = {}
    failures: list[str] = []
    notes: list[str] = []
    for build, result in zip(selected, results, strict=True):
        if isinstance(result, Exception):
            failures.append(f"{build.name}: {result}")
            continue
        artifacts[build.job] = result
        kernels.extend(_kernel_reports(build, result))
        problems, note = _broken_promises(build, result)
        failures.extend(f"{build.name}: {problem}" for problem in problems)
        if note and note not in notes:
            notes.append(note)
    return BuildReport(tuple(kernels), tuple(artifacts.values()), tuple(failures), tuple(notes))


def _kernel_reports(build: SourceBuild, artifact: Artifact) -> Iterator[KernelReport]:
    for kernel, symbol in build.candidate.symbols.items():
        used = artifact.kernels[symbol]
        yield KernelReport(
            workload=f"{build.workload.spec}/{build.workload.workload.label()}",
            candidate=build.candidate.candidate.name,
            kernel=kernel,
            arch=build.source.arch,
            **asdict(used),
            source_sha256=build.source.sha256,
            cubin_sha256=artifact.sha256,
            cached=artifact.cached,
            seconds=artifact.seconds,
        )


def _broken_promises(build: SourceBuild, artifact: Artifact) -> tuple[list[str], str]:
    """Sentences for exceeded budgets and unmet expectations, and a note if the machine code can't be read here."""
    candidate, symbols = build.candidate.candidate, build.candidate.symbols
    problems = [
        problem
        for kernel, symbol in symbols.items()
        for problem in over_budget({kernel: artifact.kernels[symbol]}, candidate.budget_for(kernel))
    ]
    expectations = {kernel: candidate.expect_for(kernel) for kernel in symbols}
    if not any(expectations.values()):
        return problems, ""
    counts = remembered_counts(artifact.data, build.source.arch, default_folder())
    if isinstance(counts, ExpectationsSkipped):
        return problems, f"expectations of {build.source.arch} machine code were not checked: {counts.reason}"
    for kernel, expected in expectations.items():
        problems += unmet({kernel: counts[symbols[kernel]]}, expected)
    return problems, ""
