"""`ledger rekey`: a record keeps counting where its code is proven to be today's, and is stale where it isn't."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from kernwright.compiler.toolchain import toolchain
from kernwright.evidence import rekey as rekeying
from kernwright.evidence.proof import FolderInvalid
from kernwright.evidence.rekey import Rekeying, rekey
from kernwright.generator.environment import TEMPLATES
from kernwright.generator.records import current_sources
from kernwright.ledger import check, read_records, stale

from .test_records import ledger, made, table
from .test_records import put as put_record

SIGMOID = "return divide(1.0f, 1.0f + exponential(-x)); }"
SAME = "return divide(1.0f, (1.0f + (exponential(-x)))); }"


def put(lab: Any, **changes: Any) -> Path:
    """A record of today's code whose text is the one that is generated."""
    digests = {
        (entry.spec, entry.workload.label(), c.candidate.name): c.sources[-1].sha256
        for entry in lab.plan.workloads
        for c in entry.candidates
    }
    place = ("small", "fp16-hc3-h64-n1-r32-tp1")
    version = ".".join(map(str, toolchain().version))
    record = made(lab)
    facts = {
        "source_sha256": digests[(*place, "strided")],
        "control_source_sha256": digests[(*place, "control")],
        "toolkit": record.toolkit.model_copy(update={"nvrtc": version}),
    }
    return put_record(lab, **(facts | changes))


def edit(lab: Any, new: str, old: str = SIGMOID) -> None:
    """Change a line of a prelude that every candidate contains."""
    path = lab.root / "templates" / "prelude" / "arithmetic.cuh.j2"
    text = (TEMPLATES / "prelude" / "arithmetic.cuh.j2").read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def then(lab: Any, tmp_path: Path) -> Path:
    """The generated folder as it was when the record was measured."""
    lab.generate()
    put(lab)
    folder = tmp_path / "then"
    shutil.copytree(lab.generated, folder)
    return folder


def outcome(lab: Any, folder: Path) -> Rekeying:
    (found,) = rekey(lab.plan, folder)
    files = read_records(ledger(lab))
    assert check(files) == []
    assert bool(stale(files, current_sources(lab.plan.workloads))) == (found.outcome == "stale")
    return found


def test_a_changed_comment_needs_no_proof(lab: Any, then: Path) -> None:
    edit(lab, f"{SIGMOID}  // as documented")
    assert outcome(lab, then).outcome == "current"


def test_equal_machine_code_is_a_proof(lab: Any, then: Path) -> None:
    edit(lab, SAME)
    assert table(lab) == [("strided", "invalid", None, True)]
    (before,) = read_records(ledger(lab))
    assert outcome(lab, then).outcome == "machine_code"
    assert table(lab) == [("strided", "admitted", 0.125, True)]
    (after,) = read_records(ledger(lab))
    assert (after.name, after.record.timing) == (before.name, before.record.timing)
    assert after.record.source_sha256 == before.record.source_sha256
    assert [(p.of, p.proof, p.old_sha256) for p in after.record.rekeyed] == [
        ("candidate", "machine_code", before.record.code_sha256),
        ("control", "machine_code", before.record.control_code_sha256),
    ]
    assert outcome(lab, then).outcome == "current"


def test_other_machine_code_is_none(lab: Any, then: Path) -> None:
    before = read_records(ledger(lab))
    edit(lab, "return divide(1.0f, 2.0f + exponential(-x)); }")
    found = outcome(lab, then)
    assert (found.outcome, found.reason) == (
        "stale",
        "the tokens of strided changed, and so did its machine code for sm_90",
    )
    assert read_records(ledger(lab)) == before


def test_a_changed_launch_is_none_whatever_the_machine_code(lab: Any, then: Path) -> None:
    lab.edit("down = { ctas = 2 }", "down = { ctas = 1 }")
    assert (
        outcome(lab, then).reason == "strided changed in more than its tokens: in launches, contract or flags"
    )


def test_a_changed_control_costs_the_time_alone(lab: Any, then: Path) -> None:
    lab.edit("budget = { registers = 128 }", "down = { load_bytes = 4 }")
    found = outcome(lab, then)
    assert found.outcome == "stale"
    assert found.reason.startswith("the tokens of control changed")
    assert table(lab) == [("strided", "invalid", None, True)]


def test_another_compiler_proves_nothing(lab: Any, then: Path) -> None:
    (path,) = ledger(lab).rglob("*.json")
    path.unlink()
    put(lab, toolkit=made(lab).toolkit)
    edit(lab, SAME)
    assert "the record names NVRTC 1.0, installed is" in outcome(lab, then).reason


def test_a_folder_that_isnt_one_is_a_sentence(lab: Any, then: Path, tmp_path: Path) -> None:
    (then / "manifest.json").write_text("{}", encoding="utf-8")
    for folder in (then, tmp_path / "absent"):
        with pytest.raises(FolderInvalid, match="lists no sources"):
            rekey(lab.plan, folder)


def test_an_edited_text_of_then_proves_nothing(lab: Any, then: Path) -> None:
    for path in then.rglob("*.cu"):
        path.write_text(path.read_text(encoding="utf-8") + "// more\n", encoding="utf-8")
    edit(lab, SAME)
    assert outcome(lab, then).reason.endswith("isn't the text that its manifest lists")


def test_an_interrupt_loses_nothing(lab: Any, then: Path, monkeypatch: Any) -> None:
    edit(lab, SAME)
    before = [file.record.timing for file in read_records(ledger(lab))]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rekeying, "replace_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rekey(lab.plan, then)
    assert [file.record.timing for file in read_records(ledger(lab))] == before
