"""The library's sharded and several-token candidates: budgets on every architecture, and the real shapes' bits."""

from __future__ import annotations

import pytest
from kernwright.compiler.compile import compile_source
from kernwright.compiler.disassembly import instruction_counts
from kernwright.compiler.resources import over_budget
from kernwright.emulator import fuzz
from kernwright.evidence.emulated import emulated
from kernwright.evidence.family_evidence import Case
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.generated.dispatch import DISPATCH, TABLE
from kernwright.specs import find_workspace

LIBRARY = find_workspace().specs
FOUR = ("fp16-hc4-h2560-n1-r320-tp4", "qwen38_flash_tp4")
TWO = ("fp16-hc4-h2560-n1-r320-tp2", "qwen38_flash_tp2")
EIGHT = ("fp16-hc8-h2048-n1-r128-tp8", "hc8_h2048_r128_tp8")
ROWS = (
    ("fp16-hc4-h2560-n2to16-r320-tp1", "qwen38_flash_n16"),
    ("bf16-hc4-h2560-n2to16-r320-tp1", "qwen38_flash_n16"),
)
REAL = [
    *((FOUR, name) for name in ("fused_up_160", "fused_up_320", "hidden", "gates", "fused_norm")),
    *((TWO, name) for name in ("fused_up_160", "fused_up_320", "hidden", "gates")),
    *((EIGHT, name) for name in ("fused_up_128", "hidden", "gates")),
]


@pytest.fixture(autouse=True)
def _cache(monkeypatch, cubin_cache):
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))


@pytest.mark.parametrize(
    "workload",
    [FOUR, *(pytest.param(other, marks=pytest.mark.long) for other in (TWO, EIGHT, *ROWS))],
    ids=lambda workload: workload[0],
)
def test_kernels_stay_within_their_budgets(generate, workload):
    """No spill and no stack anywhere; the fused launch of four ranks has 32 registers and 64 B of shared memory."""
    entry = generate(LIBRARY / f"{workload[1]}.toml")[workload[0]]
    for candidate in entry.candidates:
        for source in candidate.sources:
            artifact = compile_source(source.text, file_name=source.path, arch=source.arch)
            for kernel, symbol in candidate.symbols.items():
                used = artifact.kernels[symbol]
                budget = candidate.candidate.budget_for(kernel)
                assert not list(over_budget({kernel: used}, budget)), source.path
                assert (used.spill_bytes, used.stack_bytes) == (0, 0), (source.path, kernel)
                if candidate.candidate.name == "fused_up_160" and kernel == "up_mix" and workload is FOUR:
                    assert (used.registers, used.shared_bytes) == (32, 64)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_fused_launch_loads_weights_by_16_bytes(generate, arch):
    entry = generate(LIBRARY / "qwen38_flash_tp4.toml")[FOUR[0]]
    fused = next(c for c in entry.candidates if c.candidate.name == "fused_up_160")
    source = next(s for s in fused.sources if s.arch == arch)
    artifact = compile_source(source.text, file_name=source.path, arch=arch)
    counts = instruction_counts(artifact.data, arch)
    if not isinstance(counts, dict):
        pytest.skip(counts.reason)
    wide = sum(n for name, n in counts[fused.symbols["up_mix"]].items() if name.startswith("LDG.E.128"))
    assert wide == 2  # one for each of a warp's two gates; the fifth step's chunks are left, 4 bytes a lane


def test_one_text_for_all_architectures(generate):
    """But for the head, which says what it is."""
    entry = generate(LIBRARY / "qwen38_flash_tp4.toml")[FOUR[0]]
    fused = next(c for c in entry.candidates if c.candidate.name == "fused_up_160")
    assert len({source.text.partition("\n//\n// A rank")[2] for source in fused.sources}) == 1


@pytest.mark.parametrize(("workload", "name"), [REAL[0]])
def test_a_boundary_of_the_real_shape(library_group, workload, name):
    """160 CTAs of 256 threads on each of four ranks, waiting for each other."""
    made = library_group(*workload)
    made.call(name, seed=1)
    fuzzed = fuzz(made.launches, made.expected, 1)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.long
@pytest.mark.parametrize("generation", [2, 65_535])
@pytest.mark.parametrize(("workload", "name"), REAL)
def test_boundaries_of_the_real_shapes(library_group, workload, name, generation):
    made = library_group(*workload, generation=generation)
    for call, kind in enumerate(("first", "boundary", "final")):
        made.call(name, kind, seed=1 + call)
    fuzzed = fuzz(made.launches, made.expected, 2)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize(
    ("spec", "name", "kind", "ranks"),
    [
        ("qwen38_flash_tp4", "fused_up_160", "boundary", 4),
        ("qwen38_flash_n16", "two_rows", "boundary", 1),
        pytest.param("qwen38_flash_tp2", "gates", "final", 2, marks=pytest.mark.long),
        pytest.param("hc8_h2048_r128_tp8", "hidden", "first", 8, marks=pytest.mark.long),
    ],
)
def test_the_dispatch_table_says_all_that_a_launch_needs(spec, name, kind, ranks):
    """As `kernwright verify --on emulator` makes the launches."""
    work = next(work for work in TABLE.workloads if work.spec == spec)
    candidate = next(c for c in work.candidates if c.name == name)
    made = emulated(
        DISPATCH, EVIDENCE, work, candidate, next(iter(candidate.builds)), Case(kind, "normal", 1)
    )
    assert {buffer.rank for buffer in made.expected} == set(range(ranks))
    fuzzed = fuzz(made.program.launches, made.expected, 1, first=1)
    assert not fuzzed.problems, str(fuzzed)
