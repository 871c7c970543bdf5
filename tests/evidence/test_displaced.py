"""Whom a benchmark's record would displace: asked of the ledger and of what the same run has found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernwright.evidence import ledger_commands
from kernwright.ledger import Record, make_record, write_record
from kernwright.ledger.facts import Exactness, Group, RecordedDevice, Timing, Toolkit

CODES = {"replicated": "cd" * 32, "first": "11" * 32, "second": "22" * 32}


def measured(name: str, ratio: float) -> Record:
    # The blocks differ so much that three of them admit nothing and six do.
    ratios = (ratio - 0.04, ratio, ratio + 0.04)
    groups = [
        Group(control=(1.0, 1.0), candidate=(one, one), block=block)
        for block, one in enumerate(ratios)
        for _ in range(3)
    ]
    return make_record(
        measured_at="2026-03-01T12:00:00Z",
        family="hyper_connection",
        spec="small",
        workload="fp16",
        candidate=name,
        control="replicated",
        device=RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200"),
        toolkit=Toolkit(kernwright="0", python="3", torch="2", cupy="14", nvrtc="12.9", driver="570"),
        code_sha256=CODES[name],
        control_code_sha256=CODES["replicated"],
        source_sha256=CODES[name],
        control_source_sha256=CODES["replicated"],
        cubin_sha256="ef" * 32,
        machine_code_sha256=None,
        exactness=Exactness(cases=1, values=1, mismatches=0, against="control replicated"),
        timing=Timing(scope="chain", calls=1, replays=1, groups=tuple(groups)),
    )


def test_a_record_that_was_kept_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the folder and among those of the run."""
    sources = {("small", "fp16", name, "sm_90"): code for name, code in CODES.items()}
    monkeypatch.setattr(ledger_commands, "ledger_folder", lambda _: tmp_path)
    monkeypatch.setattr(ledger_commands, "current_sources", lambda _: sources)
    session: Any = SimpleNamespace(generation=SimpleNamespace(workspace=None, workloads=()))
    workload: Any = SimpleNamespace(spec="small", label="fp16")
    ledger = ledger_commands.ledger_of(session, workload, writes=True)
    first, second = measured("first", 0.92), measured("second", 0.7)
    assert (first.verdict, second.verdict) == ("no_difference", "admitted")
    write_record(tmp_path, first)
    assert ledger.displaced(second, [first]) == ""
    admitted = measured("first", 0.85)
    assert admitted.verdict == "admitted"
    for path in tmp_path.rglob("first*.json"):
        path.unlink()
    assert ledger.displaced(second, [admitted]) == "first"
