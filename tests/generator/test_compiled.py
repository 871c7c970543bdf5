"""Every shipped source compiles for every architecture that it lists, as its spec file promises."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jinja2 import Environment
from kernwright.compiler.compile import compile_source
from kernwright.generator import builds, compile_builds, plan_generation
from kernwright.generator.environment import TEMPLATES, make_environment
from kernwright.specs import families, find_workspace

ARCHS = ("sm_70", "sm_75", "sm_80", "sm_90", "sm_90a", "sm_120")
MACROS = {"nesting.cuh.j2", "used.cuh.j2"}
"""They shape the text of other templates, and have none of their own."""
PRELUDE = sorted({path.name for path in (TEMPLATES / "prelude").glob("*.j2")} - MACROS)

CALLS = {
    "arithmetic.cuh.j2": "out[i] = sigmoid(square_root(divide(exponential(out[i]), power_of_two(3))));",
    "async_copy.cuh.j2": """
    __shared__ __align__(16) unsigned char copied[512];
    copy_ahead(copied + 16 * i, half + 8 * i);
    end_copy_group();
    wait_for_copy_groups<0>();
    flag[i] = copied[16 * i] + shared_address(copied);""",
    "atomics.cuh.j2": """
    flag[0] = load_acquire_system(flag) + load_tagged_system(flag + 5);
    store_release_system(flag + 2, fetch_add_device(flag + 3, 5));
    store_tagged_system(flag + 6, 7);
    store_tagged_device(word, load_tagged_device(word + 1));
    flag[8] = load_relaxed_device(flag + 9);
    word[2] = fetch_or_acquire_device(word + 3, 4) + fetch_or_relaxed_device(word + 4, 4);
    replace_release_device(word + 5, 1, 2);
    replace_relaxed_device(word + 6, 1, 2);""",
    "bulk.cuh.j2": """
    __shared__ arrival_t arrival;
    __shared__ __align__(16) float copied[64];
    initialise_arrival(&arrival, 2);
    fence_initialised_arrivals();
    announce(&arrival, 256);
    copy_to_shared(copied, out, 256, &arrival);
    arrive(&arrival);
    wait_for_arrival(&arrival);
    out[i] = copied[63 - i];""",
    "near.cuh.j2": "out[i] = near_sigmoid(out[i]);",
    "warpgroup.cuh.j2": """
    extern __shared__ unsigned char shared[];
    unsigned char* const tiles = aligned_tiles(shared);
    tiles[chunk_at(i, 1)] = 1;
    float sums[4] = {};
    Products products;
    products.begin();
    products.multiply_add(sums, tiles, tiles + 64 * ROW_BYTES);
    products.commit();
    products.wait<0>();
    out[i] = sums[0] + sums[3];""",
    "kept.cuh.j2": "float kept[2] = {out[0] + 1.0f, out[1] * 3.0f}; keep(kept, flag); out[2] = kept[0] + kept[1];",
    "tensor_core.cuh.j2": """
    float sum[4] = {out[0], out[1], out[2], out[3]};
    const Rows rows = load_rows(half + 8 * i, 16);
    multiply_add(sum, rows, load_ahead(half + 512));
    out[i] = sum[0] + sum[1] + sum[2] + sum[3];""",
    "named_barrier.cuh.j2": "if (i < 32) arrive_at(1, 64); else meet_at(1, 64);",
    "programmatic.cuh.j2": """
    launch_dependents();
    wait_for_previous_grid();
    store<16>(half, load_fresh<16, 8>(half + 8));
    out[i] = fresh(out + i + 1);""",
    "seeded.cuh.j2": "out[i] = seeded_sigmoid(out[i]) + seeded_inverse_rms<2560>(out[i + 1], 1e-6f);",
    "shared_flag.cuh.j2": "__shared__ unsigned int f; store_relaxed_block(&f, 1); flag[i] = load_relaxed_block(&f);",
    "tagged.cuh.j2": """
    const Tagged value = load_words(word);
    if (complete(value, 3)) out[i] = payload(value, 0) + payload(poisoned_words(), 0);
    word[8] = tagged(out[i + 1], tag(value, 0));""",
    "warp_rows.cuh.j2": """
    float sum[3] = {out[i], out[i + 32], out[i + 64]};
    warp_sums<3>(sum, i);
    out[row_of(i)] = from_lane(sum[0], 5);""",
    "e4m3.cuh.j2": "word[i] = to_e4m3_pair(out[i], out[i + 1]) + to_e4m3(out[i + 2]);",
    "memory.cuh.j2": "store<4>(half + i, load<8, 4>(half)); store<16>(half, load_weights<16, 8>(half + 8));",
    "partner.cuh.j2": "out[i] = of_partner(out[i], 3);",
    "reduction.cuh.j2": "out[i] = butterfly_sum<32>(out[i]) + butterfly_sum<4>(out[i]) + ordered_sum<3>(out);",
    "launch.cuh.j2": "word[i] = grid_id();",
    "time.cuh.j2": "word[i] = nanoseconds();",
    "storage.cuh.j2": "half[i] = to_storage(rounded(to_float(half[i])));",
}
"""Code that uses everything that a prelude offers."""

NEEDS = {
    "async_copy.cuh.j2": ("storage.cuh.j2",),
    "near.cuh.j2": ("arithmetic.cuh.j2",),
    "warpgroup.cuh.j2": ("storage.cuh.j2", "async_copy.cuh.j2"),
    "memory.cuh.j2": ("storage.cuh.j2",),
    "programmatic.cuh.j2": ("storage.cuh.j2", "memory.cuh.j2"),
    "tensor_core.cuh.j2": ("storage.cuh.j2",),
    "seeded.cuh.j2": ("arithmetic.cuh.j2",),
    "storage.cuh.j2": (),
    "tagged.cuh.j2": ("atomics.cuh.j2",),
}
"""Preludes that others build on."""
FIRST = {
    "async_copy.cuh.j2": "sm_90",
    "bulk.cuh.j2": "sm_90",
    "programmatic.cuh.j2": "sm_90",
    "tensor_core.cuh.j2": "sm_80",
    "warpgroup.cuh.j2": "sm_90a",
}
"""The first architecture with the instructions of a prelude, where it isn't the first of all."""
LAST = {"warpgroup.cuh.j2": "sm_90a"}
"""The last one, where it isn't the last of all."""

