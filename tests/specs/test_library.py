"""The shipped spec files, and the identity of what they ask for."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from kernwright.families.hyper_connection.spec import SPEC, HyperConnectionWorkload, Replicated
from kernwright.specs import SpecFile, TreeSpec, find_workspace, load_specs

ALL = load_specs(find_workspace())
FILES = {file.spec.name: file for file in ALL if file.spec.family == "hyper_connection"}
QWEN = FILES["qwen38_flash_tp1"].spec


def raw(file: SpecFile) -> dict[str, Any]:
    return tomllib.loads(file.path.read_text(encoding="utf-8"))


def test_the_librarys_shapes() -> None:
    labels = {file.spec.name: [w.label() for w in file.spec.workloads()] for file in ALL}
    assert labels["hc8_h2048_r128_tp1"] == ["fp16-hc8-h2048-n1-r128-tp1"]
    assert labels["qwen38_flash_tp1"] == ["fp16-hc4-h2560-n1-r320-tp1", "bf16-hc4-h2560-n1-r320-tp1"]
    cases = [f"{dtype}-tp{ranks}" for dtype in ("fp16", "bf16", "fp32") for ranks in (2, 4, 8)]
    for name, payload in (
        ("all_reduce_7168", "w7168-b4to29360128"),
        ("all_reduce_3584_7168", "w10752-b4to2752512"),
    ):
        assert sorted(labels[name]) == sorted(case.replace("-", f"-{payload}-") for case in cases)


def test_lists_expand_into_concrete_workloads() -> None:
    with pytest.raises(ValueError, match=r"lists 2 dtypes; take a concrete one from Spec.workloads\(\)"):
        QWEN.workload.label()
    half, brain = QWEN.workloads()
    assert half.fields() == {
        "dtype": "float16",
        "branches": 4,
        "hidden": 2560,
        "low_rank": 320,
        "tokens": (1, 1),
        "world_size": 1,
        "eps": 1e-6,
        "norm_weight": "per_branch",
    }
    assert brain.fields() == half.fields() | {"dtype": "bfloat16"}


def test_the_shipped_trees_are_the_defaults() -> None:
    for file in FILES.values():
        data = raw(file)
        stated = file.spec.workloads()[0].trees()
        del data["workload"]["tree"]
        assert SPEC.model_validate(data).workloads()[0].trees() == stated
    assert QWEN.workloads()[0].trees() == {
        "norm": TreeSpec(1, 320, 8),
        "down": TreeSpec(4, 320, 8),
        "up": TreeSpec(1, 32, 2),
    }


def test_stored_down_rows_are_padded_to_sixteen() -> None:
    workload = QWEN.workloads()[0]
    assert isinstance(workload, HyperConnectionWorkload)
    assert (workload.down_rows, workload.padded_down_rows) == (324, 336)


def test_candidates_differ_in_geometry() -> None:
    workload = QWEN.workloads()[0]
    assert isinstance(workload, HyperConnectionWorkload)
    geometry = {}
    for candidate in QWEN.candidates:
        if not isinstance(candidate, Replicated):
            continue
        down, up = (candidate.tiling(workload, kernel) for kernel in ("down", "up_mix"))
        geometry[candidate.name] = (down.ctas, down.rows_per_cta, up.ctas, up.rows_per_cta, up.load_bytes)
    assert geometry == {
        "replicated": (324, 1, 320, 8, 4),
        "wide_rows": (162, 2, 160, 16, 16),
        "persistent": (132, 1, 264, 8, 4),
        "early_norm": (324, 1, 320, 8, 4),
        "small_ctas": (324, 1, 640, 4, 4),
        "staged_up": (324, 1, 320, 8, 16),
    }
    schedules = [str(candidate.schedule()) for candidate in QWEN.candidates]
    assert len(set(schedules)) == len(schedules)


def test_flat_and_tabled_options_are_one_schedule() -> None:
    data = raw(FILES["qwen38_flash_tp1"])
    data["candidate"] = [data["candidate"][0] | {"load_bytes": 2}]
    flat = SPEC.model_validate(data).control
    data["candidate"] = [
        data["candidate"][0] | {"load_bytes": 8, "down": {"load_bytes": 2}, "up_mix": {"load_bytes": 2}}
    ]
    assert SPEC.model_validate(data).control.schedule() == flat.schedule()


def test_the_final_mixer_shrinks_a_grid_that_suits_down() -> None:
    data = raw(FILES["qwen38_flash_tp1"])
    data["candidate"] = [data["candidate"][0] | {"down": {"ctas": 324}}]
    spec = SPEC.model_validate(data)
    control, workload = spec.control, spec.workloads()[0]
    assert isinstance(control, Replicated)
    assert isinstance(workload, HyperConnectionWorkload)
    assert [control.tiling(workload, kernel).ctas for kernel in ("down", "down_final")] == [324, 320]


def test_a_kernels_own_limits_win() -> None:
    data = raw(FILES["qwen38_flash_tp1"])
    budget = {"registers": 64, "spill_bytes": 0, "down": {"registers": 40}}
    expect = {"LDG": 1, "up_mix": {"LDG": 2, "LDG.E.128": 4}}
    data["candidate"] = [data["candidate"][0] | {"budget": budget, "expect": expect}]
    control = SPEC.model_validate(data).control
    assert control.budget_for("down") == {"registers": 40, "spill_bytes": 0}
    assert control.budget_for("norm") == {"registers": 64, "spill_bytes": 0}
    assert control.expect_for("up_mix") == {"LDG": 2, "LDG.E.128": 4}
    assert control.expect_for("down") == {"LDG": 1}
