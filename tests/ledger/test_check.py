"""Tampering is found: whatever is changed in a record, it no longer is what its samples say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernwright.ledger import Record, RecordedPart, RecordFile, check, usable, write_record
from kernwright.ledger.reader import read_record
from kernwright.ledger.record import document as document_of
from kernwright.ledger.record import seal_of
from kernwright.specs import SpecError

EDITED = "It was edited by hand; restore it, or delete it and measure again."


def resealed(document: dict[str, Any]) -> RecordFile:
    """An edit by someone who knows how to compute the seal."""
    record = Record.model_validate(document)
    return RecordFile("a.json", record.model_copy(update={"sha256": seal_of(record)}))


def keys(file: RecordFile) -> list[str]:
    return [problem.key for problem in check([file])]


def test_records_as_they_were_made_are_consistent(file: Any, timing: Any) -> None:
    files = [
        file(),
        file(candidate="slow", timing=timing(1.2)),
        file(candidate="short", timing=timing(groups=3)),
        file(candidate="verified", timing=None),
        file(candidate="replicated"),
    ]
    assert [f.record.verdict for f in files] == [
        "admitted",
        "rejected",
        "invalid",
        "no_difference",
        "no_difference",
    ]
    assert check(files) == []
    assert usable(files) == files


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "verdict",
            "rejected",
            f'a.json: verdict: the record states "rejected", but its samples give "admitted". {EDITED}',
        ),
        (
            "gain",
            0.3,
            f"a.json: gain: the record states 0.3, but its samples give 0.10034982531900005. {EDITED}",
        ),
        (
            "gain",
            None,
            f"a.json: gain: the record states nothing, but its samples give 0.10034982531900005. {EDITED}",
        ),
    ],
)
def test_a_typed_verdict_is_found_although_it_is_sealed(
    record: Any, key: str, value: object, message: str
) -> None:
    file = resealed(record().model_dump(mode="json") | {key: value})
    assert [str(problem) for problem in check([file])] == [message]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, key))
    else:
        yield path


def edited(value: object, key: object) -> object:
    """Another value that the model takes too."""
    special: dict[object, object] = {
        "measured_at": "2026-03-01T12:00:01Z",
        "arch": "sm_70",
        "scope": "kernel",
        "verdict": "invalid",
    }
    if key in special:
        return special[key]
    if isinstance(value, str):
        return "f" * 64 if len(value) == 64 else value + "x"
    if isinstance(value, float):
        return value * 0.999
    return 17 if value is None or value == 0 else value + 1  # type: ignore[operator]


@pytest.mark.parametrize("part", [None, RecordedPart(field="payload_bytes", low=4, high=65536, at=512)])
def test_every_single_edit_breaks_the_seal(record: Any, part: RecordedPart | None) -> None:
    original = document_of(record(part=part))
    del original["rekeyed"]
    changed = 0
    for path in leaves(original):
        if path == ("schema_version",):
            continue  # another version has other fields
        document = json.loads(json.dumps(original))
        here = document
        for part in path[:-1]:
            here = here[part]
        absent = ("first", "problem", "part", "closeness", "head_to_head")
        if path[-1] in absent or (part and path[-1] == "schema_version"):
            continue  # texts and tables that are absent here; a part has no older version
        here[path[-1]] = edited(here[path[-1]], path[-1])
        found = keys(RecordFile("a.json", Record.model_validate(document)))
        assert "sha256" in found, path
        changed += 1
    assert changed > 60


def test_edited_samples_are_found_by_what_they_give(record: Any) -> None:
    document = record().model_dump(mode="json")
    for group in document["timing"]["groups"]:
        group["candidate"] = [1.0, 1.0]
    assert keys(resealed(document)) == ["gain", "interval", "reason"]


def test_mismatches_edited_away_are_found(record: Any) -> None:
    from kernwright.ledger import Exactness

    wrong = record(
        exactness=Exactness(cases=16, values=9, mismatches=3, against="control replicated", first="x[0]")
    )
    document = wrong.model_dump(mode="json")
    document["exactness"] |= {"mismatches": 0, "first": None}
    assert keys(resealed(document)) == ["verdict", "gain", "interval", "reason"]


def test_a_damaged_record_can_be_read_but_not_used(write: Any) -> None:
    file = read_record(write(verdict="rejected"))
    assert file.record.verdict == "rejected"
    with pytest.raises(SpecError) as caught:
        usable([file])
    assert [problem.key for problem in caught.value.problems] == ["verdict", "sha256"]
    assert str(caught.value.problems[1]).startswith("a.json: sha256: the record is sealed with ")


def test_a_copy_is_found_and_a_second_measurement_is_none(tmp_path: Path, record: Any, file: Any) -> None:
    path = write_record(tmp_path, record())
    copy = path.with_name("copy.json")
    copy.write_bytes(path.read_bytes())
    files = [read_record(copy), read_record(path)]
    assert [str(problem) for problem in check(files)] == [
        f"{path.name}: this is the measurement of copy.json again; delete one of the two."
    ]
    assert check([file(), file(measured_at="2026-03-01T12:00:01Z")]) == []
