"""From builds to modules: bundles, the compiler, stale sources, capture, missing pieces."""

import hashlib
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.bundle import write_bundle
from kernwright.runtime import Device, LoadError, NotWarm, StaleSource, loader
from kernwright.runtime.loader import MachineCode
from kernwright.table import Build

GPU = Device("sm_90", 132, "NVIDIA H200", 0)
TEXT = "// a kernel\n"
BUILD = Build("1" * 64, "small/control.cu", hashlib.sha256(TEXT.encode()).hexdigest())


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / BUILD.source
    path.parent.mkdir()
    path.write_text(TEXT)
    monkeypatch.setattr(loader, "_modules", {})
    monkeypatch.delenv("KERNWRIGHT_BUNDLE", raising=False)
    loader.bundles.cache_clear()
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the compiler is asked for; it gives the text back as machine code."""
    jobs: list[dict[str, Any]] = []

    def compile_source(source: str, **options: Any) -> SimpleNamespace:
        jobs.append({"source": source, **options})
        return SimpleNamespace(data=source.encode(), kind=options["kind"], cached=False)

    monkeypatch.setitem(
        sys.modules, "kernwright.compiler.compile", SimpleNamespace(compile_source=compile_source)
    )
    return jobs


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """What is loaded on which device."""
    loaded: list[tuple[int, bytes]] = []
    here: list[int] = []

    class FakeDevice:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            here.append(self.index)

        def __exit__(self, *_: object) -> None:
            here.pop()

    class Module:
        def load(self, data: bytes) -> None:
            if data == b"broken":
                raise RuntimeError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid\nmore")
            loaded.append((here[-1], data))

    cuda = SimpleNamespace(Device=FakeDevice, function=SimpleNamespace(Module=Module))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    return loaded


def test_a_module_is_compiled_and_loaded_once_a_device(
    root: Path, compiled: list[dict[str, Any]], cupy: list[tuple[int, bytes]]
) -> None:
    first = loader.load(root, BUILD, "sm_90", GPU)
    assert loader.load(root, BUILD, "sm_90", GPU) is first
    assert cupy == [(0, TEXT.encode())]
    assert compiled == [{"source": TEXT, "file_name": "small/control.cu", "arch": "sm_90", "kind": "cubin"}]
    loader.load(root, BUILD, "sm_90", Device("sm_90", 132, "NVIDIA H200", 1))
    assert cupy[1:] == [(1, TEXT.encode())]


def test_two_threads_load_a_module_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, loads = threading.Barrier(2), []

    def load_module(*_: Any) -> object:
        loads.append(object())
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.3)  # a second thread that loads too would come here
        return loads[-1]

    monkeypatch.setattr(loader, "machine_code", lambda *_: MachineCode(b"", None))
    monkeypatch.setattr(loader, "_load_module", load_module)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(loader.load(root, BUILD, "sm_90", GPU)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert found == loads * 2


def test_a_build_of_another_architecture_goes_as_ptx(
    root: Path, compiled: list[dict[str, Any]], cupy: list[tuple[int, bytes]]
) -> None:
    loader.load(root, BUILD, "sm_70", GPU)
    assert [(job["arch"], job["kind"]) for job in compiled] == [("sm_70", "ptx")]


def test_a_source_that_is_not_the_tables_is_stale(root: Path, compiled: list[dict[str, Any]]) -> None:
    (root / BUILD.source).write_text("// edited by hand\n")
    found = hashlib.sha256(b"// edited by hand\n").hexdigest()[:8]
    with pytest.raises(StaleSource) as error:
        loader.load(root, BUILD, "sm_90", GPU)
    assert str(error.value) == (
        f"{root / BUILD.source} has digest {found}..., the dispatch table was generated with "
        f"{BUILD.sha256[:8]}...; run `kernwright generate`"
    )
    assert compiled == []


def test_a_missing_source_is_stale(root: Path) -> None:
    (root / BUILD.source).unlink()
    with pytest.raises(StaleSource, match=r"read \(No such file or directory\); run `kernwright generate`"):
        loader.load(root, BUILD, "sm_90", GPU)


def test_capture_refuses_what_is_not_loaded_and_names_warm_up(
    root: Path,
    compiled: list[dict[str, Any]],
    cupy: list[tuple[int, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(NotWarm, match=r"isn't loaded on cuda:0 yet.*call warm_up\(\)"):
        loader.load(root, BUILD, "sm_90", GPU)
    assert compiled == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    warm = loader.load(root, BUILD, "sm_90", GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert loader.load(root, BUILD, "sm_90", GPU) is warm


def test_a_bundle_serves_without_source_or_compiler(
    root: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:

    def artifact(kind: Any, data: bytes) -> Artifact:
        return Artifact("sm_90", kind, BUILD.sha256, digest(data), data, {}, False, 0.1)

    folder = tmp_path / "bundle"
    write_bundle(folder, [artifact("cubin", b"cubin"), artifact("ptx", b"ptx")])
    (root / BUILD.source).unlink()
    monkeypatch.setenv("KERNWRIGHT_BUNDLE", str(folder))
    assert loader.machine_code(root, BUILD, "sm_90", "cubin") == MachineCode(b"cubin", (12, 9))
    assert loader.machine_code(root, BUILD, "sm_90", "ptx") == MachineCode(b"ptx", (12, 9))
    loaded = request.getfixturevalue("cupy")  # only now: writing a bundle asks for the real one
    loader.load(root, BUILD, "sm_90", GPU)
    assert loaded == [(0, b"cubin")]


def test_what_does_not_compile_or_load_is_a_load_error(
    root: Path, cupy: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: str, **options: Any) -> Any:
        raise RuntimeError("NVRTC isn't installed; pip install 'kernwright[cuda12]'\nand a long log")

    monkeypatch.setitem(sys.modules, "kernwright.compiler.compile", SimpleNamespace(compile_source=failing))
    with pytest.raises(LoadError) as error:
        loader.load(root, BUILD, "sm_90", GPU)
    assert str(error.value) == (
        "small/control.cu can't be compiled for sm_90 here: "
        "NVRTC isn't installed; pip install 'kernwright[cuda12]'"
    )
    monkeypatch.setattr(loader, "machine_code", lambda *_: MachineCode(b"broken", None))
    with pytest.raises(LoadError, match=r"can't be loaded on cuda:0: CUDA_ERROR_INVALID_IMAGE: [a-z ]+$"):
        loader.load(root, BUILD, "sm_90", GPU)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(LoadError, match=r"CuPy isn't installed; .*`pip install 'kernwright\[cuda12\]'`"):
        loader.load(root, BUILD, "sm_90", GPU)


def test_an_imagined_device_loads_nothing(root: Path, make: ModuleType) -> None:
    with pytest.raises(LoadError, match="this device is sm_90"):
        loader.load(root, BUILD, "sm_90", Device("sm_90"))
