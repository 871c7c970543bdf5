"""The spec model: what a file may ask for, and the sentence that a mistake gives."""

from __future__ import annotations

import re
from pathlib import Path

import kernwright
import pytest
from kernwright.compiler.compile import compile_source
from kernwright.compiler.resources import over_budget
from kernwright.families.linear_all_reduce.spec import (
    Serial,
    SerialSm,
    SlicedCopyEngine,
    SlicedNccl,
    SlicedSm,
)
from kernwright.families.linear_all_reduce.workload import LinearAllReduceWorkload
from kernwright.generator import plan_generation
from kernwright.specs import CandidateSpec, SpecError, find_workspace, load_spec, schema_files

GOOD = """\
family = "linear_all_reduce"
name = "mine"

[workload]
dtype = ["bfloat16", "float16"]
world_size = [2, 4]
width = 5120
k = [64, 128]
m = { min = 1, max = 4096, cells = [256, 1024] }
channel_rows = 4096

[[candidate]]
name = "serial"
arch = ["sm_90"]
route = "serial"

[[candidate]]
name = "sliced"
arch = ["sm_90"]
route = "sliced_copy_engine"
slices = [3, 3, 1]
align = 128
min_m = 512
"""


EDGES = "cells begin above min (1), in rising order, and not above max (4096)."


