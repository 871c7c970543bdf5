"""Every way a spec file can be broken is a sentence: the files in `broken/` and their exact messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernwright.specs import SpecError, load_spec, load_specs
from kernwright.specs.workspace import Workspace

BROKEN = Path(__file__).parent / "broken"
MESSAGES: dict[str, list[str]] = json.loads((BROKEN / "messages.json").read_text(encoding="utf-8"))
TOO_LARGE = "found a number of more than 18 digits; it must be at most 2147483647."
JARGON = ("Input should", "type=", "validation error", "pydantic", "Extra inputs", "Field required")

FAMILIES = 'the families are "all_reduce", "hyper_connection" and "linear_all_reduce".'


def messages(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [str(problem).replace(str(path), path.name) for problem in caught.value.problems]


def test_every_broken_file_has_its_messages() -> None:
    assert sorted(MESSAGES) == sorted(path.stem for path in BROKEN.glob("*.toml"))
    assert len(MESSAGES) >= 50


@pytest.mark.parametrize("case", sorted(MESSAGES))
def test_messages_are_exact(case: str) -> None:
    found = messages(BROKEN / f"{case}.toml")
    assert found == MESSAGES[case]
    assert not [line for line in found for word in JARGON if word in line]


def test_all_problems_of_a_file_come_at_once_in_its_order() -> None:
    lines = [int(line.split(":")[1]) for line in messages(BROKEN / "several.toml")]
    assert len(lines) == 9
    assert lines == sorted(lines)


def test_ten_megabytes_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(10_000_000)
    assert messages(path) == ["large.toml: the file has 10000000 bytes; a spec has at most 1048576."]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert messages(tmp_path / "absent.toml") == [
        "absent.toml: can't read the file: No such file or directory."
    ]
    (tmp_path / "folder.toml").mkdir()
    assert messages(tmp_path / "folder.toml") == ["folder.toml: this is a folder; a spec is a file."]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 100_000, "deep.toml: lists or tables are nested too deeply."),
        (
            'family = "hyper_connection"\nname = "deep"\nworkload.hidden = ' + "9" * 4000,
            f"deep.toml:3: workload.hidden: {TOO_LARGE}",
        ),
        (
            'family = "hyper_connection"\nname = "deep"\nworkload.hidden = 0x' + "f" * 5000,
            f"deep.toml:3: workload.hidden: {TOO_LARGE}",
        ),
        (
            'family = "hyper_connection"\nname = "deep"\nworkload.hidden = 1979-05-27',
            "deep.toml:3: workload.hidden: found the date or time 1979-05-27; allowed is a whole number.",
        ),
        (
            'family = "hyper_connection"\nname = "deep"\nworkload.tree.up = [1, 32, 0x' + "f" * 5000 + "]",
            "deep.toml:3: workload.tree.up: found [1, 32, a number of more than 18 digits]; "
            "the numbers of a tree are at most 2147483647.",
        ),
        (
            "family = [1, 2]",
            f"deep.toml:1: family: found [1, 2]; {FAMILIES}",
        ),
        (
            '"\\u001b[31m" = 1\nfamily = "x"',
            f'deep.toml:2: family: found "x"; {FAMILIES}',
        ),
    ],
)
def test_hostile_values_are_sentences(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text, encoding="utf-8")
    assert message in messages(path)


def test_control_characters_never_reach_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "escape.toml"
    text = (BROKEN / "arch_typo.toml").read_text(encoding="utf-8").replace("sm90", "\\u001b[31m\\u009b")
    path.write_text(text.replace('"arch_typo"', '"escape"') + '"\\u001b[2J" = 1\n', encoding="utf-8")
    found = "".join(messages(path))
    assert found.isprintable()
    assert 'candidate[0]."\\u001b[2J"' in found


def test_a_folder_reports_all_its_files_and_equal_names(tmp_path: Path) -> None:
    valid = (BROKEN.parents[2] / "specs/library/hc8_h2048_r128_tp1.toml").read_text(encoding="utf-8")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hc8_h2048_r128_tp1.toml").write_text(valid, encoding="utf-8")
    (tmp_path / "c.toml").write_text("", encoding="utf-8")
    (tmp_path / "d.toml").write_text("family = 1", encoding="utf-8")
    workspace = Workspace(tmp_path, tmp_path, None, tmp_path, tmp_path, (), is_library=False)
    with pytest.raises(SpecError) as caught:
        load_specs(workspace)
    assert [(Path(p.file).relative_to(tmp_path).as_posix(), p.key) for p in caught.value.problems] == [
        ("c.toml", ""),
        ("d.toml", "family"),
        ("b/hc8_h2048_r128_tp1.toml", "name"),
    ]


def test_a_linked_source_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.cu").write_text("", encoding="utf-8")
    inside = tmp_path / "specs"
    inside.mkdir()
    (inside / "kernel.cu").symlink_to(tmp_path / "outside.cu")
    text = (BROKEN / "external_absent.toml").read_text(encoding="utf-8")
    (inside / "external_absent.toml").write_text(text, encoding="utf-8")
    assert messages(inside / "external_absent.toml") == [
        'external_absent.toml:14: candidate[0].source: "kernel.cu" is a link that leaves the spec file\'s '
        "folder; put the file itself inside it."
    ]
    (inside / "kernel.cu").unlink()
    (inside / "kernel.cu").write_text("", encoding="utf-8")
    [message] = messages(inside / "external_absent.toml")  # only that nothing of ours is the control
    assert 'candidate[0].route: the control "replicated" is external' in message
