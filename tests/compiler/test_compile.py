from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernwright.compiler.compile as compile_module
import pytest
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.cache import Cache
from kernwright.compiler.compile import CompileResult, Job, compile_all, compile_job, compile_source
from kernwright.compiler.nvrtc import CompileFailed, ToolchainMismatch
from kernwright.compiler.resources import LogUnreadable
from kernwright.compiler.toolchain import ArchUnsupported

GOOD = 'extern "C" __global__ void k(float* a) { a[0] = 1; }'
BAD = 'extern "C" __global__ void k(float* a) { a[0] = undefined; }'


class Refusing(Executor):
    """An executor that nothing may be given to."""

    def submit(self, _fn: Callable[..., Any], /, *_args: Any, **_kwargs: Any) -> Future[Any]:
        raise AssertionError("a job was submitted")


def test_the_second_time_it_is_cached(scale: str, cache: Cache) -> None:
    first = compile_source(scale, file_name="scale.cu", arch="sm_90", cache=cache)
    second = compile_source(scale, file_name="scale.cu", arch="sm_90", cache=cache)
    assert not first.cached
    assert second == replace(first, cached=True)
    assert first.source_sha256 == digest(scale.encode())
    assert first.sha256 == digest(first.data)
    assert first.kernels["scale"].shared_bytes == 256
    assert first.data.startswith(b"\x7fELF")


def test_ptx_for_sm_70_is_an_artifact_without_resources(scale: str, cache: Cache) -> None:
    made = compile_source(scale, file_name="scale.cu", arch="sm_70", kind="ptx", cache=cache)
    assert (made.arch, made.kind, made.kernels) == ("sm_70", "ptx", {})
    assert b".target sm_70" in made.data


def test_a_damaged_entry_gives_the_same_cubin_again(scale: str, cache: Cache) -> None:
    first = compile_source(scale, file_name="scale.cu", arch="sm_90", cache=cache)
    [path] = cache.folder.glob("v*/*.entry")
    path.write_bytes(path.read_bytes()[:-1])
    again = compile_source(scale, file_name="scale.cu", arch="sm_90", cache=cache)
    assert not again.cached
    assert again.data == first.data


def test_failures_are_not_cached(cache: Cache) -> None:
    for _ in range(2):
        with pytest.raises(CompileFailed, match='identifier "undefined" is undefined'):
            compile_source(BAD, file_name="bad.cu", arch="sm_90", cache=cache)
    assert cache.entries() == []


def test_a_file_without_kernels_is_refused(cache: Cache) -> None:
    with pytest.raises(LogUnreadable, match="names no kernel"):
        compile_source("__device__ int x;", file_name="empty.cu", arch="sm_90", cache=cache)


def test_results_are_in_order_and_failures_are_values(cache: Cache) -> None:
    jobs = [
        Job(GOOD, "a.cu", "sm_90"),
        Job(BAD, "b.cu", "sm_90"),
        Job(GOOD, "c.cu", "sm_42"),
        Job(GOOD, "d.cu", "sm_75", "ptx"),
    ]
    seen: list[tuple[Job, CompileResult]] = []
    results = compile_all(jobs, workers=2, cache=cache, on_done=lambda job, made: seen.append((job, made)))
    a, b, c, d = results
    assert isinstance(a, Artifact)
    assert isinstance(b, CompileFailed)
    assert isinstance(c, ArchUnsupported)
    assert isinstance(d, Artifact)
    assert d.kind == "ptx"
    assert seen == list(zip(jobs, results, strict=True))


def test_hits_need_no_worker(cache: Cache) -> None:
    jobs = [Job(GOOD, name, "sm_90") for name in ("a.cu", "b.cu")]
    compile_all(jobs, cache=cache)
    again = compile_all(jobs, executor=Refusing(), cache=cache)
    assert [made.cached for made in again if isinstance(made, Artifact)] == [True, True]
    with pytest.raises(AssertionError, match="a job was submitted"):
        compile_all([Job(GOOD, "c.cu", "sm_90")], executor=Refusing(), cache=cache)


def test_a_given_executor_compiles_and_stays_open(cache: Cache) -> None:
    jobs = [Job(GOOD, "a.cu", "sm_90"), Job(BAD, "b.cu", "sm_90")]
    with ThreadPoolExecutor(2) as executor:
        good, bad = compile_all(jobs, executor=executor, cache=cache)
        assert executor.submit(int).result() == 0
    assert isinstance(good, Artifact)
    assert isinstance(bad, CompileFailed)
    assert len(cache.entries()) == 1


def test_what_a_worker_could_not_store_is_stored_here(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on another machine has a cache of its own."""

    def elsewhere(job: Job, identity: str, _folder: Path | None) -> Artifact:
        return compile_job(job, identity, None)

    monkeypatch.setattr(compile_module, "compile_job", elsewhere)
    with ThreadPoolExecutor(1) as executor:
        compile_all([Job(GOOD, "a.cu", "sm_90")], executor=executor, cache=cache)
    assert compile_source(GOOD, file_name="a.cu", arch="sm_90", cache=cache).cached


def test_a_worker_with_another_compiler_is_refused() -> None:
    with pytest.raises(ToolchainMismatch, match="The worker has another toolchain"):
        compile_job(Job(GOOD, "a.cu", "sm_90"), "nvrtc 1.0", None)


def test_local_processes(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "WORTH_A_POOL", 2)
    monkeypatch.setattr(compile_module, "compile_program", None)  # nothing is compiled in this process
    jobs = [Job(GOOD, "a.cu", "sm_90"), Job(BAD, "b.cu", "sm_90"), Job(GOOD, "a.cu", "sm_90")]
    first, bad, twin = compile_all(jobs, workers=2, cache=cache)
    assert isinstance(first, Artifact)
    assert isinstance(twin, Artifact)
    assert first.data == twin.data
    assert {first.cached, twin.cached} == {True, False}
    assert isinstance(bad, CompileFailed)
    assert "/kernwright/b.cu(1): error" in str(bad)


def test_an_interrupt_cancels_what_has_not_begun(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    class Manual(Executor):
        """Finishes the first job and leaves the rest waiting."""

        def __init__(self) -> None:
            self.futures: list[Future[Artifact]] = []

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Artifact] = Future()
            if not self.futures:
                future.set_result(fn(*args, **kwargs))
            self.futures.append(future)
            return future

    def interrupt(_job: Job, _result: CompileResult) -> None:
        raise KeyboardInterrupt

    executor = Manual()
    jobs = [Job(GOOD, f"{index}.cu", "sm_90") for index in range(4)]
    with pytest.raises(KeyboardInterrupt):
        compile_all(jobs, executor=executor, cache=cache, on_done=interrupt)
    assert [future.cancelled() for future in executor.futures] == [False, True, True, True]
    assert compile_source(GOOD, file_name="0.cu", arch="sm_90", cache=cache).cached


def test_a_cached_kernel_is_given_without_loading_cupy(cache: Cache, import_root: Path) -> None:
    compile_source(GOOD, file_name="a.cu", arch="sm_90", cache=cache)
    script = f"""
import sys
from pathlib import Path
from kernwright.compiler.cache import Cache
from kernwright.compiler.compile import compile_source
made = compile_source({GOOD!r}, file_name="a.cu", arch="sm_90", cache=Cache(Path(sys.argv[1])))
print(made.cached, sorted({{"cupy", "cupy_backends", "torch", "numpy", "filelock"}} & set(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(cache.folder)],
        cwd=import_root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "True []"
