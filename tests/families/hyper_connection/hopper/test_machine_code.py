"""What the compiler made of the kernels: the order that the design needs, two CTAs an SM, nothing spilled."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from kernwright.compiler.compile import compile_source
from kernwright.compiler.disassembly import find_nvdisasm
from kernwright.families.hyper_connection.schedules.hopper_layout import RESERVED, SM_SHARED, staging

from .conftest import generated

REGISTERS = 65_536
"""Of an SM."""
CASES = [
    (name, dtype, arch)
    for name in ("one_kernel", "two_kernels")
    for dtype in ("float16", "bfloat16")
    for arch in ("sm_90", "sm_90a")
]


@functools.cache
def compiled(name, dtype, arch):
    entry = next(c for c in generated("qwen38_flash_tp1")[dtype].candidates if c.candidate.name == name)
    return entry, compile_source(entry.sources[-1].text, file_name=f"{name}.cu", arch=arch)


@functools.cache
def instructions(name, kernel, dtype="float16", arch="sm_90"):
    """A kernel's instructions in order, without predicates and operands' encodings."""
    tool = find_nvdisasm()
    if tool is None:
        pytest.skip("there is no nvdisasm here")
    entry, artifact = compiled(name, dtype, arch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.cubin"
        path.write_bytes(artifact.data)
        listing = subprocess.run(
            [str(tool), "-c", str(path)], capture_output=True, text=True, check=True
        ).stdout
    start = listing.index(f".text.{entry.symbols[kernel]}:")
    end = listing.find(".section", start)
    lines = re.sub(r"/\*[0-9a-f]{4,}\*/", "", listing[start:end]).splitlines()
    return [re.sub(r"^\s*(@!?U?P\d\s+)?", "", line).strip() for line in lines if line.strip().endswith(";")]


@pytest.mark.parametrize(("name", "dtype", "arch"), CASES)
def test_two_ctas_fit_an_sm_and_nothing_spills(name, dtype, arch):
    entry, artifact = compiled(name, dtype, arch)
    for kernel, launch in entry.lowering.kernels.items():
        found = artifact.kernels[entry.symbols[kernel]]
        assert (found.spill_bytes, found.stack_bytes) == (0, 0)
        assert 2 * found.registers * launch.block[0] <= REGISTERS
        assert 2 * (found.shared_bytes + launch.shared_bytes + RESERVED) <= SM_SHARED
    if name == "one_kernel":
        launch = entry.lowering.kernels["boundary"]
        memory = artifact.kernels[entry.symbols["boundary"]].shared_bytes + launch.shared_bytes
        assert 3 * (memory + RESERVED) > SM_SHARED  # a third would prefetch too early


@pytest.mark.parametrize(
    ("name", "kernel"), [("one_kernel", "boundary"), ("two_kernels", "combine_norm_down")]
)
def test_down_converts_before_the_wait_and_loads_together_behind_it(name, kernel):
    """24 of a thread's 80 weights; then injection, residual and block are on their way before any is used."""
    code = instructions(name, kernel)
    takes = next(i for i, text in enumerate(code) if text.startswith("LDS.128"))
    wait = next(i for i, text in enumerate(code) if i > takes and text.startswith("ACQBULK"))
    assert sum(text.startswith("HADD2.F32") for text in code[takes:wait]) == 24
    assert sum(text.startswith("LDS.128") for text in code[takes:wait]) == 10
    behind = code[wait + 1 :]
    used = next(i for i, text in enumerate(behind) if text.startswith("HADD2.F32"))
    assert sum(text.startswith("LDG.E.128") for text in behind[:used]) == 2
    assert sum(text.startswith("LDG.E.U16") for text in behind[:used]) == 1


def test_up_converts_before_the_exchange():
    """What the spec says, at least a third of a thread's 80 weights, is between the barrier that ends down and the
    first look at the exchange."""
    entry, _ = compiled("one_kernel", "float16", "sm_90")
    weights = 2 * entry.candidate.up.converted
    assert weights >= 27
    code = instructions("one_kernel", "boundary")
    done = next(i for i, text in enumerate(code) if text.startswith("BAR.ARV"))
    looks = next(i for i, text in enumerate(code) if i > done and re.match(r"LDG?\.E\S*\.STRONG", text))
    assert sum(text.startswith("HADD2.F32") for text in code[done:looks]) == weights


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("one_kernel", "boundary"), ("two_kernels", "combine_norm_down"), ("two_kernels", "up_mix")],
)
def test_dependents_are_launched_at_once(name, kernel):
    code = instructions(name, kernel)
    first = next(i for i, text in enumerate(code) if text.startswith("PREEXIT"))
    assert first < 10
    assert not [
        text for text in code[:first] if re.match(r"LD|ST|BAR|BRA", text) and not text.startswith("LDC")
    ]


@pytest.mark.parametrize(
    ("name", "kernel", "weights"),
    [("one_kernel", "boundary", 6), ("two_kernels", "combine_norm_down", 0), ("two_kernels", "up_mix", 0)],
)
def test_activations_are_read_past_the_first_cache(name, kernel, weights):
    """It may hold what was there before. Other loads are of norm weights, in front of their warp's wait."""
    code = instructions(name, kernel)
    cached = [i for i, text in enumerate(code) if text.startswith("LDG") and "STRONG.GPU" not in text]
    assert len(cached) == weights
    for load in cached:
        assert next(text for text in code[load:] if re.match("ACQBULK|BAR", text)).startswith("ACQBULK")


@pytest.mark.parametrize(("name", "dtype", "arch"), [case for case in CASES if case[2] == "sm_90"])
def test_the_static_memory_is_what_the_layout_counts(name, dtype, arch):
    entry, artifact = compiled(name, dtype, arch)
    down, up = entry.candidate.layouts(generated("qwen38_flash_tp1")[dtype].workload)
    one = name == "one_kernel"
    phases = {"boundary": (down, up)} if one else {"combine_norm_down": (down, None), "up_mix": (None, up)}
    for kernel, layouts in phases.items():
        counted = staging(generated("qwen38_flash_tp1")[dtype].workload, *layouts).static_bytes
        assert counted == artifact.kernels[entry.symbols[kernel]].shared_bytes
