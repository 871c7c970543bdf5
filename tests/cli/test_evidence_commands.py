"""`verify`, `fuzz`, `bench` and `ledger`: exit statuses, JSON, and sentences on standard error."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.blocks import in_blocks
from harness.paths import ODD
from kernwright.evidence.session import Session
from kernwright.generator.environment import TEMPLATES
from kernwright.ledger import (
    Exactness,
    Group,
    Record,
    RecordedDevice,
    Timing,
    Toolkit,
    make_record,
    write_record,
)
from kernwright.specs import find_workspace

PLAIN = "fp16-hc2-h40-n1-r7-tp1"
LANES = "fp16-hc3-h96-n1-r20-tp1"
NORMAL = ("--case", "boundary:normal:1")

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture
def odd(tmp_path: Path, run: Any) -> Path:
    """A copy of the odd workspace, generated."""
    root = shutil.copytree(ODD, tmp_path / "odd")
    assert run("generate", cwd=root).status == 0
    return root


@pytest.fixture
def wrong(odd: Path, run: Any) -> Path:
    """The same with templates of its own, which forget to round the gate."""
    own = odd / "templates" / "hyper_connection"
    own.mkdir(parents=True)
    text = (TEMPLATES / "hyper_connection" / "up_mix.cuh.j2").read_text(encoding="utf-8")
    assert "sigmoid(rounded(total))" in text
    (own / "up_mix.cuh.j2").write_text(
        text.replace("sigmoid(rounded(total))", "sigmoid(total)"), encoding="utf-8"
    )
    assert run("generate", cwd=odd).status == 0
    return odd


def test_verify_prints_what_was_found(run: Any, odd: Path) -> None:
    found = run("verify", PLAIN, *NORMAL, "--json", cwd=odd)
    assert (found.status, found.err) == (0, "")
    (row,) = found.json
    assert row.pop("seconds") >= 0
    assert row == {
        "workload": PLAIN,
        "candidate": "replicated",
        "arch": "sm_70",
        "on": "emulator",
        "against": "array oracle",
        "cases": 1,
        "outputs": 80 + 80 + 7 + 2 + 40,
        "mismatches": 0,
        "seeds": [1],
        "cached": row["cached"],
        "ways": ["launches", "calls"],
    }
    again = run("verify", PLAIN, *NORMAL, "--json", cwd=odd)
    assert (again.status, again.json[0]["cached"], again.json[0]["outputs"]) == (0, True, 209)


def test_verify_takes_filters_and_prints_a_table(run: Any, odd: Path) -> None:
    arguments = ("--candidate", "striding", "--arch", "sm_90", "--arch", "sm_80", *NORMAL)
    rows = run("verify", LANES, *arguments, "--json", cwd=odd).json
    assert [(row["candidate"], row["arch"]) for row in rows] == [("striding", "sm_80"), ("striding", "sm_90")]
    table = run("verify", LANES, *arguments, cwd=odd)
    assert table.status == 0
    assert "Verified on emulator" in table.out
    assert table.out.count("striding") == 2
    assert not (odd / "failures").exists()


def test_a_failure_is_status_1_and_its_command_repeats_it(run: Any, wrong: Path) -> None:
    found = run("verify", LANES, "--candidate", "striding", *NORMAL, "--json", cwd=wrong)
    assert found.status == 1
    (row,) = found.json
    assert row["mismatches"] > 0
    assert row["problem"].startswith(
        f"Mismatch: {row['mismatches']} of 96 elements of block_input of rank 0; "
    )
    assert found.err == (
        f"failed: {LANES}, candidate striding, sm_70: {row['problem']}; inputs and the command that repeats it "
        f"are in {row['artefact']}\n"
    )
    failure = json.loads((wrong / row["artefact"] / "failure.json").read_text(encoding="utf-8"))
    command = shlex.split(failure["command"])
    assert command[0] == "kernwright"
    repeated = run(*command[1:], "--json", cwd=wrong)
    assert repeated.status == 1
    assert repeated.json[0]["problem"] == row["problem"]
    assert repeated.json[0]["artefact"] != row["artefact"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--on", "gpu"), 'kernels run on "emulator" or "cuda"; "gpu" was asked for\n'),
        (("--candidate", "wide"), f"nothing of {PLAIN} is left to verify: its candidates are replicated, built for "),
        (("--arch", "sm_61"), f"nothing of {PLAIN} is left to verify: its candidates are replicated, built for "),
        (("--case", "boundary:normal:9"), 'there is no case "boundary:normal:9"; there are boundary:zeros:1, '),
    ],
)  # fmt: skip
def test_words_that_mean_nothing_are_status_2(run: Any, odd: Path, arguments: Any, sentence: str) -> None:
    found = run("verify", PLAIN, *arguments, cwd=odd)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(sentence)


@pytest.mark.parametrize("command", ["verify", "fuzz"])
def test_an_unknown_workload_is_status_2(run: Any, odd: Path, command: str) -> None:
    found = run(command, "fp16-hc7", cwd=odd)
    assert (found.status, found.out) == (2, "")
    assert "fp16-hc7" in found.err


@no_gpu
@pytest.mark.parametrize(
    "arguments", [("verify", "--on", "cuda"), ("bench",), ("bench", "--json", "--peer", "none")]
)
def test_without_a_gpu_the_status_is_3(run: Any, odd: Path, arguments: Any) -> None:
    found = run(*arguments, cwd=odd)
    assert (found.status, found.out) == (3, "")
    assert found.err == "no CUDA GPU here; verify with --on emulator, or run this on a machine with a GPU\n"


@pytest.mark.parametrize("command", [("verify",), ("fuzz", "odd_plain"), ("bench",)])
@pytest.mark.parametrize("change", ["spec", "source"])
def test_what_drifted_is_status_2(run: Any, odd: Path, command: Any, change: str) -> None:
    if change == "spec":
        spec = odd / "specs" / "odd_plain.toml"
        spec.write_text(
            spec.read_text(encoding="utf-8").replace("low_rank = 7", "low_rank = 14"), encoding="utf-8"
        )
    else:
        source = next((odd / "generated").rglob("replicated*.cu"))
        source.write_text(source.read_text(encoding="utf-8") + "// by hand\n", encoding="utf-8")
    found = run(*command, cwd=odd)
    assert (found.status, found.out) == (2, "")
    assert found.err.endswith("run `kernwright generate`\n")


def test_a_workspace_that_was_not_generated_is_status_2(run: Any, small: Path) -> None:
    found = run("verify", cwd=small)
    assert found.status == 2
    assert found.err.endswith("dispatch.py doesn't exist; run `kernwright generate` first\n")


def test_fuzz_prints_what_was_found(run: Any, odd: Path) -> None:
    found = run("fuzz", "odd_plain", "--seeds", "5", "--json", cwd=odd)
    assert (found.status, found.err) == (0, "")
    assert [row | {"seconds": 0} for row in found.json] == [
        {
            "workload": PLAIN,
            "candidate": "replicated",
            "kind": kind,
            "seeds": 5,
            "seconds": 0,
            "schedule": "",
            "problems": [],
        }
        for kind in ("boundary", "first", "combine", "final")
    ]


def test_a_failing_schedule_is_status_1_and_told(run: Any, wrong: Path) -> None:
    arguments = ("fuzz", LANES, "--candidate", "striding", "--seeds", "3", "--first-seed", "4")
    found = run(*arguments, cwd=wrong)
    assert found.status == 1
    assert "failed: striding, boundary, Interleaving(seed=4, policy='adversarial')\n  Mismatch: " in found.err
    rows = run(*arguments, "--json", cwd=wrong).json
    failing = {row["kind"]: row for row in rows if row["problems"]}
    assert failing["boundary"]["schedule"] == "Interleaving(seed=4, policy='adversarial')"
    assert "combine" not in failing


def test_fuzzing_nothing_is_status_2(run: Any, odd: Path) -> None:
    found = run("fuzz", "odd_plain", "--candidate", "wide", "--seeds", "1", "--json", cwd=odd)
    assert (found.status, found.out) == (2, "")
    assert "its candidates are replicated" in found.err


def recorded(odd: Path) -> Record:
    """A record of the candidate `striding` on a GPU of sm_90, in the workspace's ledger."""
    session = Session.open(find_workspace(odd))
    workload = next(entry for entry in session.workloads([]) if entry.label == LANES)
    control, striding = workload.candidates
    record = make_record(
        measured_at="2026-03-01T12:00:00Z",
        family=workload.family,
        spec=workload.spec,
        workload=workload.label,
        candidate=striding.name,
        control=control.name,
        device=RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200"),
        toolkit=Toolkit(kernwright="0", python="3", torch="2", cupy="1", nvrtc="12", driver="570"),
        code_sha256=striding.builds["sm_90"].code,
        control_code_sha256=control.builds["sm_90"].code,
        source_sha256=striding.builds["sm_90"].sha256,
        control_source_sha256=control.builds["sm_90"].sha256,
        cubin_sha256="0" * 64,
        machine_code_sha256=None,
        exactness=Exactness(cases=3, values=100, mismatches=0, against="control replicated"),
        timing=Timing(
            scope="chain",
            calls=96,
            replays=20,
            groups=in_blocks(Group(control=(2.0, 2.0), candidate=(1.5, 1.5))),
        ),
    )
    write_record(odd / "ledger" / "records", record)
    return record


