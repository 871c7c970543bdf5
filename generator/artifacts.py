"""What goes into a bundle: machine code of sources that are within their budgets, and PTX on request.

PTX of an old architecture is for newer hardware, whose driver compiles it: so a machine whose NVRTC no longer
serves sm_70 can still prove those kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import replace

from ..compiler.cache import Cache
from ..compiler.compile import Job, compile_all
from .build import BuildReport, NothingSelected, SourceBuild, compile_builds


def ptx_jobs(selected: Collection[SourceBuild], archs: Collection[str]) -> list[Job]:
    """The compilations to PTX of what is selected for the architectures `archs`.

    Raises:
        NothingSelected: nothing that is selected is built for one of them.
    """
    built = sorted({build.source.arch for build in selected})
    for arch in archs:
        if arch not in built:
            raise NothingSelected(
                f'PTX of architecture "{arch}" was asked for; the sources selected are built for {", ".join(built)}: '
                "select its sources too"
            )
    # Cells that share a text have one job.
    jobs = dict.fromkeys(b.job for b in selected if b.source.arch in archs and b.candidate.symbols)
    return [Job(job.source, job.file_name, job.arch, "ptx") for job in jobs]


def collect(
    selected: list[SourceBuild],
    ptx: list[Job],
    *,
    workers: int,
    executor: Executor | None = None,
    cache: Cache | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> BuildReport:
    """Compile the cubins of `selected`, check their budgets and expectations, and compile the jobs of `ptx`.

    The report has no artifact where something failed.

    Args:
        selected: sources.
        ptx: as `ptx_jobs` gives them.
        workers: local processes.
        executor: compiles instead of local processes, e.g. on a cluster.
        cache: the user's unless given.
        on_done: called for each source and each of `ptx`.

    Raises:
        ToolchainMissing, ArchUnsupported: nothing can be compiled here for what was asked.
    """
    report = compile_builds(selected, workers=workers, executor=executor, cache=cache, on_done=on_done)
    if report.failures:
        return replace(report, artifacts=())
    results = compile_all(
        ptx, workers=workers, executor=executor, cache=cache, on_done=lambda _job, _result: on_done()
    )
    failures = tuple(str(result) for result in results if isinstance(result, Exception))
    made = tuple(result for result in results if not isinstance(result, Exception))
    return replace(report, artifacts=() if failures else report.artifacts + made, failures=failures)
