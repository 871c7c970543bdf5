"""The examples of docs/spec_files.md are read by the reader, and what it says of keys is complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kernwright
import pytest
import tomlkit
from kernwright.generator import plan_generation
from kernwright.specs import SpecFile, find_workspace, load_spec
from kernwright.specs.family import families
from kernwright.specs.schema import json_schema

DOCUMENT = Path(kernwright.__file__).parent / "docs" / "spec_files.md"
if not DOCUMENT.is_file():
    pytest.skip("the documentation isn't part of an installed package", allow_module_level=True)
TEXT = DOCUMENT.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


def load(text: str, root: Path) -> SpecFile:
    """Read an example; one that is only a part of a file is put into the first, which is whole."""
    part = tomllib.loads(text)
    if "family" not in part:
        whole = tomllib.loads(EXAMPLES[0])
        if "workload" in part:
            whole["workload"] = part["workload"]
        whole["candidate"] += part.get("candidate", [])
        text, part = tomlkit.dumps(whole), whole
    (root / "specs" / "kernels").mkdir(parents=True)
    (root / "specs" / "kernels" / "boundary.cu").write_text("// ours\n", encoding="utf-8")
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    path = root / "specs" / f"{part['name']}.toml"
    path.write_text(text, encoding="utf-8")
    return load_spec(path)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_is_read_and_generated(number: int, tmp_path: Path) -> None:
    spec = load(EXAMPLES[number], tmp_path).spec
    generation = plan_generation(find_workspace(tmp_path))
    candidates = [candidate.name for candidate in spec.candidates if candidate.route != "external"]
    for workload in generation.workloads:
        assert [entry.candidate.name for entry in workload.candidates] == candidates


def test_the_defaults_of_trees_are_as_the_document_says(tmp_path: Path) -> None:
    stated, default = (text for text in EXAMPLES if "bfloat16" in text)
    first, second = load(stated, tmp_path / "a").spec, load(default, tmp_path / "b").spec
    assert [(w.fields(), w.trees()) for w in first.workloads()] == [
        (w.fields(), w.trees()) for w in second.workloads()
    ]
    assert len(first.workloads()) == 2


def keys(schema: Any) -> set[str]:
    """Every property that a spec file may have, whatever its place."""
    if isinstance(schema, list):
        return set().union(*map(keys, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    own = set(schema.get("properties", {})) if isinstance(schema.get("properties"), dict) else set()
    return own.union(*(keys(part) for part in schema.values()))


def test_every_key_is_explained() -> None:
    schema = json_schema(families(find_workspace(DOCUMENT.parent))["hyper_connection"])
    known = keys(schema)
    assert len(known) > 40
    quoted = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", TEXT))))
    assert sorted(known - quoted) == []


def test_every_route_and_architecture_is_named() -> None:
    schema = str(json_schema(families(find_workspace(DOCUMENT.parent))["hyper_connection"]))
    for value in {*re.findall(r"'(sm_\w+)'", schema), *re.findall(r"'const': '(\w+)'", schema)}:
        assert f"`{value}`" in TEXT or f'"{value}"' in TEXT, value
