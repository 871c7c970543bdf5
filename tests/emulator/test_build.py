"""Compiling and caching: by content, verified, without a compiler a sentence."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from kernwright.compiler import trusted
from kernwright.emulator import (
    CompilerMissing,
    DeviceBuffer,
    EmulatedLaunch,
    HostCompileFailed,
    build,
    compile_text,
    run,
    toolchain,
)

TEXT = 'extern "C" __global__ void f(int* p, int value) { p[threadIdx.x] = value; }\n'


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a runtime that is there already."""
    library = build.runtime_library()
    monkeypatch.setattr(build, "runtime_library", lambda: library)
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "emulator"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is compiled from now on."""
    names: list[str] = []
    real = build._compile

    def counted(with_what, options, folder, name):
        names.append(name)
        real(with_what, options, folder, name)

    monkeypatch.setattr(build, "_compile", counted)
    return names


def works(kernel) -> bool:
    out = DeviceBuffer.output("p", (32,), "int32")
    outcome = run([EmulatedLaunch(kernel, "f", (1, 1, 1), (32, 1, 1), (out, np.int32(7)))])
    return outcome.fault is None and bool((outcome.arrays[out] == 7).all())


def test_objects_are_cached_by_content(empty_cache, compilations):
    first = compile_text(TEXT, "f.cu")
    assert works(first)
    made = len(compilations)
    again = compile_text(f"{TEXT}// another comment", "g.cu")
    assert len(compilations) == made
    assert (again.path, again.name) == (first.path, "g.cu")
    changed = compile_text(TEXT.replace("value;", "value + 0;"), "f.cu")
    assert len(compilations) == 2 * made
    assert changed.path != first.path
    assert compile_text(TEXT, "f.cu", "debug").path != first.path
    assert not list(empty_cache.rglob(".making-*"))


@pytest.mark.parametrize("damage", [b"", b"not an object", None])
def test_a_damaged_object_is_compiled_again(empty_cache, compilations, damage):
    path = compile_text(TEXT, "f.cu").path
    made = len(compilations)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert works(compile_text(TEXT, "f.cu"))
    assert len(compilations) == 2 * made


def test_a_cache_that_cannot_be_made_costs_one_warning(tmp_path, monkeypatch, caplog):
    library = build.runtime_library()
    monkeypatch.setattr(build, "runtime_library", lambda: library)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    build._temporary_root.cache_clear()
    assert works(compile_text(TEXT, "f.cu"))
    assert works(compile_text(TEXT, "f.cu"))
    assert caplog.text.count("can't be written") == 1
    build._temporary_root.cache_clear()


@pytest.mark.parametrize("name", ["__expf", "__threadfence", "__ldsm_x4"])
def test_an_unknown_name_is_a_compile_error_that_names_it(name):
    text = f'extern "C" __global__ void f(float* p) {{\n  p[0] = {name}(p[1]);\n}}\n'
    with pytest.raises(HostCompileFailed) as caught:
        compile_text(text, "mine.cu")
    assert f"The emulator doesn't know {name}: if it is an intrinsic or PTX" in str(caught.value)
    assert "mine.cu:2:" in str(caught.value)


def test_a_syntax_error_names_its_line():
    with pytest.raises(
        HostCompileFailed, match=r"mine\.cu doesn't compile for the CPU\.\nmine\.cu:1:\d+: error"
    ):
        compile_text('extern "C" __global__ void f(float* p) { p[0] = ; }', "mine.cu")


@pytest.fixture
def fresh_search(monkeypatch: pytest.MonkeyPatch):
    toolchain.compiler.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    toolchain.compiler.cache_clear()


def test_without_a_compiler(fresh_search):
    fresh_search.setenv("PATH", "/nowhere")
    fresh_search.delenv("CXX", raising=False)
    with pytest.raises(
        CompilerMissing, match=r"No C\+\+ compiler was found \(looked for g\+\+ and clang\+\+\)"
    ):
        toolchain.compiler()


def test_a_named_compiler(fresh_search, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\necho my compiler 1.0\necho more\n")
    mine.chmod(0o755)
    fresh_search.setenv("CXX", str(mine))
    assert toolchain.compiler().path == mine
    assert toolchain.compiler().version == "my compiler 1.0"
    assert "my compiler 1.0" in toolchain.compiler().identity


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"symbol": "g"}, r"f\.cu has no kernel g; it has f\."),
        ({"args": ()}, r"f takes 2 arguments of \[8, 4\] bytes; 0 of \[\] bytes were given\."),
        (
            {"args": (DeviceBuffer.output("p", (32,), "int32"), np.int64(7))},
            r"2 of \[8, 8\] bytes were given",
        ),
        (
            {"args": (DeviceBuffer.output("p", (32,), "int32"), 7)},
            r"argument 1 is a Python int; give a DeviceBuffer",
        ),
        ({"block": (2048, 1, 1)}, "a CTA of 2048 threads; 1024 are allowed"),
        ({"grid": (0, 1, 1)}, "must be at least 1 each"),
        ({"shared_bytes": 2**20}, "1048576 bytes of dynamic shared memory; 232448 are allowed"),
    ],
)
def test_a_launch_that_does_not_fit(changes, message):
    args = (DeviceBuffer.output("p", (32,), "int32"), np.int32(7))
    given = {"symbol": "f", "grid": (1, 1, 1), "block": (32, 1, 1), "args": args, **changes}
    with pytest.raises(ValueError, match=message):
        run([EmulatedLaunch(compile_text(TEXT, "f.cu"), **given)])


def test_the_fallback_of_the_context_switch(tmp_path):
    """ucontext, for processors without a switch of our own: the runtime's sources compile and run with it."""
    native = Path(build.__file__).parent / "native"
    kernel = compile_text(TEXT, "f.cu")
    program = tmp_path / "fallback"
    sources = [str(source) for source in sorted(native.glob("*.cpp"))]
    flags = ["-std=c++17", "-O0", "-DKERNWRIGHT_UCONTEXT", "-pthread", "-rdynamic"]
    subprocess.run([str(toolchain.compiler().path), *flags, *sources, "-o", str(program), "-ldl"], check=True)
    launch = "f 0 0 0 0 1 1 1 32 1 1 0 2 pointers 1 0 scalar 07000000"
    (tmp_path / "plan").write_text(f"0 0 0 1 {kernel.path} 1 p 0 128 1 - 0 1 {launch}")
    subprocess.run([str(program), str(tmp_path / "plan"), str(tmp_path / "report")], check=True)
    assert (tmp_path / "report").read_text() == ""


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_planted_object_is_not_loaded(tmp_path, monkeypatch, caplog, mode):
    """In a folder that others may write to, shared in a group or not; every object is made in a folder of its own."""
    monkeypatch.setattr(trusted, "_private", lambda _: False)
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(trusted.SHARED_VARIABLE, "group")
    build._temporary_root.cache_clear()
    made = []

    def make(folder, _lasting):
        made.append(folder)
        (folder / "object.so").write_bytes(b"ours")

    before = os.umask(0o002)
    try:
        ours = build.cached("key", "object.so", make)
        assert build.cached("key", "object.so", make) == ours
    finally:
        os.umask(before)
    assert len(made) == 1
    for folder in (ours, ours.parent):
        (ours / "object.so").write_bytes(b"evil")
        (ours / "object.so.sha256").write_text(hashlib.sha256(b"evil").hexdigest())
        folder.chmod(mode)
        found = build.cached("key", "object.so", make)
        assert (found / "object.so").read_bytes() == b"ours"
        assert (found == ours) == (folder == ours)  # one that lies in a trusted folder is made anew
        assert build.cached("key", "object.so", make) == found
    assert len(made) == 3
    assert caplog.text.count("can't be trusted") == 1
    assert "may be written to by" in caplog.text
    build._temporary_root.cache_clear()


def test_temporary_files_where_others_may_write(tmp_path, monkeypatch, caplog):
    """As in a container whose /tmp is a volume of somebody else's: one warning, and nothing that was planted."""
    monkeypatch.setattr(trusted, "_private", lambda _: False)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(open_to_all / "cache"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(open_to_all))
    made = []

    def make(folder, _place):
        made.append(folder)
        (folder / "product").write_bytes(b"ours")

    folder = build.cached("ab" * 32, "product", make)
    assert build.cached("ab" * 32, "product", make) == folder
    assert len(made) == 1
    (folder / "product").write_bytes(b"planted")
    (folder / "product.sha256").write_text(hashlib.sha256(b"planted").hexdigest())
    assert (build.cached("ab" * 32, "product", make) / "product").read_bytes() == b"ours"
    assert len(made) == 2
    assert caplog.text.count("can't be trusted") == 1
