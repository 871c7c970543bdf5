"""What people compare with: how it is named, a function of a module, a kernel in a file."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from kernwright.evidence.external import ExternalKernel, ExternalUnusable, compiled, load, parse, source_of
from kernwright.runtime.device import fake
from kernwright.runtime.request import Signature
from kernwright.table import Buffer

SIGNATURE = Signature(
    inputs=(Buffer("a", (2, 3), "float16"), Buffer("b", (3,), "float16")),
    outputs=(Buffer("x", (2, 3), "float16"), Buffer("total", (2,), "float32")),
)
INPUTS = (torch.ones(2, 3, dtype=torch.float16), torch.full((3,), 2.0, dtype=torch.float16))

MODULE = """
import torch
def both(a, b): return [a + b, (a + b).sum(1, dtype=torch.float32)]
def one(a, b): return a + b
def narrow(a, b): return a + b, (a + b).sum(1)
def flat(a, b): return (a + b).flatten(), (a + b).sum(1, dtype=torch.float32)
def nothing(a, b): return None
def in_place(a, b): return a.add_(0), a.sum(1, dtype=torch.float32)
number = 3
"""

KERNEL = """
extern "C" __global__ void ours(const unsigned short* a, unsigned short* x) { x[threadIdx.x] = a[threadIdx.x]; }
extern "C" __global__ void other(unsigned short* x) { *x = 0; }
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "ours_of_today.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ours_of_today", raising=False)
    return "ours_of_today"


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("ours.cu:boundary:324:256", ("ours.cu", "boundary", (324, 1, 1), (256, 1, 1), 0)),
        ("a/b c.cu:k_1:8,2,1:32,4:4096", ("a/b c.cu", "k_1", (8, 2, 1), (32, 4, 1), 4096)),
        ("/x/y.cu:_k:1,2,3:1,2,3:0", ("/x/y.cu", "_k", (1, 2, 3), (1, 2, 3), 0)),
        ("c:/x.cu:k:1:1", ("c:/x.cu", "k", (1, 1, 1), (1, 1, 1), 0)),
    ],
)
def test_a_kernel_is_a_file_with_symbol_and_launch(text, kernel):
    found = parse(text)
    assert isinstance(found, ExternalKernel)
    assert (str(found.path), found.symbol, found.grid, found.block, found.shared_bytes) == kernel


def test_a_function_is_a_module_and_a_name():
    assert parse("ours.kernels.hc:boundary") == ("ours.kernels.hc", "boundary")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ours",
        "ours:",
        ":boundary",
        "ours:a:b",
        "ours.cu",
        "ours.cu:boundary",  # not the function `boundary` of a module `ours.cu`
        "ours.cu:boundary:324",
        "ours.cu:boundary:0:256",
        "ours.cu:boundary:324:256,0",
        "ours.cu:boundary:1,2,3,4:256",
        "ours.cu:boundary:-1:256",
        "ours.cu:boundary:324:256:",
        "ours.cu:2nd:324:256",
        "ours.cu:boundary:324:256:much",
        "ours:a-b",
    ],
)
def test_anything_else_is_a_sentence(text):
    with pytest.raises(ExternalUnusable) as raised:
        parse(text)
    assert str(raised.value) == (
        f'"{text}" names neither a function (module:function) nor a kernel (file.cu:symbol:GRID:BLOCK[:SHARED], '
        f"e.g. ours.cu:my_kernel:324:256)"
    )


def test_a_function_takes_the_inputs_and_gives_the_outputs(module):
    x, total = load(f"{module}:both", SIGNATURE, fake("sm_90"))(INPUTS)
    assert x.tolist() == [[3.0] * 3] * 2
    assert total.tolist() == [9.0, 9.0]


def test_a_single_tensor_is_one_output(module):
    alone = Signature(SIGNATURE.inputs, SIGNATURE.outputs[:1])
    (x,) = load(f"{module}:one", alone, fake("sm_90"))(INPUTS)
    assert x.tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize(
    ("name", "gives"),
    [
        ("one", "torch.float16 of shape (2, 3)"),
        ("narrow", "torch.float16 of shape (2, 3), torch.float16 of shape (2,)"),
        ("flat", "torch.float16 of shape (6,), torch.float32 of shape (2,)"),
        ("nothing", "<class 'NoneType'> of shape ()"),
    ],
)
def test_outputs_that_the_op_has_not_are_refused(module, name, gives):
    call = load(f"{module}:{name}", SIGNATURE, fake("sm_90"))
    with pytest.raises(ExternalUnusable) as raised:
        call(INPUTS)
    assert str(raised.value) == (
        f"{module}:{name} gives {gives}; the op's outputs are torch.float16 of shape (2, 3), "
        f"torch.float32 of shape (2,)"
    )


def test_an_input_given_back_is_refused(module):
    """It would be poisoned, or changed from replay to replay, for everybody."""
    call = load(f"{module}:in_place", SIGNATURE, fake("sm_90"))
    with pytest.raises(ExternalUnusable, match=f"^{module}:in_place gives an input back, .*; copy it$"):
        call(INPUTS)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("absent", "can't be imported: module 'ours_of_today' has no attribute 'absent'"),
        ("number", "is a int, which can't be called; name a function"),
    ],
)
def test_a_function_that_is_not_there(module, name, sentence):
    with pytest.raises(ExternalUnusable, match=f"^{module}:{name} {sentence}$"):
        load(f"{module}:{name}", SIGNATURE, fake("sm_90"))


def test_a_module_that_is_not_there():
    with pytest.raises(ExternalUnusable, match=r"^nobody_has_this:f can't be imported: No module named"):
        load("nobody_has_this:f", SIGNATURE, fake("sm_90"))


def kernel_at(path):
    found = parse(f"{path}:ours:1:32")
    assert isinstance(found, ExternalKernel)
    return found


def test_a_file_is_read(tmp_path):
    (tmp_path / "ours.cu").write_text(KERNEL)
    assert source_of(kernel_at(tmp_path / "ours.cu")) == KERNEL


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "ours.cu"
    if content:
        path.write_bytes(content)
    with pytest.raises(ExternalUnusable, match=r"ours\.cu can't be read: "):
        source_of(kernel_at(path))


@pytest.fixture
def _cache(cubin_cache, monkeypatch):
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))


@pytest.mark.usefixtures("_cache")
def test_a_kernel_compiles_without_a_gpu():
    artifact = compiled(KERNEL, "ours.cu", "ours", "sm_90")
    assert artifact.data[:4] == b"\x7fELF"
    assert set(artifact.kernels) == {"ours", "other"}


@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (KERNEL, r'ours\.cu has no extern "C" kernel f; it has other, ours: name one of them'),
        ("__device__ int f;", r"ours\.cu doesn't compile for sm_90: .*names no kernel.*"),
        (
            "__global__ void f() { oops }",
            r"ours\.cu doesn't compile for sm_90: .*ours\.cu\(1\): error.*oops.*",
        ),
        ("__global__ void f() {}", r'ours\.cu has no extern "C" kernel f; it has _Z1fv: name one of them'),
    ],
    ids=["other kernels", "none", "an error", "mangled"],
)
def test_a_file_without_the_kernel(source, sentence):
    with pytest.raises(ExternalUnusable) as raised:
        compiled(source, "ours.cu", "f", "sm_90")
    assert re.fullmatch(f"(?s){sentence}", str(raised.value))
