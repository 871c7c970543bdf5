"""Whatever stands at whatever key: a spec or sentences, never another exception."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernwright.specs import SpecError, find_workspace
from kernwright.specs.errors import KeyPath
from kernwright.specs.reader import check_document
from kernwright.specs.toml import Document

OPTIONS = {"ctas": 1, "threads": 320, "load_bytes": 2, "rows_per_cta": 10}
EVERYTHING: dict[str, Any] = {
    "family": "hyper_connection",
    "name": "everything",
    "workload": {
        "dtype": ["float16", "bfloat16"],
        "branches": 4,
        "hidden": 2560,
        "low_rank": 320,
        "tokens": {"min": 1, "max": 1},
        "world_size": [2, 4],
        "eps": 1e-6,
        "norm_weight": "shared",
        "tree": {"norm": [1, 320, 8], "down": [4, 320, 8], "up": [1, 32, 2]},
    },
    "candidate": [
        {
            "name": "control",
            "arch": ["sm_70", "sm_90"],
            "route": "replicated",
            "contract": "exact",
            "min_sms": 80,
            "budget": {"registers": 64, "down": {"shared_bytes": 1}},
            "expect": {"LDG": 1, "down": {"LDG.E.128": 4}},
            "early_norm_weight": True,
            **OPTIONS,
            "down": {"threads": 320},
            "up_mix": OPTIONS,
        },
        {
            "name": "fused",
            "arch": ["sm_90a"],
            "route": "fused_up_mix_gather",
            "contract": "tolerance",
            "tolerance": {"atol": 0.1, "rtol": 0.1, "relative_l2": 0.1},
            "parallel_gates": True,
            "ctas": 160,
            "fuse_combine_norm": True,
            "prefetch_chunks": 2,
            "down_split": 2,
        },
        {"name": "gates", "arch": ["sm_70"], "route": "gate_sharded", "up": OPTIONS},
        {"name": "own", "arch": ["sm_70"], "route": "external", "callable": "module:function"},
        {
            "name": "file",
            "arch": ["sm_70"],
            "route": "external",
            "source": "test_hostile.py",
            "symbol": "kernel",
            "grid": [1, 2, 3],
            "block": 32,
            "shared_bytes": 0,
        },
    ],
}
HOSTILE: list[Any] = [
    -1,
    0,
    7,
    2**80,
    0.5,
    float("nan"),
    float("inf"),
    True,
    False,
    "",
    "x",
    "é\0",
    "../x",
    [],
    [3],
    [[]],
    ["sm_70"] * 2000,
    {},
    {"x": 1},
    {"x": {"y": {}}},
    {"every": 3, "kernels": []},
    datetime.date(1979, 5, 27),
]
HERE = Path(__file__).parent / "everything.toml"
WORKSPACE = find_workspace()


def check(data: dict[str, Any]) -> list[str]:
    try:
        check_document(Document("everything.toml", "", data), HERE, WORKSPACE)
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


def paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from paths(part, (*path, key))


def test_everything_is_valid() -> None:
    assert check(EVERYTHING) == []


@pytest.mark.parametrize("section", sorted({path[:2] for path in paths(EVERYTHING)}, key=str), ids=str)
def test_hostile_values_everywhere(section: KeyPath) -> None:
    for path in (path for path in paths(EVERYTHING) if path[:2] == section):
        for value in HOSTILE:
            data = copy.deepcopy(EVERYTHING)
            table: Any = data
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = value
            for line in check(data):
                assert line.isprintable(), (path, value)
                assert line[-1] in ".?", (path, value, line)
                assert len(line) < 600, (path, value, line)


@pytest.mark.parametrize("path", list(paths(EVERYTHING["workload"])), ids=str)
def test_truth_values_are_no_numbers(path: KeyPath) -> None:
    data = copy.deepcopy(EVERYTHING)
    table: Any = data["workload"]
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = True
    assert check(data)
