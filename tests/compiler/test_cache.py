from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import kernwright.compiler.cache as cache_module
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernwright.compiler.artifact import Artifact
from kernwright.compiler.cache import Cache, cache_key, default_cache, default_folder
from kernwright.compiler.nvrtc import FLAGS
from kernwright.compiler.toolchain import toolchain

KEY = "ab" * 32


def only_entry(cache: Cache) -> Path:
    [path] = cache.folder.glob("v*/*.entry")
    return path


def never() -> Artifact:
    raise AssertionError("compiled again")


def test_round_trip(cache: Cache, artifact: Artifact) -> None:
    assert cache.get(KEY) is None
    assert cache.fetch(KEY, lambda: artifact) == artifact
    assert cache.fetch(KEY, never) == replace(artifact, cached=True)
    assert Cache(cache.folder).get(KEY) == replace(artifact, cached=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damage_anywhere_is_noticed_and_mended(cache: Cache, artifact: Artifact, data: st.DataObject) -> None:
    cache.put(KEY, artifact)
    path = only_entry(cache)
    stored = path.read_bytes()
    at = data.draw(st.integers(0, len(stored) - 1))
    if data.draw(st.booleans()):
        damaged = stored[:at]
    else:
        damaged = stored[:at] + bytes([stored[at] ^ data.draw(st.integers(1, 255))]) + stored[at + 1 :]
    path.write_bytes(damaged)
    assert cache.get(KEY) is None
    assert cache.fetch(KEY, lambda: artifact).cached is False
    assert path.read_bytes() == stored


def test_an_entry_under_another_key_does_not_count(cache: Cache, artifact: Artifact) -> None:
    cache.put(KEY, artifact)
    other = "cd" * 32
    only_entry(cache).rename(only_entry(cache).with_name(f"{other}.entry"))
    assert cache.get(other) is None


def test_other_format_versions_do_not_see_each_other(
    cache: Cache, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(KEY, artifact)
    monkeypatch.setattr(cache_module, "FORMAT", 2)
    newer = Cache(cache.folder)
    assert newer.get(KEY) is None
    assert newer.clear() == 0
    assert cache.get(KEY) is not None


def test_failures_are_passed_on_and_not_stored(cache: Cache, artifact: Artifact) -> None:
    def fail() -> Artifact:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.fetch(KEY, fail)
    assert cache.entries() == []
    assert cache.fetch(KEY, lambda: artifact) == artifact


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    assert cache.lasting
    with caplog.at_level(logging.WARNING):
        for key in (KEY, "cd" * 32):
            assert cache.fetch(key, lambda: artifact).cached is False
            assert cache.fetch(key, never) == replace(artifact, cached=True)
    assert not cache.lasting
    [record] = caplog.records
    assert f"The kernel cache {cache.folder} can't be written" in record.getMessage()
    assert "set KERNWRIGHT_CACHE_DIR" in record.getMessage()
    assert cache.clear() == 0
    assert cache.get(KEY) is None


def test_a_read_only_folder_still_serves_what_it_holds(
    cache: Cache, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(KEY, artifact)

    def refuse(**_: object) -> tuple[int, str]:
        raise PermissionError("read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    shared = Cache(cache.folder)
    assert shared.fetch(KEY, never).cached is True
    assert shared.lasting
    shared.fetch("cd" * 32, lambda: artifact)
    assert not shared.lasting
    assert shared.fetch("cd" * 32, never).cached is True


def test_eight_processes_compile_once(tmp_path: Path, import_root: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.cache import Cache
folder, log, go = map(Path, sys.argv[1:])
def make():
    with log.open("a") as file: file.write("made\\n")
    time.sleep(0.2)
    return Artifact("sm_90", "cubin", "0" * 64, digest(b"x"), b"x", {}, False, 0.0)
while not go.exists(): time.sleep(0.005)
print(Cache(folder).fetch("ab" * 32, make).data.decode())
"""
    log, go = tmp_path / "log", tmp_path / "go"
    command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(log), str(go)]
    running = [
        subprocess.Popen(command, cwd=import_root, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    go.touch()
    assert [process.communicate()[0] for process in running] == ["x\n"] * 8
    assert log.read_text() == "made\n"


def test_a_process_killed_while_writing_leaves_no_broken_entry(
    cache: Cache, artifact: Artifact, tmp_path: Path, import_root: Path
) -> None:
    script = """
import os, sys, time
from pathlib import Path
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.cache import Cache
def hang(_):
    Path(sys.argv[2]).touch()
    time.sleep(60)
os.fsync = hang
data = bytes(100_000)
made = Artifact("sm_90", "cubin", "", digest(data), data, {}, False, 0.0)
Cache(Path(sys.argv[1])).fetch("ab" * 32, lambda: made)
"""
    writing = tmp_path / "writing"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(cache.folder), str(writing)], cwd=import_root
    )
    while not writing.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list(cache.folder.glob("v*/*.tmp"))) == 1
    assert cache.entries() == []
    assert cache.fetch(KEY, lambda: artifact) == artifact  # its lock went with it
    assert cache.clear() == 1
    assert list(cache.folder.glob("v*/*.tmp")) == []


def test_listing_and_clearing(cache: Cache, artifact: Artifact) -> None:
    cache.put(KEY, artifact)
    cache.put("cd" * 32, artifact)
    (cache.folder / "v1" / f"{KEY}.entry").write_bytes(b"damaged")
    broken, whole = cache.entries()
    assert (broken.key, broken.size, broken.artifact) == (KEY, 7, None)
    assert whole.artifact == replace(artifact, cached=True)
    assert whole.size > len(artifact.data)
    assert cache.clear() == 2
    assert cache.entries() == []


def test_everything_that_decides_the_bytes_is_in_the_key() -> None:
    here = toolchain()

    def key(
        source: str = "s", file_name: str = "f", arch: str = "sm_90", flags: tuple[str, ...] = FLAGS
    ) -> str:
        return cache_key(source, file_name=file_name, arch=arch, kind="cubin", flags=flags, toolchain=here)

    keys = {
        key(),
        key(source="t"),
        key(file_name="g"),
        key(source="sf", file_name=""),
        key(arch="sm_90a"),
        key(flags=("--fmad=true",)),
        cache_key("s", file_name="f", arch="sm_90", kind="ptx", flags=FLAGS, toolchain=here),
        cache_key(
            "s",
            file_name="f",
            arch="sm_90",
            kind="cubin",
            flags=FLAGS,
            toolchain=replace(here, library_bytes=1),
        ),
    }
    assert len(keys) == 8
    assert key() == key()


def test_the_default_folder_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path
    assert default_cache() is default_cache()
    assert default_cache().folder == tmp_path
    monkeypatch.delenv("KERNWRIGHT_CACHE_DIR")
    assert default_folder().name == "kernwright"
