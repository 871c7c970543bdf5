"""Records to test with: made as a bench makes them, with one thing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import (
    Exactness,
    Group,
    Record,
    RecordedDevice,
    RecordFile,
    Timing,
    Toolkit,
    make_record,
)
from kernwright.ledger.names import record_name
from kernwright.ledger.record import CODE_FIELDS, document, judgement_of, seal_of

H200 = RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200")
Make = Callable[..., Record]


def timing(ratio: float = 0.9, groups: int | tuple[Group, ...] = 9, **changes: Any) -> Timing:
    """Groups of a control that takes 2 ms and a candidate with `ratio` of it, a little apart, in three blocks."""
    samples = (
        groups
        if isinstance(groups, tuple)
        else tuple(
            Group(control=(2.0, 2.002), candidate=(2 * ratio, 2 * ratio + 0.0001 * number), block=number % 3)
            for number in range(groups)
        )
    )
    return Timing(**({"scope": "chain", "calls": 96, "replays": 20, "groups": samples} | changes))


def record(**changes: Any) -> Record:
    facts: dict[str, Any] = {
        "measured_at": "2026-03-01T12:00:00Z",
        "family": "hyper_connection",
        "spec": "qwen38_flash_tp1",
        "workload": "fp16-hc4-h2560-n1-r320-tp1",
        "candidate": "wide_rows",
        "control": "replicated",
        "device": H200,
        "toolkit": Toolkit(
            kernwright="0.1", python="3.11", torch="2.13", cupy="14", nvrtc="12.9", driver="570"
        ),
        "code_sha256": "ab" * 32,
        "control_code_sha256": "cd" * 32,
        "source_sha256": "ab" * 32,
        "control_source_sha256": "cd" * 32,
        "cubin_sha256": "ef" * 32,
        "machine_code_sha256": "01" * 32,
        "exactness": Exactness(cases=16, values=400_000, mismatches=0, against="control replicated"),
        "timing": timing(),
    }
    return make_record(**(facts | changes))


def file(**changes: Any) -> RecordFile:
    made = record(**changes)
    return RecordFile(record_name(made), made)


def older(version: int, **changes: Any) -> dict[str, Any]:
    """The JSON of a record as a version before 6 wrote it, by the rule of one block, sealed."""
    facts = document(record(**changes))
    facts |= {"schema_version": version, "rule": {"threshold": 0.01, "confidence": 0.95, "min_groups": 7}}
    del facts["head_to_head"]
    if facts["timing"] is not None:
        for group in facts["timing"]["groups"]:
            del group["block"]
    if version < 5:
        facts = {name: value for name, value in facts.items() if name not in CODE_FIELDS}
        facts["identity"] = "01" * 32
        if facts["timing"] is not None:
            facts["timing"]["peers"] = facts["timing"].pop("baselines")
    if version < 4:
        del facts["exactness"]["closeness"]
    if version < 3:
        del facts["part"]
    facts |= asdict(judgement_of(Record.model_validate(facts)))
    return facts | {"sha256": seal_of(Record.model_validate(facts))}


def old_file(version: int = 5, **changes: Any) -> RecordFile:
    """A record of one block."""
    made = Record.model_validate(older(version, **changes))
    return RecordFile(record_name(made), made)


@pytest.fixture(name="old_file")
def _old_file() -> Callable[..., RecordFile]:
    return old_file


@pytest.fixture(name="older")
def _older() -> Callable[..., dict[str, Any]]:
    return older


@pytest.fixture(name="record")
def _record() -> Make:
    return record


@pytest.fixture(name="file")
def _file() -> Callable[..., RecordFile]:
    return file


@pytest.fixture(name="timing")
def _timing() -> Callable[..., Timing]:
    return timing


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a record's JSON with top-level keys replaced, as an edit by hand would."""

    def written(name: str = "a.json", **changes: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document(record()) | changes), encoding="utf-8")
        return path

    return written
