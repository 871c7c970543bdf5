from __future__ import annotations

import functools
from pathlib import Path

import kernwright
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.compiler.cubin import (
    CubinInvalid,
    is_cubin,
    kernel_code_digest,
    machine_code_digest,
    references_data,
    repair,
)
from kernwright.compiler.disassembly import (
    DisassemblyFailed,
    ExpectationsSkipped,
    find_nvdisasm,
    instruction_counts,
    reads_constant_bank,
    unmet,
)
from kernwright.compiler.nvrtc import FLAGS, compile_program

COPY = """\
extern "C" __global__ void copy16(const float4* a, float4* b) { b[threadIdx.x] = a[threadIdx.x]; }
extern "C" __global__ void copy4(const float* a, float* b) { b[threadIdx.x] = a[threadIdx.x]; }
"""

needs_nvdisasm = pytest.mark.skipif(find_nvdisasm() is None, reason="nvdisasm isn't installed")


@functools.cache
def raw(arch: str) -> bytes:
    """As CuPy hands it over."""
    return compile_program(COPY, file_name="copy.cu", arch=arch, kind="cubin").data


def test_the_lost_byte_is_appended_once() -> None:
    whole = repair(raw("sm_90"))
    assert whole == raw("sm_90") + b"\0"
    assert repair(whole) == whole


@given(st.integers(1, 400))
def test_a_cubin_that_lacks_more_is_refused(lost: int) -> None:
    with pytest.raises(
        CubinInvalid, match=r"reach to byte \d+; it was cut short|doesn't start as a 64-bit ELF"
    ):
        repair(raw("sm_90")[:-lost])


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_what_is_no_elf_is_refused(data: bytes) -> None:
    with pytest.raises(CubinInvalid, match="isn't a cubin"):
        repair(data)


@needs_nvdisasm
def test_nvdisasm_rejects_what_cupy_gives_and_reads_what_is_repaired() -> None:
    with pytest.raises(DisassemblyFailed, match="invalid ELF"):
        instruction_counts(raw("sm_90"), "sm_90")
    counts = instruction_counts(repair(raw("sm_90")), "sm_90")
    assert not isinstance(counts, ExpectationsSkipped)
    assert counts.keys() == {"copy16", "copy4"}
    assert unmet({"copy16": counts["copy16"]}, {"LDG.E.128": 1, "STG.E.128": 1}) == []
    assert unmet(counts, {"LDG.E.128": 1}) == ["copy4 has 0 LDG.E.128 instructions; at least 1 are expected"]


@needs_nvdisasm
def test_an_arch_that_nvdisasm_does_not_read_is_skipped_and_said_to_be() -> None:
    skipped = instruction_counts(repair(raw("sm_70")), "sm_70")
    assert isinstance(skipped, ExpectationsSkipped)
    assert skipped.reason.startswith("Expectations of the machine code aren't checked for sm_70: ")


def test_without_nvdisasm_expectations_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernwright.compiler.disassembly.find_nvdisasm", lambda: None)
    skipped = instruction_counts(b"", "sm_90")
    assert isinstance(skipped, ExpectationsSkipped)
    assert "pip install nvidia-cuda-nvdisasm" in skipped.reason


def test_expectations_compare_modifiers_whole_and_add_up_variants() -> None:
    counts = {"up": {"LDG.E.128": 2, "LDG.E.128.CONSTANT": 1, "LDG.E.64": 4, "LDGSTS.E": 9}}
    assert unmet(counts, {"LDG.E.128": 3, "LDG": 7, "LDG.E": 7}) == []
    assert unmet(counts, {"LDG.E.128": 4}) == ["up has 3 LDG.E.128 instructions; at least 4 are expected"]
    assert unmet(counts, {"LDG.E.1": 1}) == ["up has 0 LDG.E.1 instructions; at least 1 are expected"]


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
def test_machine_code_is_the_same_whatever_lines_and_names_and_another_after_a_change(arch: str) -> None:
    root = Path(kernwright.__file__).parent / "generated" / "hyper_connection"
    text = (root / "qwen38_flash_tp1" / "replicated.fp16.cu").read_text(encoding="utf-8")

    def made(text: str, name: str) -> tuple[bytes, str]:
        data = repair(compile_program(text, file_name=name, arch=arch, kind="cubin").data)
        return data, machine_code_digest(data)

    head = text.index("\n\n")
    data, digest = made(text, "a.cu")
    lower, same = made(f"{text[:head]}\n// one\n// two\n{text[head:]}", "another.cu")
    assert data != lower
    assert digest == same
    old = "total = total + groups[group];"
    assert text.count(old) == 1
    assert made(text.replace(old, "total = total - groups[group];"), "a.cu")[1] != digest


def test_ptx_has_no_machine_code() -> None:
    assert not is_cubin(b".version 8.0")
    with pytest.raises(CubinInvalid, match="aren't a cubin"):
        machine_code_digest(b".version 8.0")


UNREAD = "constexpr int STEPS = 3;\n"
TABLE = """\
__device__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void look_up(const int* at, float* out) { out[threadIdx.x] = table[at[threadIdx.x]]; }
"""


def bare(text: str, arch: str = "sm_90") -> bytes:
    flags = tuple(flag for flag in FLAGS if flag != "-lineinfo")
    return repair(compile_program(text, file_name="a.cu", arch=arch, kind="cubin", flags=flags).data)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_constant_that_no_kernel_reads_is_no_code_of_a_kernel(arch: str) -> None:
    plain, more = bare(COPY, arch), bare(UNREAD + COPY, arch)
    assert machine_code_digest(plain) != machine_code_digest(more)
    assert kernel_code_digest(plain) == kernel_code_digest(more)
    assert not references_data(plain)


def test_another_operation_launch_bound_or_shared_memory_is_other_code() -> None:
    changed = (
        COPY.replace("b[threadIdx.x] = a[threadIdx.x]; }\n", "b[threadIdx.x] = a[threadIdx.x + 1]; }\n"),
        COPY.replace("__global__ void", "__global__ void __launch_bounds__(64)"),
        COPY.replace("{ b[", "{ __shared__ float4 s[64]; s[threadIdx.x].x = b[0].x; __syncthreads(); b[", 1),
    )
    digests = {kernel_code_digest(bare(text)) for text in (COPY, *changed)}
    assert len(digests) == 4


@needs_nvdisasm
def test_a_kernel_that_reads_data_at_namespace_scope_is_told() -> None:
    """Its data isn't in the digest of kernels, so that digest proves nothing."""
    one, other = bare(TABLE), bare(TABLE.replace("1, 2, 3, 4", "4, 3, 2, 1"))
    assert machine_code_digest(one) != machine_code_digest(other)
    assert references_data(one) or reads_constant_bank(one, "sm_90", 4) is True
    assert reads_constant_bank(bare(COPY), "sm_90", 4) is False