def test_the_ledger_is_shown_and_checked(run: Any, odd: Path) -> None:
    assert run("ledger", "show", "--json", cwd=odd).json == []
    record = recorded(odd)
    (row,) = run("ledger", "show", "--json", cwd=odd).json
    assert (row["candidate"], row["verdict"], row["gain_percent"], row["groups"]) == (
        "striding",
        "admitted",
        25.0,
        "9 of 9",
    )
    (line,) = [line for line in run("ledger", "show", cwd=odd).out.splitlines() if "striding" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        LANES,
        "striding",
        "NVIDIA H200",
        "2.0",
        "1.5",
        "None",
        "9 of 9",
        "25.0",
        "25.00 to 25.00",
        "admitted",
        "admitted, 3 blocks",
    ]
    checked = run("ledger", "check", cwd=odd)
    assert (checked.status, checked.err) == (0, "")
    first, second = checked.out.splitlines()
    assert first == "1 records are consistent, and all 1 of the index are accounted for"
    assert second.startswith("not compared with the history of git: git has none of ")
    assert record.verdict == "admitted"


def test_a_record_that_is_gone_is_status_1(run: Any, odd: Path) -> None:
    record = recorded(odd)
    folder = odd / "ledger" / "records"
    (path,) = folder.rglob("*.json")
    name, text = path.relative_to(folder).as_posix(), path.read_bytes()
    path.unlink()
    found = run("ledger", "check", cwd=odd)
    assert (found.status, found.out) == (1, "")
    assert f"{name}: the index names this record, and it isn't here: records are never deleted" in found.err
    with (folder / "index").open("a", encoding="utf-8") as index:
        index.write(f"removed {record.code_sha256} {name}\n")
    found = run("ledger", "check", cwd=odd)
    assert found.status == 1
    assert (
        f"{name}: the record was removed, and its source {record.code_sha256[:12]}... is generated today"
        in found.err
    )
    with (folder / "index").open("a", encoding="utf-8") as index:
        index.write(f"removed {'0' * 64} {name}\n")
    found = run("ledger", "check", cwd=odd)
    assert found.status == 0
    assert "1 records were removed with their sources, which are generated no more" in found.out
    path.write_bytes(text)
    (folder / "index").unlink()
    assert "the index doesn't name this record" in run("ledger", "check", cwd=odd).err
    assert run("ledger", "index", cwd=odd).out == "1 records were entered\n"
    assert run("ledger", "check", cwd=odd).status == 0


