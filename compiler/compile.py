"""Source text to artifact: from the cache, or compiled, here or in worker processes.

Nothing here loads CuPy before something must be compiled.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .artifact import Artifact, ArtifactKind, digest
from .cache import Cache, cache_key, default_cache
from .cubin import repair
from .nvrtc import FLAGS, ToolchainMismatch, compile_program
from .resources import LogUnreadable, parse_log
from .toolchain import toolchain

CompileResult = Artifact | Exception

WORTH_A_POOL = 8
"""Misses from which worker processes pay. Measured on two cores with files of five kernels, 85 ms each: 6
files take 0.66 s here and 0.73 s with two workers, 12 files 1.20 and 0.96 s, 24 files 2.24 and 1.46 s."""


@dataclass(frozen=True)
class Job:
    """One source file to compile for one architecture."""

    source: str
    file_name: str
    """How messages and line tables call it; no folder of this machine belongs into it."""
    arch: str
    kind: ArtifactKind = "cubin"


def compile_source(
    source: str, *, file_name: str, arch: str, kind: ArtifactKind = "cubin", cache: Cache | None = None
) -> Artifact:
    """The artifact of one source file; `cache` is the user's unless given.

    Raises:
        CompileFailed: the source has an error.
        ArchUnsupported, ToolchainMissing, ToolchainMismatch: this machine can't compile it.
        CubinInvalid, LogUnreadable: NVRTC gave something that isn't understood.
    """
    return _fetch(Job(source, file_name, arch, kind), cache or default_cache())


def compile_all(
    jobs: Sequence[Job],
    *,
    executor: Executor | None = None,
    workers: int = 1,
    cache: Cache | None = None,
    on_done: Callable[[Job, CompileResult], None] = lambda _job, _result: None,
) -> list[CompileResult]:
    """Compile many; the results are in the order of `jobs`, an exception standing for a job that failed.

    Args:
        executor: runs what isn't cached, e.g. a Dask client's `get_executor()`; it isn't shut down.
        workers: local processes, if there is no executor and enough to do for starting them. They import
            the main module anew, so a script calls this under `if __name__ == "__main__":`.
        cache: the user's unless given.
        on_done: called in this process for each job as soon as its result is known.

    An interrupt cancels what hasn't begun and is passed on.

    Raises:
        ToolchainMissing: nothing at all can be compiled.
    """
    cache = cache or default_cache()
    results: dict[int, CompileResult] = {}
    for index, job in enumerate(jobs):
        stored = cache.get(_key(job))
        if stored is not None:
            results[index] = stored
            on_done(job, stored)
    misses = {index: job for index, job in enumerate(jobs) if index not in results}

    def finish(index: int, result: CompileResult) -> None:
        results[index] = result
        on_done(jobs[index], result)

    if executor is not None and misses:
        _run_on(executor, misses, cache, finish)
    elif workers > 1 and len(misses) >= WORTH_A_POOL:
        _run_on_local_processes(workers, misses, cache, finish)
    else:
        for index, job in misses.items():
            finish(index, _attempt(job, cache))
    return [results[index] for index in range(len(jobs))]


def _attempt(job: Job, cache: Cache) -> CompileResult:
    try:
        return _fetch(job, cache)
    except Exception as error:  # a value for the caller, which has the job that it belongs to
        return error


def _run_on_local_processes(
    workers: int, misses: dict[int, Job], cache: Cache, finish: Callable[[int, CompileResult], None]
) -> None:
    # spawn: a fork of a process that holds locks, threads or a CUDA context isn't safe
    pool = ProcessPoolExecutor(
        min(workers, len(misses)), multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
    )
    try:
        _run_on(pool, misses, cache, finish)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the parent alone decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_on(
    executor: Executor, misses: dict[int, Job], cache: Cache, finish: Callable[[int, CompileResult], None]
) -> None:
    identity = toolchain().identity
    folder = cache.folder if cache.lasting else None
    pending: dict[Future[Artifact], int] = {
        executor.submit(compile_job, job, identity, folder): index for index, job in misses.items()
    }
    try:
        for future in concurrent.futures.as_completed(pending):
            index = pending[future]
            error = future.exception()
            if isinstance(error, Exception):
                finish(index, error)
                continue
            artifact = future.result()
            key = _key(misses[index])
            if cache.get(key) is None:  # the worker's cache was on another machine, or there is none
                cache.put(key, artifact)
            finish(index, artifact)
    except BaseException:
        for future in pending:
            future.cancel()
        raise


def compile_job(job: Job, identity: str, folder: Path | None) -> Artifact:
    """What a worker does; public because it travels by name to workers on other machines.

    Args:
        identity: the caller's toolchain; its cache must not receive another compiler's output.
        folder: cache shared with the caller; None for no cache.

    Raises:
        ToolchainMismatch: this machine has another toolchain. Otherwise as `compile_source`.
    """
    here = toolchain().identity
    if here != identity:
        raise ToolchainMismatch(
            f"The worker has another toolchain ({here}) than the machine that asks ({identity}). "
            "Install the same versions of kernwright's CUDA packages on both."
        )
    return _compile(job) if folder is None else _fetch(job, Cache(folder))


def _fetch(job: Job, cache: Cache) -> Artifact:
    return cache.fetch(_key(job), lambda: _compile(job))


def _key(job: Job) -> str:
    return cache_key(
        job.source, file_name=job.file_name, arch=job.arch, kind=job.kind, flags=FLAGS, toolchain=toolchain()
    )


def _compile(job: Job) -> Artifact:
    made = compile_program(job.source, file_name=job.file_name, arch=job.arch, kind=job.kind)
    data = repair(made.data) if job.kind == "cubin" else made.data
    kernels = parse_log(made.log)
    if job.kind == "cubin" and not kernels:
        raise LogUnreadable(
            f"The log of ptxas for {job.file_name} names no kernel: the file defines none, or the log has "
            f"another format than this version knows. It says: {made.log.strip()!r}"
        )
    return Artifact(
        arch=job.arch,
        kind=job.kind,
        source_sha256=digest(job.source.encode()),
        sha256=digest(data),
        data=data,
        kernels=kernels,
        cached=False,
        seconds=made.seconds,
    )
