"""`generate`, `validate`, `schema`: what they say, and their exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_check_fails_with_a_diff_before_and_passes_after(run: Any, small: Path) -> None:
    before = run("generate", "--check", cwd=small)
    assert before.status == 1
    assert "+++ wanted/generated/dispatch.py" in before.out
    assert "+++ wanted/schema/hyper_connection.json" in before.out
    assert before.err == "generated files differ from their spec files; run `kernwright generate`\n"
    assert not (small / "generated").exists()

    wrote = run("generate", cwd=small)
    assert wrote.status == 0
    assert "wrote hyper_connection/small/control.cu\n" in wrote.out
    assert wrote.out.endswith("0 files were up to date\n")

    after = run("generate", "--check", cwd=small)
    assert (after.status, after.out, after.err) == (0, "5 generated files are up to date\n", "")

    edit(small / "specs" / "small.toml", "load_bytes = 16", "load_bytes = 8")
    changed = run("generate", "--check", cwd=small)
    assert changed.status == 1
    assert "\n-constexpr int THREADS = 256, TEAM = 32, TEAMS = 8, BYTES = 16;" in changed.out
    assert "\n+constexpr int THREADS = 256, TEAM = 32, TEAMS = 8, BYTES = 8;" in changed.out
    assert {line for line in changed.out.splitlines() if line.startswith("+++ ")} == {
        "+++ wanted/generated/hyper_connection/small/wide.cu",
        "+++ wanted/generated/dispatch.py",
        "+++ wanted/generated/manifest.json",
    }


@pytest.mark.parametrize("damage", ["edited", "deleted"])
def test_a_damaged_source_is_reported_and_restored(run: Any, small: Path, damage: str) -> None:
    run("generate", cwd=small)
    path = small / "generated/hyper_connection/small/wide.cu"
    whole = path.read_bytes()
    if damage == "edited":
        edit(path, "constexpr int LOW_RANK = 32;", "constexpr int LOW_RANK = 33;")
    else:
        path.unlink()
    found = run("generate", "--check", cwd=small)
    assert found.status == 1
    assert "+constexpr int LOW_RANK = 32;" in found.out
    assert ("-constexpr int LOW_RANK = 33;" in found.out) == (damage == "edited")
    assert run("generate", "--json", cwd=small).json == {
        "written": [path.relative_to(small / "generated").as_posix()],
        "removed": [],
        "unchanged": 4,
    }
    assert path.read_bytes() == whole


def test_a_drifted_schema_is_reported_and_restored(run: Any, small: Path) -> None:
    run("generate", cwd=small)
    path = small / "schema" / "hyper_connection.json"
    edit(path, '"branches"', '"braches"')
    assert run("generate", "--check", cwd=small).status == 1
    assert run("generate", cwd=small).out == "wrote hyper_connection.json\n5 files were up to date\n"
    assert run("generate", "--check", cwd=small).status == 0


def test_a_removed_candidate_is_said(run: Any, small: Path) -> None:
    run("generate", cwd=small)
    spec = small / "specs" / "small.toml"
    text = spec.read_text(encoding="utf-8")
    spec.write_text(text[: text.rindex("[[candidate]]")], encoding="utf-8")
    found = run("generate", cwd=small)
    assert "removed hyper_connection/small/wide.cu\n" in found.out


@pytest.mark.parametrize(
    ("old", "new", "key", "sentence"),
    [
        (
            'route = "replicated"\nup_mix = { load_bytes = 16 }',
            'route = "gate_sharded"\npacked_down = true',
            "candidate[1].packed_down",
            "candidate wide asks for packed_down, which needs a copy of the down weight that plans don't keep yet; "
            "leave packed_down out.\n",
        ),
        (
            'route = "replicated"\nup_mix = { load_bytes = 16 }',
            'route = "fused_up_mix_gather"\nload_bytes = 16',
            "candidate[1].load_bytes",
            "candidate wide loads 16 bytes of up_mix at once, but the lanes of the up tree have 1 chunks each; take "
            "a narrower up_mix.load_bytes.\n",
        ),
        (
            "low_rank = 32",
            "low_rank = 32\ntokens = { min = 1, max = 1025 }",
            "candidate[0].route",
            "tokens is 1 to 1025; this version has templates for 1024 at most, and serves more by the reference.\n",
        ),
        (
            "load_bytes = 16",
            "load_bytes = 16, rows_per_cta = 512",
            "candidate[1].up_mix.rows_per_cta",
            "candidate wide keeps 512 hidden coordinates x 2 branches of up_mix in 65536 bytes of shared memory; "
            "49152 are allowed: lower up_mix.rows_per_cta or up_mix.load_bytes.\n",
        ),
    ],
)
def test_what_cannot_be_generated_is_not_valid(
    run: Any, small: Path, old: str, new: str, key: str, sentence: str
) -> None:
    """Every command says the same, with file, line and key, and nothing is written."""
    spec = small / "specs" / "small.toml"
    edit(spec, old, new)
    edit(spec, "low_rank = 32", "low_rank = 32\nworld_size = 2")
    for command in (["validate"], ["generate"], ["generate", "--check"], ["compile"], ["build"]):
        found = run(*command, cwd=small)
        assert (found.status, found.out) == (2, ""), command
        assert re.search(rf"small\.toml:\d+: {re.escape(key)}: {re.escape(sentence)}", found.err)
    assert sorted(path.name for path in small.iterdir()) == ["kernwright.toml", "specs"]


def test_a_damaged_manifest_exits_2_and_touches_nothing(run: Any, small: Path) -> None:
    run("generate", cwd=small)
    manifest = small / "generated" / "manifest.json"
    manifest.write_text('{"format": 1, "files": {"../kernwright.toml": ""}}', encoding="utf-8")
    for command in (["generate"], ["generate", "--check"], ["build"]):
        found = run(*command, cwd=small)
        assert (found.status, found.out) == (2, "")
        assert found.err == (
            f"{manifest} lists '../kernwright.toml', which is outside its folder; nothing was deleted\n"
        )
    assert (small / "kernwright.toml").is_file()


def test_a_broken_template_exits_2(run: Any, small: Path) -> None:
    template = small / "templates" / "hyper_connection" / "down.cuh.j2"
    template.parent.mkdir(parents=True)
    template.write_text("{{ nothing }}\n", encoding="utf-8")
    found = run("generate", cwd=small)
    assert (found.status, found.err) == (2, f"{template}:1: 'nothing' is undefined; correct the template\n")


def test_a_folder_in_the_place_of_a_file_exits_2(run: Any, small: Path) -> None:
    (small / "generated" / "dispatch.py").mkdir(parents=True)
    found = run("generate", cwd=small)
    assert found.status == 2
    assert "dispatch.py" in found.err


def test_validate_lists_the_cells(run: Any, library: Path) -> None:
    found = run("validate", "--json", cwd=library)
    assert found.status == 0
    rows = {row["workload"]: row for row in found.json}
    assert {label: row["family"] for label, row in rows.items()}.items() >= {
        ("fp16-hc8-h2048-n1-r128-tp1", "hyper_connection"),
        ("fp16-hc4-h2560-n1-r320-tp1", "hyper_connection"),
        ("bf16-hc4-h2560-n1-r320-tp1", "hyper_connection"),
        ("fp32-w7168-b4to29360128-tp8", "all_reduce"),
    }
    half = rows["fp16-hc4-h2560-n1-r320-tp1"]
    assert half["candidates"][:2] == ["replicated", "wide_rows"]
    assert half["archs"] == ["sm_70", "sm_75", "sm_80", "sm_90"]
    assert set(found.json[0]) == {"file", "family", "workload", "candidates", "archs"}
    assert "fp16-hc4-h2560-n1-r320-tp1" in run("validate", cwd=library).out


def test_validate_says_all_problems_of_all_files(run: Any, small: Path) -> None:
    spec = small / "specs" / "small.toml"
    edit(spec, "hidden = 64", 'hidden = "64"')
    edit(spec, "load_bytes = 16", "load_byte = 16")
    other = small / "specs" / "other.toml"
    other.write_text('family = "hyper_connexion"\n', encoding="utf-8")
    found = run("validate", cwd=small)
    assert (found.status, found.out) == (2, "")
    lines = found.err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{other}:1: family: ")
    assert lines[1].startswith(f"{spec}:7: workload.hidden: ")
    assert lines[2].startswith(f"{spec}:19: candidate[1].up_mix.load_byte: ")
    assert 'did you mean "load_bytes"?' in lines[2]
    for command in ("generate", "compile", "build"):
        assert run(command, cwd=small).status == 2


def test_validate_takes_files(run: Any, small: Path) -> None:
    named = run("validate", "specs/small.toml", "--json", cwd=small)
    assert (named.status, len(named.json)) == (0, 1)
    absent = run("validate", "specs/none.toml", cwd=small)
    assert (absent.status, absent.err) == (
        2,
        "specs/none.toml: can't read the file: No such file or directory.\n",
    )


def test_schema_prints_what_generate_writes(run: Any, small: Path) -> None:
    run("generate", cwd=small)
    found = run("schema", "hyper_connection", cwd=small)
    assert found.status == 0
    assert found.out == (small / "schema" / "hyper_connection.json").read_text(encoding="utf-8")
    assert "workload" in json.loads(found.out)["properties"]
    unknown = run("schema", "hyperconnection", cwd=small)
    assert unknown.status == 2
    assert 'there is no family "hyperconnection"' in unknown.err
