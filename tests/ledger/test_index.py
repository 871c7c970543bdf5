"""A record that is gone is missed: by the index, and where somebody edits that by the history of git."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.paths import CHECKOUT
from kernwright.ledger import (
    Index,
    NoHistory,
    added,
    enter,
    missing,
    read_index,
    read_records,
    unlawful,
    vanished,
    write_record,
)
from kernwright.ledger.index import NAME, parse
from kernwright.ledger.record import rekeyed
from kernwright.ledger.writer import replace_record
from kernwright.specs import SpecError


def problems(folder: Path) -> list[str]:
    return [str(problem) for problem in missing(read_records(folder), read_index(folder))]


@pytest.fixture
def ledger(tmp_path: Path, record: Any) -> Path:
    """Two records, written as commands write them."""
    write_record(tmp_path, record())
    write_record(tmp_path, record(candidate="other"))
    return tmp_path


def test_what_commands_wrote_is_all_there(ledger: Path) -> None:
    assert problems(ledger) == []
    assert len((ledger / NAME).read_text(encoding="utf-8").splitlines()) == 2


def test_a_record_that_is_gone_is_missed(ledger: Path) -> None:
    gone = next(ledger.rglob("other.*.json"))
    gone.unlink()
    (problem,) = problems(ledger)
    assert problem.startswith(f"{gone.relative_to(ledger)}: the index names this record, and it isn't here")


def test_a_record_that_no_command_wrote_or_that_was_replaced(ledger: Path, record: Any) -> None:
    copied = record(candidate="third")
    elsewhere = ledger.with_name("elsewhere")
    path = write_record(elsewhere, copied)
    target = ledger / path.relative_to(elsewhere)
    target.write_bytes(path.read_bytes())
    (problem,) = problems(ledger)
    assert "the index doesn't name this record, so no command wrote it here" in problem
    target.unlink()
    other = record(candidate="other", cubin_sha256="77" * 32)
    next(ledger.rglob("other.*.json")).unlink()
    enter_free = ledger.with_name("free")
    made = write_record(enter_free, other)
    (ledger / made.relative_to(enter_free)).write_bytes(made.read_bytes())
    (problem,) = problems(ledger)
    assert "with another seal: it was replaced" in problem


def test_a_record_in_todays_form_is_entered_again(ledger: Path, record: Any) -> None:
    file = next(file for file in read_records(ledger) if file.record.candidate == "other")
    replace_record(ledger, file.name, rekeyed(file.record, "77" * 32, "cd" * 32, ()))
    assert problems(ledger) == []
    assert len(read_index(ledger).seals[file.name]) == 2


def test_a_record_may_go_with_its_source_alone(ledger: Path) -> None:
    gone = next(ledger.rglob("other.*.json"))
    gone.unlink()
    name = gone.relative_to(ledger).as_posix()
    enter(ledger, [f"removed {'ab' * 32} {name}"])
    index = read_index(ledger)
    assert problems(ledger) == []
    present = {file.name for file in read_records(ledger)}
    assert list(unlawful(index, present, {"cd" * 32})) == []
    (problem,) = unlawful(index, present, {"ab" * 32})
    assert "its source abababababab... is generated today" in str(problem)


def test_a_line_that_nobody_wrote_is_a_sentence() -> None:
    with pytest.raises(SpecError, match=r"index:2: .*this line is neither"):
        parse("ab a.json\nfour words are wrong\n")


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


def test_a_record_gone_with_its_line_is_missed_by_the_history(ledger: Path) -> None:
    git(ledger, "init", "-q")
    git(ledger, "add", ".")
    git(ledger, "commit", "-qm", "records")
    history = added(ledger)
    assert list(vanished(read_index(ledger), history)) == []
    gone = next(ledger.rglob("other.*.json"))
    gone.unlink()
    lines = [
        line
        for line in (ledger / NAME).read_text(encoding="utf-8").splitlines()
        if not line.endswith(gone.name)
    ]
    (ledger / NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
    git(ledger, "commit", "-qam", "a loser less")
    assert problems(ledger) == []
    (problem,) = vanished(read_index(ledger), added(ledger))
    assert "added this record, and neither the folder nor the index names it" in str(problem)


def test_a_record_that_a_merge_has_added_is_in_the_history(ledger: Path, record: Any) -> None:
    git(ledger, "init", "-q", "-b", "one")
    git(ledger, "add", ".")
    git(ledger, "commit", "-qm", "records")
    git(ledger, "checkout", "-qb", "two")
    git(ledger, "commit", "-q", "--allow-empty", "-m", "two")
    git(ledger, "checkout", "-q", "one")
    git(ledger, "commit", "-q", "--allow-empty", "-m", "one")
    git(ledger, "merge", "-q", "--no-commit", "--no-ff", "two")
    late = write_record(ledger, record(candidate="late"))
    git(ledger, "add", ".")
    git(ledger, "commit", "-qm", "a merge that adds a record")
    assert late.relative_to(ledger).as_posix() in added(ledger)


def test_where_there_is_no_history_it_says_why(ledger: Path, tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="git has none of"):
        added(ledger)
    git(ledger, "init", "-q")
    git(ledger, "add", ".")
    git(ledger, "commit", "-qm", "one")
    (ledger / "more").write_text("more", encoding="utf-8")
    git(ledger, "add", ".")
    git(ledger, "commit", "-qm", "two")
    clone = tmp_path.with_name("clone")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{ledger}", str(clone))
    with pytest.raises(NoHistory, match="the clone is shallow"):
        added(clone)
    assert problems(clone) == []


def test_the_librarys_ledger_is_whole() -> None:
    folder = CHECKOUT / "ledger" / "records"
    files, index = read_records(folder), read_index(folder)
    assert list(missing(files, index)) == []
    assert len(index.paths) >= 215
    assert {file.name for file in files} == index.paths - index.removed.keys()


def test_an_empty_folder_has_nothing_to_miss(tmp_path: Path) -> None:
    assert read_index(tmp_path) == Index()
    assert problems(tmp_path) == []
