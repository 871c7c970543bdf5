"""`compile` and `build`: rows, budgets, expectations, filters, worker processes, a cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from kernwright.compiler import toolchain
from kernwright.compiler.toolchain import ToolchainMissing
from kernwright.generator import build as building

KEYS = [
    "workload",
    "candidate",
    "kernel",
    "arch",
    "registers",
    "shared_bytes",
    "stack_bytes",
    "spill_bytes",
    "source_sha256",
    "cubin_sha256",
    "cached",
    "seconds",
]
KERNELS = ["combine_norm", "norm", "combine", "down", "down_final", "up_mix"]
WIDE = "up_mix = { load_bytes = 16 }"


def add(small: Path, line: str) -> None:
    spec = small / "specs" / "small.toml"
    text = spec.read_text(encoding="utf-8")
    spec.write_text(text.replace(WIDE, f"{WIDE}\n{line}"), encoding="utf-8")


def test_json_has_one_row_a_kernel_with_exactly_the_keys(run: Any, small: Path, tmp_path: Path) -> None:
    found = run("compile", "--json", cwd=small)
    assert (found.status, found.err) == (0, "")
    rows = found.json
    assert [list(row) for row in rows] == [KEYS] * 18
    assert [(row["candidate"], row["arch"], row["kernel"]) for row in rows] == [
        (candidate, arch, kernel)
        for candidate, arch in (("control", "sm_70"), ("control", "sm_90"), ("wide", "sm_90"))
        for kernel in KERNELS
    ]
    assert {row["workload"] for row in rows} == {"small/fp16-hc2-h64-n1-r32-tp1"}
    assert all(type(row[key]) is int for row in rows for key in KEYS[4:8])
    assert {row["cached"] for row in run("compile", "--json", cwd=small).json} == {True}
    run("generate", cwd=small)
    for path in (small / "generated").rglob("*.cu"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest in {row["source_sha256"] for row in rows}
    assert len({row["cubin_sha256"] for row in rows}) == 3
    staged = next(row for row in rows if row["candidate"] == "wide" and row["kernel"] == "up_mix")
    # Eight teams of 32 threads, each staging both branches' rows of 32 elements.
    assert staged["shared_bytes"] == 8 * 2 * 32 * 2


def test_compile_writes_no_source_and_build_does(run: Any, small: Path) -> None:
    assert run("compile", "--arch", "sm_70", cwd=small).status == 0
    assert not (small / "generated").exists()
    built = run("build", "--arch", "sm_70", "--json", cwd=small)
    assert {row["arch"] for row in built.json} == {"sm_70"}
    assert (small / "generated" / "hyper_connection").is_dir()
    assert run("generate", "--check", cwd=small).status == 0


def test_filters_select(run: Any, small: Path) -> None:
    def rows(*arguments: str) -> set[tuple[str, str]]:
        found = run("compile", *arguments, "--json", cwd=small)
        assert found.status == 0
        return {(row["candidate"], row["arch"]) for row in found.json}

    assert rows("--candidate", "wide") == {("wide", "sm_90")}
    assert rows("--arch", "sm_90") == {("control", "sm_90"), ("wide", "sm_90")}
    assert rows("--arch", "sm_90", "--arch", "sm_70", "--candidate", "control") == {
        ("control", "sm_70"),
        ("control", "sm_90"),
    }
    assert rows("sm70-hc2") == {("control", "sm_70")}
    assert len(rows("small")) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--arch", "sm_91"],
            'no spec file asks for architecture "sm_91"; there are sm_70 and sm_90; did you mean "sm_90"?\n',
        ),
        (
            ["--candidate", "wid"],
            'no spec file asks for candidate "wid"; there are control and wide; did you mean "wide"?\n',
        ),
        (["smal"], 'there is no spec "smal"; there are small; did you mean "small"?\n'),
        (
            ["bf16-hc2"],
            'no workload matches "bf16-hc2"; there are fp16-hc2-h64-n1-r32-tp1.\n',
        ),
    ],
)
def test_what_nobody_asks_for_exits_2(run: Any, small: Path, arguments: list[str], sentence: str) -> None:
    found = run("compile", *arguments, "--json", cwd=small)
    assert (found.status, found.out) == (2, "")
    assert found.err == sentence


def test_an_impossible_budget_fails_with_both_numbers(run: Any, small: Path) -> None:
    add(small, "budget = { registers = 8, spill_bytes = 0, up_mix = { shared_bytes = 16 } }")
    found = run("build", "--json", cwd=small)
    assert found.status == 1
    used = {row["kernel"]: row for row in found.json if row["candidate"] == "wide"}
    failures = [line for line in found.err.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 7
    for kernel in KERNELS:
        (line,) = (line for line in failures if f" {kernel} " in line and "register" in line)
        assert line.startswith("failed: small fp16-hc2-h64-n1-r32-tp1, candidate wide, sm_90: ")
        assert str(used[kernel]["registers"]) in line
        assert "8" in line.split("sm_90: ")[1]
    (shared,) = (line for line in failures if "shared" in line)
    assert "1024" in shared
    assert "16" in shared
    # The build is there all the same: a budget is a judgement, not a part of the source.
    assert (small / "generated" / "dispatch.py").is_file()


def test_a_met_expectation_passes_and_an_unmet_one_fails(run: Any, small: Path) -> None:
    add(small, 'expect.up_mix = { "LDG.E.128" = 1 }')
    found = run("compile", "--arch", "sm_90", cwd=small)
    assert (found.status, found.err) == (0, "")
    add(small, 'expect.down = { "LDG.E.128" = 999, "HMMA" = 1 }')
    found = run("compile", "--arch", "sm_90", cwd=small)
    assert found.status == 1
    assert found.err.count("failed: ") == 2
    for number in ("LDG.E.128", "999", "HMMA"):
        assert number in found.err


def test_an_expectation_of_sm_70_is_skipped_with_a_note(run: Any, small: Path) -> None:
    spec = small / "specs" / "small.toml"
    text = spec.read_text(encoding="utf-8")
    control = 'arch = ["sm_70", "sm_90"]\nroute = "replicated"\n'
    expectation = 'expect.up_mix = { "LDG.E.128" = 999 }\n'
    spec.write_text(text.replace(control, control + expectation), encoding="utf-8")
    found = run("compile", "--arch", "sm_70", cwd=small)
    assert found.status == 0
    assert found.err.startswith("note: expectations of sm_70 machine code were not checked: ")
    assert run("compile", "--arch", "sm_90", cwd=small).status == 1


def test_a_source_with_an_error_fails_alone_with_the_compilers_words(run: Any, small: Path) -> None:
    template = small / "templates" / "prelude" / "reduction.cuh.j2"
    template.parent.mkdir(parents=True)
    template.write_text("{{ 'int broken = ;' if candidate == 'wide' else shipped }}", encoding="utf-8")
    shipped = Path(building.__file__).parents[1] / "templates" / "prelude" / "reduction.cuh.j2"
    text = template.read_text(encoding="utf-8").replace(
        "{{ 'int broken = ;' if candidate == 'wide' else shipped }}",
        "{% if candidate == 'wide' %}\nint broken = ;\n{% endif %}\n" + shipped.read_text(encoding="utf-8"),
    )
    template.write_text(text, encoding="utf-8")
    found = run("compile", "--arch", "sm_90", "--json", cwd=small)
    assert found.status == 1
    assert {row["candidate"] for row in found.json} == {"control"}
    assert "candidate wide, sm_90: " in found.err
    assert "expected an expression" in found.err


def serving(*archs: str) -> Any:
    real = toolchain.toolchain()
    return lambda: dataclasses.replace(real, version=(13, 0), archs=archs)


def test_an_architecture_that_this_nvrtc_lacks_exits_3(
    run: Any, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "toolchain", serving("sm_75", "sm_90"))
    found = run("compile", cwd=small)
    assert (found.status, found.out) == (3, "")
    assert found.err == (
        "The installed NVRTC 13.0 doesn't compile for sm_70; it serves sm_75, sm_90. "
        "CUDA 12's NVRTC serves sm_70: pip install 'kernwright[cuda12]'.\n"
    )
    assert run("compile", "--arch", "sm_90", cwd=small).status == 0


def test_a_machine_without_a_compiler_exits_3(run: Any, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ToolchainMissing("There is no NVRTC. pip install 'kernwright[cuda12]'.")

    monkeypatch.setattr(toolchain, "toolchain", missing)
    found = run("compile", cwd=small)
    assert (found.status, found.err) == (3, "There is no NVRTC. pip install 'kernwright[cuda12]'.\n")
    assert run("generate", cwd=small).status == 0


def many(small: Path) -> None:
    """Enough sources that worker processes are started for them, tiny ones."""
    spec = small / "specs" / "small.toml"
    text = spec.read_text(encoding="utf-8").replace(
        '["sm_70", "sm_90"]', '["sm_75", "sm_80", "sm_86", "sm_90"]'
    )
    text = text.replace('["sm_90"]', '["sm_75", "sm_80", "sm_86", "sm_90"]')
    spec.write_text(text, encoding="utf-8")


def test_two_processes_give_the_same_cubins_as_one(
    run: Any, small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    many(small)
    made = {}
    for jobs in ("1", "2"):
        monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / f"cache{jobs}"))
        found = run("compile", "--jobs", jobs, "--json", cwd=small)
        assert found.status == 0
        assert {row["cached"] for row in found.json} == {False}
        made[jobs] = [
            (row["candidate"], row["arch"], row["kernel"], row["cubin_sha256"]) for row in found.json
        ]
    assert made["1"] == made["2"]
    assert len(made["1"]) == 8 * len(KERNELS)


def test_a_dask_cluster_compiles(
    run: Any, small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    tasks: list[str] = []

    class Seen(distributed.SchedulerPlugin):  # type: ignore[misc,name-defined]
        def transition(self, key: str, _start: str, finish: str, *_rest: Any, **_more: Any) -> None:
            if finish == "memory":
                tasks.append(key)

    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as cluster:
        cluster.scheduler.add_plugin(Seen())
        found = run("compile", "--scheduler", cluster.scheduler_address, "--json", cwd=small)
    assert found.status == 0, found.err
    assert {row["cached"] for row in found.json} == {False}
    assert len([key for key in tasks if key.startswith("compile_job-")]) == 3
    assert {row["cached"] for row in run("compile", "--json", cwd=small).json} == {True}


def test_a_scheduler_that_does_not_answer_exits_3(
    run: Any, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "CONNECT_SECONDS", 1)
    found = run("compile", "--scheduler", "tcp://127.0.0.1:1", cwd=small)
    assert found.status == 3
    assert found.err.startswith("no Dask scheduler answers at tcp://127.0.0.1:1 (")
    assert "dask scheduler" in found.err
    wrong = run("compile", "--scheduler", "nonsense", cwd=small)
    assert wrong.status == 3
    assert "missing port number" in wrong.err