KERNEL = """
extern "C" __global__ void probe(float* out, storage_t* half, unsigned int* flag, unsigned long long* word) {{
  const int i = threadIdx.x;
  {call}
}}
"""


def test_the_library_compiles_within_its_budgets_without_spills_or_stack() -> None:
    selected = builds(plan_generation(find_workspace(TEMPLATES)))
    report = compile_builds(selected, workers=1)
    assert report.failures == ()
    assert len(report.kernels) == sum(len(build.candidate.symbols) for build in selected)
    assert {(kernel.stack_bytes, kernel.spill_bytes) for kernel in report.kernels} == {(0, 0)}
    assert {kernel.arch for kernel in report.kernels} >= {"sm_70", "sm_75", "sm_80", "sm_90"}
    wide = [
        kernel for kernel in report.kernels if (kernel.candidate, kernel.kernel) == ("wide_rows", "up_mix")
    ]
    # 16 rows x branches x R x 2 bytes pass through shared memory.
    assert {kernel.shared_bytes for kernel in wide} == {16 * 4 * 320 * 2, 16 * 8 * 128 * 2}


@pytest.fixture(scope="module")
def environment() -> Environment:
    workspace = find_workspace(TEMPLATES)
    return make_environment(workspace, families(workspace))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", PRELUDE)
def test_a_prelude_compiles_by_itself(environment: Environment, name: str, arch: str) -> None:
    if ARCHS.index(arch) < ARCHS.index(FIRST.get(name, ARCHS[0])):
        pytest.skip(f"{name} is for {FIRST[name]} and later")
    if ARCHS.index(arch) > ARCHS.index(LAST.get(name, ARCHS[-1])):
        pytest.skip(f"{name} is for {LAST[name]} at most")
    context = {
        "dtype": "bfloat16" if arch == "sm_80" else "float16",
        "l1_bypass": arch == "sm_90",
        "evict_first": arch == "sm_90",
        "exchange_bytes": 16 if arch == "sm_90" else 8,
        "product_columns": [8],
    }
    names = (*NEEDS.get(name, ()), name)
    parts = [environment.get_template(f"prelude/{part}").render(context) for part in names]
    if "storage.cuh.j2" not in names:
        parts.append("using storage_t = unsigned short;\n")
    source = "".join(parts) + KERNEL.format(call=CALLS[name])
    artifact = compile_source(source, file_name=f"probe_{name}.cu", arch=arch)
    assert artifact.kernels["probe"].spill_bytes == 0
    assert artifact.kernels["probe"].stack_bytes == 0


