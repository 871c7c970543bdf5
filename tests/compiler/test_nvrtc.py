from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import kernwright.compiler.nvrtc as nvrtc_module
import pytest
from kernwright.compiler.nvrtc import FLAGS, CompileFailed, ToolchainMismatch, compile_program
from kernwright.compiler.resources import Resources, parse_log
from kernwright.compiler.toolchain import ArchUnsupported, toolchain


def test_the_contract_forbids_contraction() -> None:
    assert "--fmad=false" in FLAGS
    source = 'extern "C" __global__ void k(float* a) { a[0] = a[1] * a[2] + a[3]; }'
    ptx = compile_program(source, file_name="k.cu", arch="sm_90", kind="ptx").data
    assert b"mul.rn.f32" in ptx
    assert b"add.rn.f32" in ptx
    assert b"fma" not in ptx


def test_ptx_is_made_for_the_virtual_architecture(scale: str) -> None:
    made = compile_program(scale, file_name="scale.cu", arch="sm_70", kind="ptx")
    assert b".target sm_70" in made.data
    assert b".visible .entry scale(" in made.data
    assert parse_log(made.log) == {}


def test_the_log_gives_what_a_kernel_uses(scale: str) -> None:
    made = compile_program(scale, file_name="scale.cu", arch="sm_90", kind="cubin")
    used = parse_log(made.log)["scale"]
    assert used == Resources(used.registers, shared_bytes=256, stack_bytes=0, spill_bytes=0)
    assert 8 <= used.registers <= 32
    assert made.seconds > 0


def test_working_folder_and_header_folder_leave_no_trace(
    scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = compile_program(scale, file_name="scale.cu", arch="sm_90", kind="cubin").data
    copied = tmp_path / "another environment" / "include"
    shutil.copytree(toolchain().include, copied)
    elsewhere = replace(toolchain(), include=copied)
    monkeypatch.setattr(nvrtc_module, "toolchain", lambda: elsewhere)
    monkeypatch.chdir(tmp_path)
    there = compile_program(scale, file_name="scale.cu", arch="sm_90", kind="cubin").data
    assert b"/cuda/include" in here  # so a header is in the line table, and its real folder might be
    assert there == here


def test_the_file_name_is_in_the_line_table(scale: str) -> None:
    data = compile_program(scale, file_name="hc/scale.cu", arch="sm_90", kind="cubin").data
    assert b"/kernwright/hc" in data
    assert b"scale.cu" in data


def test_an_error_carries_file_arch_and_the_compilers_words() -> None:
    with pytest.raises(CompileFailed) as failed:
        compile_program(
            'extern "C" __global__ void k() { int x = y; }', file_name="k.cu", arch="sm_90", kind="cubin"
        )
    text = str(failed.value)
    assert text.startswith("k.cu doesn't compile for sm_90. NVRTC says:\n")
    assert '/kernwright/k.cu(1): error: identifier "y" is undefined' in text
    assert str(pickle.loads(pickle.dumps(failed.value))) == text


def test_an_unserved_arch_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(ArchUnsupported, match="doesn't compile for sm_42"):
        compile_program("not even C++", file_name="k.cu", arch="sm_42", kind="cubin")


def test_cupy_with_another_nvrtc_is_refused(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(toolchain(), version=(11, 8))
    monkeypatch.setattr(nvrtc_module, "toolchain", lambda: other)
    with pytest.raises(
        ToolchainMismatch, match=r"CuPy compiles with NVRTC \d+\.\d+, but .* is 11\.8\. Keep one"
    ):
        compile_program(scale, file_name="scale.cu", arch="sm_90", kind="cubin")
