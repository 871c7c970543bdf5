from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import kernwright.compiler.toolchain as toolchain_module
import pytest
from kernwright.compiler.headers import headers_digest, read_headers
from kernwright.compiler.toolchain import (
    ArchUnsupported,
    Toolchain,
    ToolchainMissing,
    nvrtc_of_wheel,
    require_arch,
    toolchain,
)


def pretend(monkeypatch: pytest.MonkeyPatch, **changes: object) -> Toolchain:
    changed = replace(toolchain(), **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(toolchain_module, "toolchain", lambda: changed)
    return changed


def test_what_is_installed_is_described() -> None:
    installed = toolchain()
    assert installed.version >= (12, 0)
    assert installed.library.is_file()
    assert installed.library_bytes == installed.library.stat().st_size
    assert (installed.include / "cuda_fp16.h").is_file()
    assert {"sm_75", "sm_80", "sm_90", "sm_90a"} <= set(installed.archs)
    assert "sm_80a" not in installed.archs


def test_an_arch_that_nvrtc_13_dropped_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, version=(13, 0), archs=("sm_75", "sm_80", "sm_90"))
    with pytest.raises(ArchUnsupported) as refused:
        require_arch("sm_70")
    assert str(refused.value) == (
        "The installed NVRTC 13.0 doesn't compile for sm_70; it serves sm_75, sm_80, sm_90. "
        "CUDA 12's NVRTC serves sm_70: pip install 'kernwright[cuda12]'."
    )


def test_an_arch_that_is_too_new_names_the_other_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, version=(12, 4), archs=("sm_80", "sm_90", "sm_90a"))
    with pytest.raises(ArchUnsupported, match=r"CUDA 13's NVRTC may serve sm_120: .*kernwright\[cuda13\]"):
        require_arch("sm_120")


def test_an_arch_that_nothing_serves_suggests_no_extra() -> None:
    with pytest.raises(
        ArchUnsupported, match=r"doesn't compile for sm_30; .* Name one of those as the target"
    ):
        require_arch("sm_30")


def test_served_archs_pass() -> None:
    for arch in ("sm_75", "sm_90a"):
        require_arch(arch)


def test_the_nvrtc_that_cupy_is_built_for_goes_before_a_newer_one(tmp_path: Path) -> None:
    cupy = tmp_path / "cupy"
    (cupy / ".data").mkdir(parents=True)
    (cupy / ".data" / "_wheel.json").write_text(json.dumps({"cuda": "12.x"}))
    for folder, name in (("cu13", "libnvrtc.so.13"), ("cuda_nvrtc", "libnvrtc.so.12")):
        library = tmp_path / "nvidia" / folder / "lib" / name
        library.parent.mkdir(parents=True)
        library.touch()
    assert nvrtc_of_wheel(cupy) == tmp_path / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    (cupy / ".data" / "_wheel.json").write_text(json.dumps({"cuda": "13.x"}))
    assert nvrtc_of_wheel(cupy) == tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    (cupy / ".data" / "_wheel.json").unlink()
    assert nvrtc_of_wheel(cupy) is None


def test_identity_tells_patch_releases_and_headers_apart_but_not_folders() -> None:
    here = toolchain()
    assert replace(here, library_bytes=here.library_bytes + 1).identity != here.identity
    assert replace(here, header_sha256="0" * 64).identity != here.identity
    assert replace(here, include=Path("/elsewhere"), library=Path("/x.so")).identity == here.identity


def test_headers_are_followed_through_their_includes(tmp_path: Path) -> None:
    (tmp_path / "cuda_fp16.h").write_text(
        '#include "vector_types.h"\n# include <nv/target>\n#include "cuda_fp16.hpp"'
    )
    (tmp_path / "vector_types.h").write_text("struct float2;")
    (tmp_path / "cuda_fp16.hpp").write_text('#include "cuda_fp16.h"')
    (tmp_path / "unrelated.h").write_text("")
    headers = read_headers(tmp_path)
    assert set(headers) == {"cuda_fp16.h", "vector_types.h", "cuda_fp16.hpp"}
    before = headers_digest(headers)
    assert headers_digest({**headers, "vector_types.h": b"struct float3;"}) != before
    assert headers_digest(dict(reversed(list(headers.items())))) == before


def test_asking_for_the_toolchain_loads_neither_cupy_nor_torch(import_root: Path) -> None:
    script = (
        "import sys; import kernwright.compiler.bundle; from kernwright.compiler.toolchain import toolchain\n"
        "bare = {'cuda.pathfinder', 'filelock', 'platformdirs'} & set(sys.modules)\n"
        "toolchain()\n"
        "print(sorted(bare), sorted({'cupy', 'cupy_backends', 'torch', 'numpy'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=import_root, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[] []"


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("importlib.util.find_spec", "CuPy isn't installed"),
        ("cuda.pathfinder.load_nvidia_dynamic_lib", "NVRTC, the CUDA compiler library, can't be loaded"),
    ],
)
def test_what_is_missing_is_named_with_the_extra(
    broken: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        if "pathfinder" in broken:
            raise RuntimeError("not found")

    monkeypatch.setattr(broken, missing)
    with pytest.raises(ToolchainMissing) as refused:
        toolchain.__wrapped__()
    assert str(refused.value).startswith(sentence)
    assert "pip install 'kernwright[cuda12]'" in str(refused.value)
