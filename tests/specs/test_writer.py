"""Writing back: what is named changes, everything else stays byte for byte, and nothing invalid is written."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.specs import SpecError, load_spec
from kernwright.specs.writer import put

SAMPLE = Path(__file__).parent / "edited" / "qwen38_flash_tp1.toml"


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    return Path(shutil.copy(SAMPLE, tmp_path))


def test_a_new_key_goes_to_its_candidate(spec_path: Path) -> None:
    wide = {"name": "wide_rows"}
    file = put(spec_path, "candidate", wide, {"l1_bypass": True})
    assert load_spec(spec_path) == file
    arch = ["sm_70", "sm_75", "sm_80", "sm_90", "sm_120"]
    spec = put(spec_path, "candidate", {"name": "replicated"}, {"arch": arch}).spec
    assert [c.schedule()["l1_bypass"] for c in spec.candidates] == [False, True, False, False]
    assert spec.control.arch[-1] == "sm_120"
    comments = [line for line in SAMPLE.read_text(encoding="utf-8").splitlines() if "#" in line]
    kept = spec_path.read_text(encoding="utf-8").splitlines()
    assert [line for line in kept if "#" in line] == comments


def test_none_removes_a_key(spec_path: Path) -> None:
    for _ in range(2):  # where there is none, nothing changes
        put(spec_path, "candidate", {"name": "early_norm"}, {"early_norm_weight": None})
        text = spec_path.read_text(encoding="utf-8")
        assert text == SAMPLE.read_text(encoding="utf-8").replace("early_norm_weight = true\n", "")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("persistent", {"min_sms": 0}, ": candidate[2].min_sms: found 0; it must be at least 1."),
        ("persistent", {"name": "wide_rows"}, '"wide_rows" is already the name of candidate[1]; rename one.'),
        ("another", {}, ': candidate[4].route: "route" is missing; allowed are'),
    ],
)
def test_what_would_break_the_file_is_not_written(
    spec_path: Path, name: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        put(spec_path, "candidate", {"name": name}, values)
    assert message in str(caught.value)
    assert spec_path.read_bytes() == SAMPLE.read_bytes()
    assert list(spec_path.parent.iterdir()) == [spec_path]


def test_a_crash_while_writing_leaves_the_old_file(spec_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="the disk is full"):
        put(spec_path, "candidate", {"name": "persistent"}, {"min_sms": 108})
    assert spec_path.read_bytes() == SAMPLE.read_bytes()
    assert list(spec_path.parent.iterdir()) == [spec_path]


def test_line_ends_and_mode_are_kept(spec_path: Path) -> None:
    wanted = SAMPLE.read_bytes().replace(b"early_norm_weight = true\n", b"").replace(b"\n", b"\r\n")
    spec_path.write_bytes(SAMPLE.read_bytes().replace(b"\n", b"\r\n"))
    spec_path.chmod(0o640)
    put(spec_path, "candidate", {"name": "early_norm"}, {"early_norm_weight": None})
    assert spec_path.read_bytes() == wanted
    assert spec_path.stat().st_mode & 0o777 == 0o640


@given(
    name=st.sampled_from(["replicated", "wide_rows", "persistent", "early_norm"]), value=st.integers(1, 160)
)
def test_an_edit_changes_that_value_alone(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: int
) -> None:
    path = Path(shutil.copy(SAMPLE, tmp_path_factory.mktemp("edit")))
    expected = tomllib.loads(SAMPLE.read_text(encoding="utf-8"))
    next(candidate for candidate in expected["candidate"] if candidate["name"] == name)["min_sms"] = value
    put(path, "candidate", {"name": name}, {"min_sms": value})
    assert tomllib.loads(path.read_text(encoding="utf-8")) == expected
