"""Writing back: one value changes, everything else stays byte for byte, and nothing invalid is written."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.specs import SpecError, edit, load_spec

SAMPLE = Path(__file__).parent / "edited" / "qwen38_flash_tp1.toml"


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    return Path(shutil.copy(SAMPLE, tmp_path))


def changed_lines(path: Path) -> list[tuple[str, str]]:
    before, after = SAMPLE.read_text(encoding="utf-8"), path.read_text(encoding="utf-8")
    pairs = list(zip(before.splitlines(True), after.splitlines(True), strict=True))
    return [(old.strip(), new.strip()) for old, new in pairs if old != new]


def test_a_value_in_an_inline_table(spec_path: Path) -> None:
    file = edit(spec_path, ("candidate", "persistent", "down", "ctas"), 108)
    assert changed_lines(spec_path) == [("down = { ctas = 132 }", "down = { ctas = 108 }")]
    assert file.spec.candidates[2].schedule()["down"]["ctas"] == 108
    assert load_spec(spec_path) == file


def test_a_value_before_a_comment(spec_path: Path) -> None:
    edit(spec_path, ("workload", "hidden"), 2560)
    assert changed_lines(spec_path) == []
    edit(spec_path, ("candidate", "wide_rows", "up_mix", "load_bytes"), 8)
    comment = "# wider than the tree's chunk: staged through shared memory"
    assert changed_lines(spec_path) == [
        (
            f"up_mix = {{ rows_per_cta = 16, load_bytes = 16 }}   {comment}",
            f"up_mix = {{ rows_per_cta = 16, load_bytes = 8 }}   {comment}",
        )
    ]


def test_a_new_key_and_table_go_to_their_candidate(spec_path: Path) -> None:
    edit(spec_path, ("candidate", "wide_rows", "l1_bypass"), True)
    edit(spec_path, ("candidate", "early_norm", "down", "threads"), 160)
    edit(spec_path, ("candidate", "replicated", "arch"), ["sm_70", "sm_75", "sm_80", "sm_90", "sm_120"])
    spec = load_spec(spec_path).spec
    assert [c.schedule()["l1_bypass"] for c in spec.candidates] == [False, True, False, False]
    assert spec.candidates[3].schedule()["down"]["threads"] == 160
    assert spec.control.arch[-1] == "sm_120"
    comments = [line for line in SAMPLE.read_text(encoding="utf-8").splitlines() if "#" in line]
    kept = spec_path.read_text(encoding="utf-8").splitlines()
    assert [line for line in kept if "#" in line] == comments


def test_none_removes_a_key(spec_path: Path) -> None:
    edit(spec_path, ("candidate", "early_norm", "early_norm_weight"), None)
    text = spec_path.read_text(encoding="utf-8")
    assert text == SAMPLE.read_text(encoding="utf-8").replace("early_norm_weight = true\n", "")
    with pytest.raises(SpecError, match="there is no such key to remove"):
        edit(spec_path, ("candidate", "early_norm", "early_norm_weight"), None)


@pytest.mark.parametrize(
    ("key_path", "value", "message"),
    [
        (
            ("candidate", "wide_row", "ctas"),
            3,
            'candidate.wide_row: there is no entry "wide_row"; there are replicated, wide_rows, '
            'persistent and early_norm; did you mean "wide_rows"?',
        ),
        (
            ("candidate", "persistent", "down", "ctas"),
            400,
            ":38: candidate[2].down.ctas: down: ctas is 400; 324 rows in tiles of 1 keep 1 to 324 CTAs busy.",
        ),
        (("workload", "hiddn"), 3, 'workload.hiddn: "hiddn" is unknown here; allowed are branches, dtype'),
        (
            ("workload", "dtype", "float16", "x"),
            3,
            'workload.dtype.float16: there is no entry "float16"; this list has no named tables.',
        ),
        (
            ("candidate", "persistent"),
            3,
            'candidate.persistent: "candidate" is no table; give a key path that ends in a key of one.',
        ),
        (
            ("family", "name", "first"),
            "x",
            'family.name.first: "family.name" is no table; give a key path that ends in a key of one.',
        ),
        (("name",), "other", ':5: name: the file is called "qwen38_flash_tp1.toml", but name is "other"'),
    ],
)
def test_what_would_break_the_file_is_not_written(
    spec_path: Path, key_path: tuple[str, ...], value: object, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        edit(spec_path, key_path, value)
    assert message in str(caught.value)
    assert spec_path.read_bytes() == SAMPLE.read_bytes()
    assert list(spec_path.parent.iterdir()) == [spec_path]


def test_a_crash_while_writing_leaves_the_old_file(spec_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="the disk is full"):
        edit(spec_path, ("workload", "eps"), 1e-5)
    assert spec_path.read_bytes() == SAMPLE.read_bytes()
    assert list(spec_path.parent.iterdir()) == [spec_path]


def test_line_ends_and_mode_are_kept(spec_path: Path) -> None:
    spec_path.write_bytes(SAMPLE.read_bytes().replace(b"\n", b"\r\n"))
    spec_path.chmod(0o640)
    edit(spec_path, ("candidate", "persistent", "down", "ctas"), 108)
    expected = SAMPLE.read_bytes().replace(b"ctas = 132", b"ctas = 108").replace(b"\n", b"\r\n")
    assert spec_path.read_bytes() == expected
    assert spec_path.stat().st_mode & 0o777 == 0o640


@given(
    name=st.sampled_from(["replicated", "wide_rows", "persistent", "early_norm"]),
    key=st.sampled_from(
        [("down", "ctas"), ("up_mix", "ctas"), ("min_sms",), ("budget", "down", "registers")]
    ),
    value=st.integers(1, 160),
)
def test_an_edit_changes_that_value_alone(
    tmp_path_factory: pytest.TempPathFactory, name: str, key: tuple[str, ...], value: int
) -> None:
    path = Path(shutil.copy(SAMPLE, tmp_path_factory.mktemp("edit")))
    expected = tomllib.loads(SAMPLE.read_text(encoding="utf-8"))
    table = next(candidate for candidate in expected["candidate"] if candidate["name"] == name)
    for part in key[:-1]:
        table = table.setdefault(part, {})
    table[key[-1]] = value
    edit(path, ("candidate", name, *key), value)
    assert tomllib.loads(path.read_text(encoding="utf-8")) == expected
