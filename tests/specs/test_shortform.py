"""Short forms select a workload and a target; where they don't, the sentence lists what there is."""

from __future__ import annotations

import pytest
from kernwright.specs import ShortFormError, find_workspace, load_specs, matching, parse, select

ALL = load_specs(find_workspace())
SPECS = [file for file in ALL if file.spec.name in ("hc8_h2048_r128_tp1", "qwen38_flash_tp1")]


def test_parse() -> None:
    found = parse("sm70-fp16-hc4-h2560-n1", SPECS)
    assert (found.arch, found.spec) == ("sm_70", None)
    assert found.fields == {"dtype": "float16", "branches": 4, "hidden": 2560, "tokens": 1}
    found = parse("BF16-n1to16-r320-tp4-sm_90a", SPECS)
    assert found.arch == "sm_90a"
    assert found.fields == {"dtype": "bfloat16", "tokens": (1, 16), "low_rank": 320, "world_size": 4}


def test_select_by_short_form_label_and_name() -> None:
    found = select("sm70-fp16-hc4-h2560-n1", SPECS)
    assert (found.arch, found.spec.name) == ("sm_70", "qwen38_flash_tp1")
    assert [workload.label() for workload in found.workloads] == ["fp16-hc4-h2560-n1-r320-tp1"]
    assert select("hc8", SPECS).spec.name == "hc8_h2048_r128_tp1"
    by_name = select("qwen38_flash_tp1", SPECS)
    assert [w.dtype for w in by_name.workloads] == ["float16", "bfloat16"]
    assert by_name.arch is None
    for file in ALL:
        for workload in file.spec.workloads():
            assert select(workload.label(), ALL).workloads == (workload,)


def test_ignored_fields_need_not_match() -> None:
    short = parse("bf16-hc8-n33", SPECS)
    assert matching(short, SPECS) == []
    assert [m.spec.name for m in matching(short, SPECS, ignoring=("dtype", "tokens"))] == [
        "hc8_h2048_r128_tp1"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hc4",
            '"hc4" matches 2 workloads: fp16-hc4-h2560-n1-r320-tp1 (qwen38_flash_tp1) and '
            "bf16-hc4-h2560-n1-r320-tp1 (qwen38_flash_tp1); give more fields.",
        ),
        (
            "fp16-hc4-h2048-n1-r320-tp1",
            'no workload matches "fp16-hc4-h2048-n1-r320-tp1"; there are fp16-hc8-h2048-n1-r128-tp1, '
            "fp16-hc4-h2560-n1-r320-tp1 and bf16-hc4-h2560-n1-r320-tp1; "
            'did you mean "fp16-hc4-h2560-n1-r320-tp1"?',
        ),
        (
            "qwen38_flash_tp2",
            'there is no spec "qwen38_flash_tp2"; there are hc8_h2048_r128_tp1 and qwen38_flash_tp1; '
            'did you mean "qwen38_flash_tp1"?',
        ),
        (
            "hc4-hc8",
            '"hc8" in "hc4-hc8" can\'t be read; a short form is one target (sm70), one dtype (fp16, bf16 or '
            "fp32) and numbers after the prefixes hc (branches), h (hidden), n (tokens), r (low_rank) and tp "
            "(world_size), each once.",
        ),
    ],
)
def test_what_selects_nothing_is_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ShortFormError) as caught:
        select(text, SPECS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text", ["", "-", "sm70-sm80-hc8", "fp16-bf16", "hc", "hc-4", "x9", "hc99999999999", "fp8"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ShortFormError):
        select(text, SPECS)


def test_of_many_workloads_a_sentence_lists_a_few() -> None:
    with pytest.raises(ShortFormError) as caught:
        select("tp4-fp32-w1", ALL)
    many = sum(len(file.spec.workloads()) for file in ALL)
    names = [file.spec.name for file in ALL]
    assert str(caught.value).startswith(
        f'no workload matches "tp4-fp32-w1"; there are {many} workloads, of the spec'
    )
    assert all(name in str(caught.value) for name in names)
    wide = sum("w7168" in work.label() for file in ALL for work in file.spec.workloads())
    with pytest.raises(ShortFormError) as caught:
        select("w7168", ALL)
    assert str(caught.value).startswith(
        f'"w7168" matches {wide} workloads: fp16-w7168-b4to29360128-tp2 (all_reduce_7168), '
    )
    assert str(caught.value).endswith(f" and {wide - 6} more; give more fields.")
