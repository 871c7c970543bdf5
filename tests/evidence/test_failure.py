"""What a failed comparison leaves: inputs that load as plain arrays, and a command that is one."""

from __future__ import annotations

import inspect
import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from kernwright import cli
from kernwright.commands import evidence as cli_evidence
from kernwright.evidence.failure import Failure, leave
from kernwright.evidence.family_evidence import Case

FAILURE = Failure(
    workload="fp16-hc3-h96-n1-r20-tp1",
    candidate="striding",
    arch="sm_70",
    on="emulator",
    problem="Mismatch: x[3] is 0x0001, expected 0x0000.",
    case=Case("boundary", "signed_zero", 2),
)


def test_the_artefact_holds_what_is_needed_to_look_again(tmp_path):
    inputs = {
        "residual": torch.tensor([[1.0, -0.0, float("nan")]], dtype=torch.float16),
        "block": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "wide": torch.tensor([1.0], dtype=torch.float32),
        "turned": torch.arange(4, dtype=torch.float16).view(2, 2).T,  # not contiguous
    }
    place = leave(tmp_path / "failures", FAILURE, inputs)
    assert place == tmp_path / "failures" / "fp16-hc3-h96-n1-r20-tp1-striding-sm_70-1"
    assert sorted(path.name for path in place.iterdir()) == ["failure.json", "inputs.npz"]
    with np.load(place / "inputs.npz", allow_pickle=False) as words:
        assert set(words) == set(inputs)
        assert {name: str(words[name].dtype) for name in words} == {
            **dict.fromkeys(("residual", "block", "turned"), "int16"),
            "wide": "int32",
        }
        for name in ("residual", "turned"):
            assert words[name].shape == inputs[name].shape
            assert np.array_equal(words[name], inputs[name].contiguous().view(torch.int16).numpy())
        assert words["block"].view(np.uint16).tolist() == [0x3FC0, 0xC000]
        assert words["wide"].view(np.float32).tolist() == [1.0]
    assert json.loads((place / "failure.json").read_text()) == {
        "workload": "fp16-hc3-h96-n1-r20-tp1",
        "candidate": "striding",
        "arch": "sm_70",
        "on": "emulator",
        "problem": "Mismatch: x[3] is 0x0001, expected 0x0000.",
        "case": {"kind": "boundary", "inputs": "signed_zero", "seed": 2},
        "command": (
            "kernwright verify fp16-hc3-h96-n1-r20-tp1 --on emulator --candidate striding --arch sm_70 "
            "--case boundary:signed_zero:2"
        ),
    }


def test_nothing_is_overwritten(tmp_path):
    first = leave(tmp_path, FAILURE, {})
    (first / "note.txt").write_text("mine")
    second = leave(tmp_path, replace(FAILURE, problem="another"), {})
    assert (first.name[-2:], second.name[-2:]) == ("-1", "-2")
    assert (first / "note.txt").read_text() == "mine"
    assert json.loads((first / "failure.json").read_text())["problem"] == FAILURE.problem
    assert json.loads((second / "failure.json").read_text())["problem"] == "another"


def test_failures_at_the_same_moment_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda _: leave(tmp_path / "new", FAILURE, {}), range(24)))
    assert len(set(places)) == 24
    assert all((place / "failure.json").is_file() for place in places)


def test_a_name_with_a_slash_stays_in_the_folder(tmp_path):
    place = leave(tmp_path, replace(FAILURE, workload="odd/fp16"), {})
    assert place.parent == tmp_path


@pytest.mark.parametrize("on", ["emulator", "cuda"])
def test_the_command_is_one_of_ours(on, monkeypatch):
    """The real command line reads it as what failed."""
    seen = {}

    def instead(workspace, *said, **options):
        seen["said"] = said
        return []

    monkeypatch.setattr("kernwright.evidence.commands.run_verify", instead)
    words = shlex.split(replace(FAILURE, on=on).command)
    assert words[0] == "kernwright"
    typer.main.get_command(cli.app)(words[1:], standalone_mode=False)
    assert seen["said"] == (
        on,
        ["fp16-hc3-h96-n1-r20-tp1"],
        ["striding"],
        ["sm_70"],
        ["boundary:signed_zero:2"],
    )
    assert list(inspect.signature(cli_evidence.verify).parameters)[:2] == ["workloads", "on"]
