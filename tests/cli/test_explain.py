"""`explain`: the reasons, word for word, for a shape that nobody holds tensors of, and for tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernwright.table import FORMAT

FP16 = "fp16-hc4-h2560-n1-r320-tp1"
BF16 = "bf16-hc4-h2560-n1-r320-tp1"
HC8 = "fp16-hc8-h2048-n1-r128-tp1"
CANDIDATES = ["replicated", "wide_rows", "persistent", "early_norm"]
BUILT = "this candidate is built for sm_70, sm_75, sm_80, sm_90"


SPECS = {
    "hc8_h2048_r128_tp1": """\
dtype = "float16"
branches = 8
hidden = 2048
low_rank = 128
norm_weight = "shared"
""",
    "qwen38_flash_tp1": """\
dtype = ["float16", "bfloat16"]
branches = 4
hidden = 2560
low_rank = 320
""",
}
"""The shapes that ship, with candidates of their own: no later spec or record changes a sentence."""

CANDIDATE = """\
[[candidate]]
name = "{name}"
arch = ["sm_70", "sm_75", "sm_80", "sm_90"]
route = "replicated"
"""


@pytest.fixture
def lab(run: Any, tmp_path: Path) -> Path:
    root = tmp_path / "lab"
    (root / "specs").mkdir(parents=True)
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    for spec, workload in SPECS.items():
        text = f'family = "hyper_connection"\nname = "{spec}"\n[workload]\n{workload}'
        names = CANDIDATES if spec.startswith("qwen") else CANDIDATES[:2]
        text += "".join(CANDIDATE.format(name=name) for name in names)
        (root / "specs" / f"{spec}.toml").write_text(text, encoding="utf-8")
    assert run("generate", cwd=root).status == 0
    return root


def explanation(head: str, hc8: list[str], fp16: list[str], bf16: list[str], reference: str) -> str:
    lines = [head]
    lines += [
        f"  {reason[0]} {HC8} {name}: {reason[2:]}" for name, reason in zip(CANDIDATES, hc8, strict=False)
    ]
    lines += [
        f"  {reason[0]} {FP16} {name}: {reason[2:]}" for name, reason in zip(CANDIDATES, fp16, strict=True)
    ]
    lines += [
        f"  {reason[0]} {BF16} {name}: {reason[2:]}" for name, reason in zip(CANDIDATES, bf16, strict=True)
    ]
    return "\n".join([*lines, f"  = reference: {reference}"]) + "\n"


OTHER_BRANCHES = ["- branches is 4; this workload has 8"] * 2
OTHER_DTYPE = ["- dtype is float16; this workload is bfloat16"] * 4
EXACT = f"torch, tree-exact, trees of workload {FP16}"


@pytest.mark.parametrize("arch", ["sm_70", "sm_86", "sm_90"])
def test_a_served_shape_takes_the_unverified_control(run: Any, lab: Path, arch: str) -> None:
    found = run("explain", f"{arch.replace('_', '')}-fp16-hc4-h2560-n1", cwd=lab)
    assert (found.status, found.err) == (0, "")
    unmeasured = f"- no record on {arch} for this source; policy measured dispatches admitted candidates only"
    control = f"+ chosen: the control, unverified: no exactness record on {arch} for this source"
    assert found.out == explanation(
        f"{FP16}, kind boundary, on {arch}, policy measured: replicated (contract exact)",
        OTHER_BRANCHES,
        [control, unmeasured, unmeasured, unmeasured],
        OTHER_DTYPE,
        EXACT,
    )


def test_an_architecture_that_nothing_is_built_for(run: Any, lab: Path) -> None:
    found = run("explain", "sm61-fp16-hc4-h2560-n1", cwd=lab)
    assert found.status == 0
    assert found.out == explanation(
        f"{FP16}, kind boundary, on sm_61, policy measured: reference (contract exact)",
        OTHER_BRANCHES,
        [f"- the device is sm_61; {BUILT}"] * 4,
        OTHER_DTYPE,
        EXACT,
    )


def test_33_tokens(run: Any, lab: Path) -> None:
    expected = explanation(
        "fp16-hc4-h2560-n33-r320-tp1, kind boundary, on sm_90, policy measured: reference (contract tolerance)",
        OTHER_BRANCHES,
        ["- tokens is 33; this candidate serves 1"] * 4,
        OTHER_DTYPE,
        "torch with library GEMMs, because 33 tokens are more than 16",
    )
    assert run("explain", "sm90-fp16-hc4-h2560", "--at", "33", cwd=lab).out == expected
    assert run("explain", "sm90-fp16-hc4-h2560-n33", cwd=lab).out == expected


def test_of_one_shape_the_spec_that_holds_the_value_is_meant(run: Any, lab: Path) -> None:
    """Without a value it is the smallest; a value that no spec holds leaves the choice to who asks."""
    path = lab / "specs" / "many.toml"
    text = (lab / "specs" / "hc8_h2048_r128_tp1.toml").read_text(encoding="utf-8")
    text = text.replace('"hc8_h2048_r128_tp1"', '"many"')
    text = text.replace("branches", "tokens = { min = 2, max = 8 }\nbranches")
    path.write_text(text, encoding="utf-8")
    assert run("generate", cwd=lab).status == 0

    def chosen(*more: str) -> str:
        found = run("explain", "sm90-fp16-hc8", "--json", *more, cwd=lab).json
        (workload,) = {d["workload"] for d in found["decisions"] if d["accepted"]}
        return f"{found['workload']} by {workload}"

    many = "fp16-hc8-h2048-n2to8-r128-tp1"
    assert chosen() == f"{HC8} by {HC8}"
    assert chosen("--at", "4") == f"{many} by {many}"
    found = run("explain", "sm90-fp16-hc8", "--at", "9", cwd=lab)
    assert found.status == 2
    assert found.err.startswith('"sm90-fp16-hc8" fits 2 workloads: ')
    assert (
        run("explain", "sm90-fp16-hc8-n4", cwd=lab).out
        == run("explain", "sm90-fp16-hc8", "--at", "4", cwd=lab).out
    )


def test_bf16_on_an_fp16_spec(run: Any, lab: Path) -> None:
    expected = explanation(
        "bf16-hc8-h2048-n1-r128-tp1, kind boundary, on sm_90, policy measured: reference (contract exact)",
        ["- dtype is bfloat16; this workload is float16"] * 2,
        ["- dtype is bfloat16; this workload is float16"] * 4,
        ["- branches is 8; this workload has 4"] * 4,
        f"torch, tree-exact, trees of workload {HC8}",
    )
    assert run("explain", "sm90-hc8", "--dtype", "bfloat16", cwd=lab).out == expected
    assert run("explain", "sm90-bf16-hc8", cwd=lab).out == expected
    assert (
        run("explain", "hc8_h2048_r128_tp1", "--arch", "sm_90", "--dtype", "bfloat16", cwd=lab).out
        == expected
    )


def test_json(run: Any, lab: Path) -> None:
    found = run("explain", "sm90-fp16-hc4", "--json", cwd=lab).json
    assert list(found) == ["workload", "arch", "chosen", "contract", "decisions"]
    assert {key: found[key] for key in list(found)[:4]} == {
        "workload": FP16,
        "arch": "sm_90",
        "chosen": "replicated",
        "contract": "exact",
    }
    assert [set(decision) for decision in found["decisions"]] == [
        {"workload", "candidate", "accepted", "reason"}
    ] * 10
    assert [d["candidate"] for d in found["decisions"] if d["accepted"]] == ["replicated"]


def test_without_a_target_it_explains_all_of_the_control(run: Any, lab: Path) -> None:
    found = run("explain", "hc8", "--json", cwd=lab).json
    assert [one["arch"] for one in found] == ["sm_70", "sm_75", "sm_80", "sm_90"]
    several = run("explain", "hc8", "--arch", "sm_70", "--arch", "sm_120", "--json", cwd=lab).json
    assert [(one["arch"], one["chosen"]) for one in several] == [
        ("sm_70", "replicated"),
        ("sm_120", "reference"),
    ]


@pytest.mark.parametrize(
    ("policy", "chosen", "reason"),
    [
        (
            "verified",
            "replicated",
            "no exactness record for this source; policy verified dispatches candidates that passed exactness",
        ),
        ("control", "replicated", "policy control dispatches the control only"),
        ("reference", "reference", "policy reference uses torch only"),
    ],
)
def test_policies(run: Any, lab: Path, policy: str, chosen: str, reason: str) -> None:
    found = run("explain", "sm90-hc8", "--policy", policy, "--json", cwd=lab).json
    assert found["chosen"] == chosen
    assert found["decisions"][1]["reason"] == reason


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["sm90-hc8", "--policy", "fastest"],
            "policy is 'fastest'; allowed are measured, verified, control, reference",
        ),
        (
            ["sm90-hc8", "--kind", "sideways"],
            "kind is 'sideways'; allowed are boundary, first, combine, final",
        ),
        (["hc8", "--dtype", "int8"], 'the dtype is "int8"; allowed are float16, bfloat16 and float32'),
        (
            ["hc8", "--arch", "sm90"],
            "the architecture is 'sm90'; it is written like sm_70 or sm_90: correct it",
        ),
        (
            ["sm90-hc4"],
            f'"sm90-hc4" fits 2 workloads: {FP16} (qwen38_flash_tp1) and {BF16} (qwen38_flash_tp1); give the '
            "fields, or --dtype, of exactly one",
        ),
        (
            ["sm90-fp16-hc5"],
            '"sm90-fp16-hc5" fits 0 workloads: none; give the fields, or --dtype, of exactly one',
        ),
        (
            ["hc8_h2048_r128_tp"],
            'there is no spec "hc8_h2048_r128_tp"; there are hc8_h2048_r128_tp1 and qwen38_flash_tp1; did you '
            'mean "hc8_h2048_r128_tp1"?',
        ),
    ],
)
def test_a_bad_question_is_a_sentence(run: Any, lab: Path, arguments: list[str], sentence: str) -> None:
    found = run("explain", *arguments, cwd=lab)
    assert (found.status, found.out, found.err) == (2, "", sentence + "\n")


def test_before_generating_after_another_version_and_after_damage(run: Any, small: Path) -> None:
    path = small / "generated" / "dispatch.py"
    found = run("explain", "hc2", cwd=small)
    assert (found.status, found.err) == (2, f"{path} doesn't exist; run `kernwright generate` first\n")
    run("generate", cwd=small)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"format={FORMAT}", "format=99"), encoding="utf-8")
    found = run("explain", "hc2", cwd=small)
    assert found.status == 2
    assert found.err.startswith(
        f"{path}: the dispatch module has format version 99; this runtime reads version {FORMAT}"
    )
    path.write_text(text[:-10], encoding="utf-8")
    found = run("explain", "hc2", cwd=small)
    assert found.status == 2
    assert found.err.startswith(f"{path} is damaged (")
    run("generate", cwd=small)
    assert run("explain", "hc2", cwd=small).status == 0


def test_the_shipped_module_answers_without_a_workspace(run: Any) -> None:
    found = run("explain", "sm70-fp16-hc4-h2560-n1-tp1", "--json").json
    assert (found["workload"], found["arch"], found["contract"]) == (FP16, "sm_70", "exact")
    assert [d["accepted"] for d in found["decisions"] if d["workload"] == HC8] == [False, False]


def test_a_tensor_that_is_not_contiguous_and_one_that_is_not_aligned() -> None:
    import torch
    from kernwright.generated import dispatch

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float16)

    up = zeros(320, 10240).t()
    arguments = [zeros(1, 10240), zeros(1, 2560), zeros(1, 4), zeros(10240), zeros(336, 10240), up]
    found = dispatch.explain("hyper_connection", *arguments)
    reasons = {d.reason for d in found.decisions if d.workload == FP16}
    assert reasons == {"up_weight is not contiguous: strides (1, 10240) of shape (10240, 320)"}
    assert (found.chosen, found.contract) == ("reference", "exact")

    arguments[5] = zeros(10240, 320)
    arguments[3] = zeros(10241)[1:]
    found = dispatch.explain("hyper_connection", *arguments)
    (reason,) = {d.reason for d in found.decisions if d.workload == FP16}
    assert reason.startswith("norm_weight ")
    assert "16" in reason


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("sm70-hc8", "--arch", "sm_90"),
            "--arch sm_90 and sm_70 in sm70-hc8 contradict each other; give one of them\n",
        ),
        (
            ("hc8", "--arch", "sm_90", "--device", "NVIDIA H200"),
            "--device NVIDIA H200 and --arch sm_90 contradict each other; give one of them\n",
        ),
        (("hc8", "--device", "TPU"), 'the ledger has no records of a device "TPU"; it has none\n'),
    ],
)
def test_places_that_contradict_each_other(
    run: Any, lab: Path, words: tuple[str, ...], sentence: str
) -> None:
    found = run("explain", *words, cwd=lab)
    assert (found.status, found.err) == (2, sentence)
