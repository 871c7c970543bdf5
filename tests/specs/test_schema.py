"""The JSON Schema accepts what the reader accepts and catches what an editor should."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from kernwright.specs import families, find_workspace, schema_files
from kernwright.specs.schema import json_schema

WORKSPACE = find_workspace()
SCHEMA = json_schema(families(WORKSPACE)["hyper_connection"])
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LIBRARY = sorted(WORKSPACE.specs.glob("*.toml"))
BROKEN = Path(__file__).parent / "broken"


def load(path: Path) -> Any:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_the_schema_is_a_schema_and_always_the_same() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    first, second = schema_files(WORKSPACE), schema_files(WORKSPACE)
    assert first == second
    assert json.loads(first["hyper_connection.json"]) == SCHEMA


def test_the_exported_schema_is_current() -> None:
    for name, text in schema_files(WORKSPACE).items():
        assert (WORKSPACE.schema / name).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_library_files_validate(path: Path) -> None:
    data = load(path)
    family = data["family"]
    jsonschema.Draft202012Validator(json_schema(families(WORKSPACE)[family])).validate(data)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"#:schema ../../schema/{family}.json"
    assert (path.parent / first.split()[1]).resolve() == WORKSPACE.schema / f"{family}.json"


def test_every_spelling_of_a_key_validates() -> None:
    data = load(WORKSPACE.specs / "hc8_h2048_r128_tp1.toml")
    data["workload"] |= {"tokens": {"min": 1, "max": 16}, "world_size": [1, 2], "dtype": ["float16"]}
    data["candidate"][0] |= {
        "budget": {"registers": 64, "down": {"registers": 40}},
        "expect": {"LDG": 1, "up_mix": {"LDG.E.128": 4}},
    }
    data["candidate"].append(
        {
            "name": "own",
            "arch": ["sm_70"],
            "route": "external",
            "source": "k.cu",
            "symbol": "k",
            "grid": 8,
            "block": [8],
        }
    )
    VALIDATOR.validate(data)


@pytest.mark.parametrize(
    "case",
    [
        "unknown_key",
        "wrong_type",
        "float_for_integer",
        "tree_shape",
        "arch_typo",
        "option_of_another_route",
        "dotted_name",
        "no_candidates",
        "bad_dtype",
        "negative_eps",
        "load_bytes_three",
        "unknown_family",
        "unknown_route",
        "missing_keys",
        "budget_unknown_resource",
        "world_size_three",
        "tokens_zero",
        "workload_not_a_table",
    ],
)
def test_editors_see_what_one_key_can_tell(case: str) -> None:
    data = load(BROKEN / f"{case}.toml")
    if case == "float_for_integer":
        data["workload"]["low_rank"] = 320.5  # JSON Schema counts 320.0 among the integers
    assert not VALIDATOR.is_valid(data)


def test_nothing_in_the_schema_is_unsayable_in_toml() -> None:
    assert '"null"' not in json.dumps(SCHEMA)
    assert ": null" not in json.dumps(SCHEMA)
