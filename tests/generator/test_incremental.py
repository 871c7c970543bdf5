"""What a change of a spec file changes in the output: exactly what it must."""

from __future__ import annotations

from typing import Any

import pytest

BOOKS = {"dispatch.py", "manifest.json"}
SMALL = "hyper_connection/small"


def sources(lab: Any, candidate: str) -> set[str]:
    return {name for name in lab.files() if name.split("/")[-1].startswith(f"{candidate}.")}


def test_the_output_is_one_file_a_candidate_for_all_architectures(lab: Any) -> None:
    emission = lab.generate()
    expected = {
        f"{SMALL}/{candidate}.{dtype}.cu"
        for candidate in ("control", "strided", "staged")
        for dtype in ("fp16", "bf16")
    }
    expected |= {"hyper_connection/other/control.cu", "__init__.py"} | BOOKS
    assert set(lab.files()) == expected
    schemas = {"all_reduce.json", "hyper_connection.json", "linear_all_reduce.json"}
    assert set(emission.written) == expected | schemas
    assert (lab.root / "schema" / "hyper_connection.json").is_file()


def test_a_second_run_writes_nothing(lab: Any) -> None:
    lab.generate()
    before = lab.age()
    emission = lab.generate()
    assert (emission.written, emission.removed, emission.unchanged) == ((), (), len(before))
    assert lab.times() == before


def test_one_number_of_one_candidate_changes_that_candidates_files_alone(lab: Any) -> None:
    lab.generate()
    lab.age()
    lab.edit("ctas = 2", "ctas = 1")
    emission = lab.generate()
    expected = sources(lab, "strided") | BOOKS
    assert len(expected) == 4
    assert set(emission.written) == lab.touched() == expected
    assert emission.removed == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Three branches", "# A comment that says something else; three branches"),
        ('name = "strided"', '  name="strided"   # spread out\n\n'),
        ("budget = { registers = 128 }", "budget.registers = 1"),
        ("budget = { registers = 128 }", 'expect.up_mix = { "LDG.E" = 1 }'),
        ("down = { ctas = 2 }", "down.ctas = 2"),
        ("[workload]\n", "[workload]\neps = 1e-6\n"),
    ],
    ids=["comment", "white space", "budget", "expectation", "spelling", "default"],
)
def test_what_computes_the_same_changes_nothing(lab: Any, old: str, new: str) -> None:
    lab.generate()
    before = lab.age()
    lab.edit(old, new)
    emission = lab.generate()
    assert emission.written == ()
    assert lab.times() == before


def test_another_architecture_adds_no_file(lab: Any) -> None:
    lab.generate()
    lab.age()
    lab.edit('name = "strided"\narch = ["sm_90"]', 'name = "strided"\narch = ["sm_70", "sm_90"]')
    lab.generate()
    assert lab.touched() == BOOKS


def test_a_changed_workload_touches_no_other_spec(lab: Any) -> None:
    lab.generate()
    lab.age()
    lab.edit("low_rank = 32", "low_rank = 48")
    emission = lab.generate()
    assert {name.split("/")[1] for name in emission.written if "/" in name} == {"small"}
    assert emission.removed == ()


def test_a_removed_candidate_takes_exactly_its_files_along(lab: Any) -> None:
    lab.generate()
    theirs = sources(lab, "strided")
    foreign = lab.generated / SMALL / "notes.txt"
    foreign.write_text("mine", encoding="utf-8")
    before = set(lab.files())
    lab.edit(
        '[[candidate]]\nname = "strided"\narch = ["sm_90"]\nroute = "replicated"\ndown = { ctas = 2 }\n', ""
    )
    lab.age()
    emission = lab.generate()
    assert len(theirs) == 2
    assert set(emission.removed) == theirs
    assert set(lab.files()) == before - theirs
    assert lab.touched() == BOOKS
    assert foreign.read_text(encoding="utf-8") == "mine"


def test_a_removed_spec_leaves_no_empty_folder_but_what_is_not_ours(lab: Any) -> None:
    lab.generate()
    kept = lab.generated / SMALL / "mine" / "notes.txt"
    kept.parent.mkdir()
    kept.write_text("mine", encoding="utf-8")
    lab.spec.unlink()
    lab.generate()
    assert list((lab.generated / SMALL).iterdir()) == [kept.parent]
    assert kept.read_text(encoding="utf-8") == "mine"
    assert (lab.generated / "hyper_connection" / "other").is_dir()


@pytest.mark.parametrize("name", [f"{SMALL}/control.fp16.cu", "dispatch.py", "manifest.json"])
def test_a_hand_edited_or_deleted_file_is_restored(lab: Any, name: str) -> None:
    lab.generate()
    whole = lab.files()
    path = lab.generated / name
    if name != "manifest.json":
        path.write_text(path.read_text(encoding="utf-8") + "// edited\n", encoding="utf-8")
        assert lab.generate().written == (name,)
    path.unlink()
    assert lab.generate().written == (name,)
    assert lab.files() == whole