def test_flags_are_ordered_as_their_names_say(environment: Environment) -> None:
    source = (
        environment.get_template("prelude/atomics.cuh.j2").render()
        + "using storage_t = unsigned short;\n"
        + KERNEL.format(call=CALLS["atomics.cuh.j2"])
    )
    ptx = compile_source(source, file_name="order.cu", arch="sm_70", kind="ptx").data.decode()
    for order in (
        r"ld\.acquire\.sys",
        r"st\.release\.sys",
        r"atom\.add\.acq_rel\.gpu",
        r"atom\.or\.acquire\.gpu\.\S*64",
        r"atom\.or\.relaxed\.gpu\.\S*64",
        r"atom\.cas\.release\.gpu\.\S*64",
        r"atom\.cas\.relaxed\.gpu\.\S*64",
        r"ld\.relaxed\.sys",
        r"st\.relaxed\.sys",
        r"ld\.relaxed\.gpu\.\S*64",
        r"st\.relaxed\.gpu\.\S*64",
    ):
        assert re.search(order, ptx), order


@pytest.mark.parametrize(
    ("tagged_type", "width"),
    [("unsigned int", "b?u?32"), ("unsigned long long", "b?u?64"), ("uint4", r"v2\.b?u?64|b128")],
)
def test_a_tagged_word_is_moved_whole(environment: Environment, tagged_type: str, width: str) -> None:
    """Tag and data of a word travel in one access, 8 bytes of a word of 16 at least."""
    source = environment.get_template("prelude/atomics.cuh.j2").render(tagged_type=tagged_type) + (
        f'extern "C" __global__ void probe({tagged_type}* word) {{ '
        "store_tagged_system(word, load_tagged_system(word + 1)); }"
    )
    ptx = compile_source(source, file_name="tagged.cu", arch="sm_90", kind="ptx").data.decode()
    for access in ("ld", "st"):
        assert re.search(rf"{access}\.relaxed\.sys\.\S*({width})", ptx), ptx[-1500:]


ODD = {
    "idle_lanes": """
        workload = { dtype = "bfloat16", branches = 3, hidden = 72, low_rank = 24, norm_weight = "shared",
                     tree = { norm = [1, 8, 2], down = [3, 64, 2], up = [2, 4, 3] } }
        candidate = [{ name = "c", arch = ["sm_75"], route = "replicated", rows_per_cta = 8, threads = 32 }]""",
    "many_groups": """
        workload = { dtype = "float16", branches = 5, hidden = 320, low_rank = 64,
                     tree = { norm = [2, 96, 1], down = [5, 160, 2], up = [2, 64, 1] } }
        candidate = [{ name = "c", arch = ["sm_75"], route = "replicated", threads = 32, rows_per_cta = 2,
                       up_mix = { ctas = 7, load_bytes = 16 }, early_norm_weight = true, l1_bypass = true }]""",
    "one_lane": """
        workload = { dtype = "float16", branches = 2, hidden = 8, low_rank = 2,
                     tree = { norm = [1, 1, 8], down = [1, 2, 1], up = [1, 1, 1] } }
        candidate = [{ name = "c", arch = ["sm_75"], route = "replicated", load_bytes = 2 }]""",
    "odd_chunk": """
        workload = { dtype = "float16", branches = 7, hidden = 45, low_rank = 9,
                     tree = { norm = [3, 16, 5], down = [1, 32, 7], up = [3, 2, 3] } }
        candidate = [{ name = "c", arch = ["sm_75"], route = "replicated", down = { ctas = 1 } }]""",
}
"""Shapes with tails in every place: chunks, rows, tiles, groups."""


@pytest.mark.parametrize("name", ODD)
def test_odd_trees_and_tails_compile(lab: Any, name: str) -> None:
    lab.spec.with_name("other.toml").unlink()
    lab.spec.unlink()
    text = f'family = "hyper_connection"\nname = "{name}"\n' + re.sub(r",\s+", ", ", ODD[name])
    (lab.root / "specs" / f"{name}.toml").write_text(text, encoding="utf-8")
    report = compile_builds(builds(lab.plan), workers=1)
    assert report.failures == ()
    assert len(report.kernels) == 6
    assert sum(kernel.stack_bytes + kernel.spill_bytes for kernel in report.kernels) == 0
