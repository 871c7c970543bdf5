"""`bench`, `tune` and `verify` of workloads of several ranks, as people type them: what is skipped says why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.paths import MINIATURE, ODD
from kernwright.evidence import commands
from kernwright.evidence.crossing import Crossings, Curve
from kernwright.evidence.outcome import Bench
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.ranks import RankJob
from kernwright.evidence.tune import Tuned

CURVE = Curve(
    (1024, 2048),
    {"tagged_words": (2.5, None), "one_stage": (4.0, 5.0)},
    {"tagged_words": 1500, "one_stage": 2048},
)


@pytest.fixture
def ranks(tmp_path: Path, run: Any) -> Path:
    """A workspace of an all-reduce and of a boundary that a rank computes alone, generated."""
    root = tmp_path / "ranks"
    shutil.copytree(MINIATURE, root / "specs")
    shutil.copy(ODD / "specs" / "odd_plain.toml", root / "specs")
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    assert run("generate", cwd=root).status == 0
    return root


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if there were GPUs, and a job of so many processes of which this is one."""

    def there(size: int, rank: int = 0) -> None:
        @contextmanager
        def job() -> Iterator[RankJob]:
            yield RankJob(rank, size, frozenset())

        @contextmanager
        def monitor(*_: Any) -> Iterator[None]:
            yield None

        @contextmanager
        def rank_context_of(*_: Any) -> Iterator[RankContext]:
            yield RankContext(torch.device("cpu"))

        monkeypatch.setattr(commands, "gpu", lambda: torch.device("cpu"))
        monkeypatch.setattr(commands, "job", job)
        monkeypatch.setattr(commands, "monitor", monitor)
        monkeypatch.setattr(commands, "rank_context_of", rank_context_of)
        monkeypatch.setattr(RankContext, "obstacle", lambda *_: None)

    return there


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What `bench` would have timed."""
    asked: list[tuple[str, str]] = []

    def bench(
        _dispatch: Any, _family_evidence: Any, workload: Any, _identities: Any, cell: Any, *_: Any, **__: Any
    ) -> Bench:
        asked.append((workload.label, cell.title(workload)))
        return Bench(
            workload.label, "a GPU", "chain", 20, 1, 1, (), {}, (), (1.0,), part=cell.title(workload)
        )

    monkeypatch.setattr(commands, "bench", bench)
    return asked


def test_one_process_times_what_a_rank_computes_alone_and_says_the_rest(
    run: Any, ranks: Path, gpus: Any, timed: list[Any]
) -> None:
    gpus(1)
    found = run("bench", cwd=ranks)
    assert found.status == 0
    assert timed == [("fp16-hc2-h40-n1-r7-tp1", "")]
    skipped = found.err.splitlines()
    assert len(skipped) == 9
    assert skipped[0] == (
        "skipped: fp16-w56-b4to2048-tp2 of mini has 2 ranks, and this job one process; start it with `torchrun "
        "--nproc-per-node 2 -m kernwright ...` on 2 GPUs"
    )


def test_with_nothing_left_to_time_the_status_is_3(
    run: Any, ranks: Path, gpus: Any, timed: list[Any]
) -> None:
    gpus(1)
    found = run("bench", "bf16-w56-tp2", cwd=ranks)
    assert (found.status, timed) == (3, [])
    assert found.err.splitlines()[-1].startswith(
        "bf16-w56-b4to2048-tp2 of mini has 2 ranks, and this job one process"
    )


def test_a_job_times_the_workloads_of_as_many_ranks(
    run: Any, ranks: Path, gpus: Any, timed: list[Any]
) -> None:
    gpus(2)
    found = run("bench", cwd=ranks)
    assert found.status == 0
    assert [label for label, _ in timed] == [
        f"{dtype}-w56-b4to2048-tp2" for dtype in ("fp16", "bf16", "fp32")
    ]
    assert all("-tp4 of mini" in line or "-tp8 of mini" in line for line in found.err.splitlines())


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_only_one_rank_prints(
    run: Any, ranks: Path, gpus: Any, timed: list[Any], monkeypatch: pytest.MonkeyPatch, more: Any
) -> None:
    gpus(2, rank=1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("RANK", "1")
    found = run("bench", "bf16-w56-tp2", *more, cwd=ranks)
    assert (found.status, found.out, found.err) == (0, "", "")
    assert len(timed) == 1
    found = run("verify", "bf16-w56-tp2", "--candidate", "tagged", *more, cwd=ranks)
    assert (found.status, found.out, found.err) == (0, "", "")


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that is over at once."""

    def tune(_dispatch: Any, _family_evidence: Any, workload: Any, *_: Any) -> Tuned:
        found = Crossings({"one_stage": 1447}, 0.0125)
        return Tuned("mini", workload.label, str(workload.fields["dtype"]), 2, "NVIDIA H200", CURVE, found)

    monkeypatch.setattr(commands, "tune", tune)