def test_a_record_that_was_replaced_stays_a_fault(run: Any, odd: Path) -> None:
    """`ledger index` enters what no command entered; it doesn't make another record of a known one."""
    recorded(odd)
    index = odd / "ledger" / "records" / "index"
    seal, name = index.read_text(encoding="utf-8").split()
    index.write_text(f"{'0' * len(seal)} {name}\n", encoding="utf-8")
    said = "the index names this record with another seal: it was replaced"
    assert said in run("ledger", "check", cwd=odd).err
    assert run("ledger", "index", cwd=odd).out == "0 records were entered\n"
    assert said in run("ledger", "check", cwd=odd).err


def test_an_edited_record_is_status_1(run: Any, odd: Path) -> None:
    recorded(odd)
    (path,) = (odd / "ledger" / "records").rglob("*.json")
    path.write_text(path.read_text(encoding="utf-8").replace('"admitted"', '"rejected"'), encoding="utf-8")
    found = run("ledger", "check", cwd=odd)
    assert (found.status, found.out) == (1, "")
    assert 'verdict: the record states "rejected", but its samples give "admitted".' in found.err
    assert "sha256: the record is sealed with" in found.err


def test_a_changed_candidate_makes_its_record_stale(run: Any, odd: Path) -> None:
    recorded(odd)
    fresh = run("ledger", "stale", cwd=odd)
    assert (fresh.status, fresh.out) == (0, "no record is stale\n")
    assert run("ledger", "stale", "--json", cwd=odd).json == []
    spec = odd / "specs" / "odd_lanes.toml"
    text = spec.read_text(encoding="utf-8").replace(
        "rows_per_cta = 32, ctas = 2", "rows_per_cta = 32, ctas = 3"
    )
    spec.write_text(text, encoding="utf-8")
    (row,) = run("ledger", "stale", "--json", cwd=odd).json
    assert (row["candidate"], row["workload"], row["verdict"]) == ("striding", LANES, "admitted")
    assert "striding" in run("ledger", "stale", cwd=odd).out
