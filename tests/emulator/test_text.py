"""What is read from a text, and what is refused."""

from __future__ import annotations

import pytest
from kernwright.emulator import TextUnsupported
from kernwright.emulator.text import facts, without_comments

KERNEL = 'extern "C" __global__ void f(int* p) { p[0] = 1; }\n'


@pytest.mark.parametrize(
    "declaration",
    [
        'extern "C" __global__ void f(int* p)',
        'extern "C" __global__ void __launch_bounds__(down::THREADS)\nf(int* p)',
        'extern "C" __global__ void __launch_bounds__(max(A(1), 2), 3) f(int* p)',
        'extern "C" __global__ __launch_bounds__(128) void f(int* p)',
    ],
)
def test_kernels_are_found(declaration):
    assert facts(f"// __global__ void g(int)\n{declaration} {{}}", "f.cu").symbols == ("f",)


@pytest.mark.parametrize(
    ("code", "waits"),
    [
        ("", False),
        ("// __nv_atomic_load_n", False),
        ('const char* s = "griddepcontrol";', False),
        ("__nv_atomic_add(p, 1, 0, 0);", True),
        ("griddepcontrol_wait();", True),
    ],
)
def test_kernels_that_wait_for_other_ctas(code, waits):
    assert facts(f"__device__ void d(int* p) {{ {code} }}\n{KERNEL}", "f.cu").waits is waits


def test_dynamic_shared_memory():
    code = "extern __shared__ __align__(16) unsigned  char smem[];"
    assert facts(code + KERNEL, "f.cu").dynamic_shared == ("unsigned char", "smem")
    assert facts(KERNEL, "f.cu").dynamic_shared is None
    with pytest.raises(TextUnsupported, match=r"float a\[\], unsigned char smem\[\]\); they are one memory"):
        facts(code + "extern __shared__ float a[];" + KERNEL, "f.cu")


@pytest.mark.parametrize(
    "code",
    ['asm("mma.sync.aligned.m16n8k16...");', 'asm("wgmma.fence;");', "nvcuda::wmma::fill_fragment(c, 0);"],
)
def test_tensor_cores_are_refused(code):
    with pytest.raises(TextUnsupported, match="such candidates are checked on a GPU, under their tolerance"):
        facts(f"__device__ void d() {{ {code} }}\n{KERNEL}", "f.cu")
    assert facts(f"// {code}\n{KERNEL}", "f.cu").symbols == ("f",)


def test_a_text_without_a_kernel():
    with pytest.raises(
        TextUnsupported, match=r"f\.cu defines no kernel; the emulator runs functions declared"
    ):
        facts("int x;", "f.cu")


def test_comments_go_and_lines_stay():
    text = 'int a; // one\n/* two\nthree */ const char* s = "// kept";\n'
    assert without_comments(text) == 'int a; \n\n const char* s = "// kept";\n'
