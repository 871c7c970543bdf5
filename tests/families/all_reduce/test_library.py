"""The spec files for decode payloads: they compile within their budgets, for every architecture that they list."""

from __future__ import annotations

import re
from pathlib import Path

import kernwright
import pytest
from harness.payload_routes import route_for
from kernwright.compiler.compile import compile_source
from kernwright.compiler.resources import over_budget
from kernwright.specs import find_workspace, schema_files

SPECS = sorted(find_workspace().specs.glob("all_reduce_*.toml"))
COMPILED = {("bfloat16", 8), ("float32", 4), ("float16", 2)}


@pytest.fixture(autouse=True)
def _cache(monkeypatch, cubin_cache):
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_dtype_and_world_size_is_generated(generate, path):
    spec, entries = generate(path)
    assert len(entries) == 9
    assert sum(len(c.sources) for entry in entries for c in entry.candidates) == 9 * 4 * 2
    for entry in entries:
        assert route_for(spec, entry.workload, 4) == "tagged_words"
        largest = route_for(spec, entry.workload, entry.workload.capacity)
        assert largest == ("one_stage" if entry.workload.world_size == 2 else "two_stage")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_kernels_stay_within_their_budgets(generate, path):
    """No spill, no stack: the ranks' pointers stay parameters, whatever indexes them."""
    for entry in generate(path)[1]:
        if (entry.workload.dtype, entry.workload.world_size) not in COMPILED:
            continue
        for candidate in entry.candidates:
            for source in candidate.sources:
                artifact = compile_source(source.text, file_name=source.path, arch=source.arch)
                for kernel, symbol in candidate.symbols.items():
                    budget = candidate.candidate.budget_for(kernel)
                    assert not list(over_budget({kernel: artifact.kernels[symbol]}, budget)), source.path


def test_a_text_reads_by_itself(generate):
    _, entries = generate(SPECS[1])
    text = entries[0].candidates[0].sources[-1].text
    head = text.splitlines()[:4]
    assert head[0] == "// all_reduce all_reduce_7168, candidate one_stage (route one_stage)"
    assert head[2] == "// schedule: ctas = 64, threads = 512, word_bytes = 16, loads_in_flight = 4"
    assert "trees" not in text
    assert "{{" not in text
    assert "{%" not in text


def test_the_documents_example_is_generated(generate, tmp_path):
    document = Path(kernwright.__file__).parent / "docs" / "all_reduce.md"
    if not document.is_file():
        pytest.skip("the documentation isn't part of an installed package")
    (example,) = re.findall(r"```toml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "joint.toml"
    path.write_text(example, encoding="utf-8")
    spec, entries = generate(path)
    assert [c.candidate.name for c in entries[0].candidates] == ["one", "tagged", "two"]
    workload = entries[-1].workload  # float32, world size 8
    assert route_for(spec, workload, 40_000, "NVIDIA H200") == "one_stage"
    assert route_for(spec, workload, 40_000, "NVIDIA A100-SXM4-80GB") == "tagged_words"


def test_the_schema_is_exported():
    workspace = find_workspace()
    text = (workspace.schema / "all_reduce.json").read_text(encoding="utf-8")
    assert text == schema_files(workspace)["all_reduce.json"]
    for path in SPECS:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert (path.parent / first.split()[1]).resolve() == workspace.schema / "all_reduce.json"
