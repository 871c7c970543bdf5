"""`bench` and `rows.py` without a GPU: graphs, samples and the gate are scripted, everything else is as always."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness.paths import CHECKOUT
from kernwright.evidence import timing
from kernwright.evidence.bench import bench
from kernwright.evidence.benchmark_run import GpuBackend, Options
from kernwright.evidence.cells import Cell
from kernwright.evidence.gate import Gate
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.session import Session
from kernwright.evidence.timing import Pace
from kernwright.evidence.verify import Verification
from kernwright.families.hyper_connection.baselines import eager
from kernwright.families.hyper_connection.evidence import BoundaryChain, HyperConnectionEvidence, shape_of
from kernwright.ledger import Closeness, Distance, RecordFile, check, write_record
from kernwright.ledger.names import record_name
from kernwright.runtime.device import fake
from kernwright.specs import ToleranceSpec

FP16 = "fp16-hc4-h256-n1to40-r64-tp1"
H200 = fake("sm_90", 132, "NVIDIA H200")
TIMES = {"replicated": 2.0, "tensor_core": 1.0, "wide": 3.0}


class FamilyEvidence(HyperConnectionEvidence):
    """Two boundaries instead of 96, and no peers."""

    def chain(self, workload: Any, device: Any, seed: int) -> BoundaryChain:
        return BoundaryChain.make(workload, device, seed, calls=2)

    def baselines(self, workload: Any) -> Any:
        del workload
        return {}


class Graph:
    """A run that is done again at every replay; `drifts` adds something from the second replay on."""

    def __init__(self, run: Any, stage: Any) -> None:
        self.run, self.stage, self.result = run, stage, run()
        self.name = stage.called
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for kept, again in zip(self.result or (), self.run() or (), strict=True):
            for tensor, fresh in zip(kept, again, strict=True):
                tensor.copy_(fresh + (self.replays > 1) * (self.name in self.stage.drifts))


class Stage:
    """A dispatch whose tolerance candidates give other bits than the control."""

    def __init__(self, dispatch: Any, drifts: tuple[str, ...] = ()) -> None:
        self.table, self.called, self.drifts, self.dispatch = dispatch.table, "", drifts, dispatch

    def plan_named(
        self, label: str, name: str, _arch: str, _kind: str, _device: Any, *, comm: Any, at: Any
    ) -> Any:
        assert comm is None
        work = next(entry for entry in self.table.workloads if entry.name == label)
        boundary = eager(shape_of(work, at))

        def call(inputs: Any) -> Any:
            self.called = name
            return [t.contiguous() * (1 if name == "replicated" else 1.001) for t in boundary(inputs)]

        return call

    def verify(self, _d: Any, _s: Any, work: Any, candidate: Any, arch: str, *_rest: Any) -> Verification:
        near = Closeness(
            tolerance=ToleranceSpec(relative_l2=8e-3), distances={"x": Distance(candidate=1e-4, eager=1e-4)}
        )
        exact = candidate.contract == "exact"
        against, closeness = ("array oracle", None) if exact else ("FP64", near)
        return Verification(
            work.label, candidate.name, arch, against, Gate(3, 100, 0, None), (1,), 0.1, closeness=closeness
        )

    def backend(self) -> GpuBackend:
        return GpuBackend(
            lambda _: H200,
            self.verify,
            lambda run: Graph(run, self),  # type: ignore[arg-type, return-value]
            lambda graph, _replays: TIMES.get(graph.name, 1.0),  # type: ignore[attr-defined]
            lambda _block: None,
        )


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, cubin_cache: Path) -> Any:
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))
    monkeypatch.setattr(timing, "problem", lambda _before, _after: None)
    monkeypatch.setattr(BoundaryChain, "read", lambda _self: lambda: None)
    return SimpleNamespace(snapshot=lambda: None, driver="570.1")


def measured(workspace: Any, watch: Any, drifts: tuple[str, ...] = ()) -> Any:
    session = Session.open(workspace)
    work = next(entry for entry in session.workloads([]) if entry.label == FP16)
    stage = Stage(session.dispatch, drifts)
    return bench(
        stage,  # type: ignore[arg-type]
        FamilyEvidence(),
        work,
        Cell(RankContext(torch.device("cpu"))),
        watch,
        (),
        Options(pace=Pace(groups=3, replays=1, most=3), blocks=3, peers=()),
        backend=stage.backend(),
    )


def test_records_of_candidates_under_a_tolerance(workspace: Any, watch: Any, tmp_path: Path) -> None:
    """Other bits than the control's don't stop them; what they say passes the ledger's check and is read back."""
    result = measured(workspace, watch)
    found = {record.candidate: record for record in result.records}
    assert {name: record.verdict for name, record in found.items()} == {
        "replicated": "no_difference",
        "tensor_core": "admitted",
        "wide": "rejected",
    }
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []
    near = found["tensor_core"].exactness.closeness
    assert near is not None
    assert near.measured == "x 1.00e-04 (torch eager 1.00e-04)"
    assert found["replicated"].exactness.closeness is None
    path = write_record(tmp_path, found["tensor_core"])
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["exactness"]["closeness"]["tolerance"]["relative_l2"] == 8e-3
    document["exactness"]["closeness"]["distances"]["x"]["candidate"] = 1e-9
    edited = type(found["tensor_core"]).model_validate(document)
    assert {problem.key for problem in check([RecordFile("a.json", edited)])} == {"reason", "sha256"}


def test_a_replay_with_other_bits_isnt_timed(workspace: Any, watch: Any) -> None:
    """Under a tolerance, too, a graph gives what the eager launch gave."""
    result = measured(workspace, watch, drifts=("tensor_core",))
    found = {record.candidate: record for record in result.records}["tensor_core"]
    assert (found.verdict, found.timing) == ("rejected", None)
    assert "captured graph left" in found.reason
    assert "that aren't those of its eager run; it isn't timed" in found.reason


def test_rows(monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    """The table of the benchmark: every candidate that serves so many tokens, its contract, and distances."""
    path = CHECKOUT / "benchmarks" / "rows.py"
    spec = importlib.util.spec_from_file_location("rows", path)
    assert spec is not None
    assert spec.loader is not None
    rows = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "rows", rows)
    spec.loader.exec_module(rows)
    stage = Stage(rows.DISPATCH)
    monkeypatch.setattr(rows, "DISPATCH", stage)
    monkeypatch.setattr(rows, "GPU", stage.backend())
    options = Options(pace=Pace(3, 1, 6), peers=())
    made = BoundaryChain.make(rows.serving(16, "float16"), torch.device("cpu"), rows.SEED, calls=1)
    evidence = rows.OfTokens(made, 16)
    found = rows.of_tokens(evidence, "float16", torch.device("cpu"), watch, options)
    assert set(found["milliseconds"]) == {"replicated", "tensor_core"}
    assert set(found["relative_l2"]) == {"replicated", "tensor_core", "torch eager"}
    assert found["notes"][0].startswith(
        "a replay of two_rows's captured graph left"
    )  # not the control's bits
    text = "\n".join(rows.lines(16, json.loads(json.dumps(found)), made.calls))
    assert "tensor_core (tolerance)         1.0000    62.500    2.00x the control" in text
    served = {n: [c.name for c in rows.serving(n, "float16").candidates] for n in (64, 512)}
    assert served == {
        64: ["replicated", "tensor_core"],
        512: ["replicated", "tensor_core", "tensor_core_narrow"],
    }