def test_tune_writes_what_it_found(run: Any, ranks: Path, gpus: Any, tuned: None) -> None:
    gpus(2)
    found = run("tune", "bf16-w56-tp2", "--out", ranks / "curves", cwd=ranks)
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("bf16-w56-b4to2048-tp2 on NVIDIA H200, microseconds")
    assert "one_stage from 1447; 1.2% over the fastest; curve in " in found.out
    assert found.out.endswith("the spec files have new thresholds; run `kernwright generate`\n")
    text = (ranks / "specs" / "mini.toml").read_text()
    assert text.endswith(
        '[[threshold]]\ndevice = "NVIDIA H200"\ndtype = "bfloat16"\nworld_size = 2\none_stage = 1447\n'
        "measured = true\n"
    )
    assert [path.name for path in (ranks / "curves").iterdir()] == [
        "tune-mini-bf16-w56-b4to2048-tp2-nvidia-h200.json"
    ]


def test_tune_may_leave_the_spec_alone(run: Any, ranks: Path, gpus: Any, tuned: None) -> None:
    gpus(2)
    before = (ranks / "specs" / "mini.toml").read_text()
    found = run("tune", "bf16-w56-tp2", "--no-write", "--json", "--out", ranks / "curves", cwd=ranks)
    assert found.status == 0
    (document,) = found.json
    assert document["curve"]["times"] == {"tagged_words": [2.5, None], "one_stage": [4.0, 5.0]}
    assert document["crossings"] == {"begins": {"one_stage": 1447}, "loss": 0.0125}
    assert (ranks / "specs" / "mini.toml").read_text() == before


def test_tune_refuses_where_ranks_have_no_gpus(run: Any, ranks: Path, gpus: Any, tuned: None) -> None:
    if not torch.cuda.is_available():
        found = run("tune", cwd=ranks)
        assert (found.status, found.out) == (3, "")
        assert found.err.startswith("no CUDA GPU here")
    gpus(1)
    found = run("tune", "bf16-w56-tp2", cwd=ranks)
    assert (found.status, found.out) == (3, "")
    assert found.err.startswith(
        "bf16-w56-b4to2048-tp2 of mini has 2 ranks, and this job one process; start it with"
    )


def test_verify_says_what_it_skipped(run: Any, ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernwright.evidence.family_evidence import NoEvidence, evidence_of

    def evidence(family: Any) -> Any:
        if family.name == "hyper_connection":
            raise NoEvidence("family hyper_connection has no module")
        return evidence_of(family)

    monkeypatch.setattr(commands, "evidence_of", evidence)
    chosen = ("odd_plain", "bf16-w56-tp2", "--candidate", "one", "--candidate", "replicated")
    table = run("verify", *chosen, cwd=ranks)
    assert table.status == 0
    assert "skipped: family hyper_connection has no module" in table.out
    rows = run("verify", *chosen, "--json", cwd=ranks).json
    assert [(row["candidate"], row.get("skipped")) for row in rows] == [
        ("one", None),
        ("", "family hyper_connection has no module"),
    ]