def load(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_spec(path, find_workspace()).spec


def complaint(tmp_path, *edits) -> str:
    text = GOOD
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/mine.toml:", "")


def test_a_file_expands_into_cells(tmp_path):
    spec = load(tmp_path, GOOD)
    labels = [workload.label() for workload in spec.workloads()]
    assert len(labels) == len(set(labels)) == 2 * 2 * 2 * 3
    assert labels[:4] == [
        "bf16-w5120-k64-m1to255-tp2",
        "bf16-w5120-k64-m256to1023-tp2",
        "bf16-w5120-k64-m1024to4096-tp2",
        "bf16-w5120-k128-m1to255-tp2",
    ]
    sliced = spec.candidates[1]
    assert [sliced.serves(workload) for workload in spec.workloads()[:3]] == [False, True, True]
    assert sliced.schedule() == {
        "route": "sliced_copy_engine", "gemm": "torch", "ctas": 64, "threads": 512, "slices": [3, 3, 1],
        "align": 128, "min_m": 512, "free_sms": 0, "stages": 2, "additions": "side",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        (
            [('route = "serial"', 'route = "serial"\ncontract = "exact"\n')],
            '16: candidate[0].contract: found "exact"; a library GEMM adds in an unspecified order: drop this '
            "key.",
        ),
        (
            [("cells = [256, 1024]", "cells = [1024, 256]")],
            f"9: workload.m.cells[1]: found 256; {EDGES}",
        ),
        (
            [("cells = [256, 1024]", "cells = [256, 8192]")],
            f"9: workload.m.cells[1]: found 8192; {EDGES}",
        ),
        (
            [("channel_rows = 4096", "channel_rows = 1000")],
            '20: candidate[1].route: route "sliced_copy_engine" needs all rows of a call in memory that peers can '
            "read; channel_rows is 1000, a cell ends at 1023: state workload.channel_rows.",
        ),
        (
            [("min_m = 512", "min_m = 5000")],
            "23: candidate[1].min_m: found 5000, but M ends at 4096; lower it.",
        ),
        (
            [('route = "serial"', 'route = "serial_sm"\nctas = 8')],
            'the first candidate is the plain path, route = "serial": it runs wherever nothing was measured.',
        ),
        (
            [("width = 5120", 'width = 5128\nquantisation = "fp8_per_token"')],
            "7: workload.width: found 5128; an FP8 GEMM takes multiples of 16 alone.",
        ),
        (
            [("width = 5120", 'width = 5120\nquantisation = "fp8_per_token"')],
            'found "torch", but quantisation is "fp8_per_token"; that takes "scaled_mm".',
        ),
        (
            [("width = 5120", 'width = 5120\nnonfinite = "clean"')],
            'found "clean", but nothing is quantised; drop it, or state a quantisation.',
        ),
        ([("slices = [3, 3, 1]", "slices = 65")], "slices"),
        (
            [("align = 128", "align = 128\nthreads = 100")],
            "found 100; a CTA has whole warps, so take a multiple of 32.",
        ),
        (
            [("align = 128", "align = 128\nword_bytes = 16")],
            "word_bytes",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(tmp_path, edits, said):
    assert said in complaint(tmp_path, *edits)


def test_an_option_of_another_route_names_the_routes_that_have_it(tmp_path):
    found = complaint(tmp_path, ('route = "serial"', 'route = "serial"\nstages = 2'))
    assert "sliced_copy_engine" in found


def test_the_schema_is_exported():
    workspace = find_workspace()
    text = (workspace.schema / "linear_all_reduce.json").read_text(encoding="utf-8")
    assert text == schema_files(workspace)["linear_all_reduce.json"]


def test_the_library_compiles_within_its_budgets():
    """One cell of each width stands for all; a meeting takes no more than a warp beside a full SM finds room for."""
    compiled = {}
    for workload in plan_generation(find_workspace()).workloads:
        if workload.family.name != "linear_all_reduce" or "m8192" not in workload.workload.label():
            continue
        for made in workload.candidates:
            (source,) = made.sources
            if not made.symbols:
                assert "__global__" not in source.text
                continue
            artifact = compile_source(source.text, file_name=source.path, arch=source.arch)
            for kernel, symbol in made.symbols.items():
                used = artifact.kernels[symbol]
                assert not over_budget({kernel: used}, made.candidate.budget_for(kernel))
                compiled[made.candidate.name, kernel] = used
    assert {(used.spill_bytes, used.stack_bytes, used.shared_bytes) for used in compiled.values()} == {
        (0, 0, 0),
        (0, 0, 8),  # the decision of a CTA on its ticket, and the epoch before
    }
    assert max(used.registers for (_, kernel), used in compiled.items() if kernel == "meet") <= 32
    assert {kernel for _, kernel in compiled} == {"reduce", "meet", "add", "close"}


def test_a_candidate_without_a_kernel_has_no_text_and_a_digest_of_its_own():
    library = plan_generation(find_workspace())
    (entry,) = [w for w in library.workloads if w.workload.label() == "bf16-w5120-k4096-m8192to16384-tp2"]
    made = {c.candidate.name: c for c in entry.candidates}
    sources = [made[name].sources[0] for name in ("serial", "nccl_4")]
    assert [(source.path, source.text) for source in sources] == [("", "")] * 2
    assert len({source.code for source in sources}) == 2
    assert made["nccl_4"].lowering.channel == made["copies_4"].lowering.channel


def test_the_documents_example_is_generated(generate, tmp_path):
    document = Path(kernwright.__file__).parent / "docs" / "linear_all_reduce.md"
    if not document.is_file():
        pytest.skip("the documentation isn't part of an installed package")
    (example,) = re.findall(r"```toml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "my_layers.toml"
    path.write_text(example, encoding="utf-8")
    entries = generate(path)
    assert len(entries) == 10  # two K, five cells of M
    assert [c.candidate.name for c in entries[0].candidates] == ["serial"]
    assert [c.candidate.name for c in entries[-1].candidates] == ["serial", "copies", "sm_8"]


def test_the_document_names_every_key_and_option():
    document = Path(kernwright.__file__).parent / "docs" / "linear_all_reduce.md"
    if not document.is_file():
        pytest.skip("the documentation isn't part of an installed package")
    text = document.read_text(encoding="utf-8")
    names = {field.alias or name for name, field in LinearAllReduceWorkload.model_fields.items()}
    for route in (Serial, SerialSm, SlicedNccl, SlicedSm, SlicedCopyEngine):
        names |= set(route.model_fields) - set(CandidateSpec.model_fields)
        assert f"`{route.model_fields['route'].annotation.__args__[0]}`" in text
    assert {name for name in names if f"`{name}`" not in text} == set()
