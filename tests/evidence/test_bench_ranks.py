"""Cells, records of parts and tuning, on ranks that the emulator runs: times are scripted, all else is as always."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace

import pytest
import torch
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.evidence.bench import bench
from kernwright.evidence.benchmark_run import GpuBackend, GraphEmpty, Options
from kernwright.evidence.cells import Cell, cells, representative
from kernwright.evidence.crossing import Crossings, Curve
from kernwright.evidence.gate import Gate
from kernwright.evidence.health import Snapshot
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.session import NotHere, Session
from kernwright.evidence.tensors import as_torch
from kernwright.evidence.timing import Pace
from kernwright.evidence.tune import Tuned, tune, write, write_curve
from kernwright.evidence.verify import Verification
from kernwright.families.all_reduce.evidence import AllReduceEvidence, Calls
from kernwright.families.all_reduce.payloads import payloads
from kernwright.generated.dispatch import TABLE
from kernwright.generator import plan_generation, write_generation
from kernwright.ledger import RecordFile, check, write_record
from kernwright.ledger.names import record_name
from kernwright.runtime.device import fake
from kernwright.specs import SpecError, find_workspace, load_spec
from kernwright.table import Part

CPU = torch.device("cpu")
H200 = fake("sm_90", 132, "NVIDIA H200")
PACE = Pace(groups=3, replays=3, most=4)


@dataclass(frozen=True)
class LocalCalls(Calls):
    """Two calls of all ranks, as local ranks make them."""

    def read(self):
        return lambda: None


class FamilyEvidence(AllReduceEvidence):
    def chain_of_rank(self, workload, device, seed, _rank, at):
        dtype, ranks = str(workload.fields["dtype"]), int(workload.fields["world_size"])
        numel = at // (4 if dtype == "float32" else 2)
        made = [payloads(dtype, "normal", seed + index, ranks, numel).reshape(-1) for index in range(2)]
        return LocalCalls(tuple(as_torch(bits, dtype, device) for bits in made))

    def baselines(self, workload):
        ranks = int(workload.fields["world_size"])

        def summed(inputs):
            total = inputs[0].view(ranks, -1).float().sum(0).to(inputs[0].dtype)
            return [total.repeat(ranks)]

        return {"a sum": lambda _chain: summed, "nothing": lambda _chain: lambda inputs: [inputs[0] * 3]}


class Graph:
    """A run that is done again at every replay, into the same tensors."""

    def __init__(self, name, run, empty=False):
        self.name, self.result, self._run, self.empty = name, run(), run, empty

    def replay(self):
        if not self.empty:
            for kept, again in zip(self.result or (), self._run() or (), strict=True):
                for tensor, fresh in zip(kept, again, strict=True):
                    tensor.copy_(fresh)


class Watch:
    driver = "570.1"

    def __init__(self, foreign=()):
        self._foreign = foreign

    def snapshot(self):
        return Snapshot(foreign=self._foreign, sm_mhz=1980, throttles=0, ecc_errors=0)


@dataclass
class Stage:
    """Milliseconds of a run by candidate, gates that fail, graphs that do nothing."""

    dispatch: object
    times: dict
    gates: dict = field(default_factory=dict)
    empty: tuple = ()
    called: str = ""

    table = property(lambda self: self.dispatch.table)

    def plan_named(self, label, candidate, arch, kind, device, *, comm, at):
        plan = self.dispatch.plan_named(label, candidate, arch, kind, device, comm=comm, at=at)

        def call(inputs):
            self.called = candidate
            return plan(inputs)

        return call

    def verify(self, _dispatch, _family_evidence, workload, candidate, arch, place, cases, _failures):
        assert place.comm is not None
        assert len(cases) > 100
        gate = self.gates.get(candidate.name, Gate(len(cases), 1000, 0, None))
        return Verification(workload.label, candidate.name, arch, "array oracle", gate, (1,), 0.1)

    def capture(self, run):
        self.called = "other"
        run()
        return Graph(self.called, run, self.called in self.empty)

    def sample(self, graph, _replays):
        found = self.times[graph.name]
        size = graph.result[0][0].numel() if graph.result else 0
        return found(size) if callable(found) else found

    @property
    def backend(self):
        return GpuBackend(lambda _: H200, self.verify, self.capture, self.sample, lambda _block: None)


@pytest.fixture(autouse=True)
def _cache(cubin_cache, monkeypatch):
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))


@pytest.fixture
def root(mini_root, tmp_path):
    """A copy to write to."""
    return shutil.copytree(mini_root, tmp_path / "ranks")


@pytest.fixture
def session(mini_root):
    return Session.open(find_workspace(mini_root))


@pytest.fixture
def work(session):
    return next(w for w in session.workloads([]) if w.label == "bf16-w56-b4to2048-tp2")


@pytest.fixture
def place(session):
    return RankContext(CPU, EmulatedCommunicator(session.dispatch.table, 2, specs=["mini"]))


@pytest.fixture
def stage(session):
    times = {"tagged": 2.0, "narrow": 1.5, "one": 2.0, "two": 2.0, "two_narrow": 3.0, "other": 4.0}
    return Stage(session.dispatch, times)


@pytest.fixture
def measure(session, work, place, stage):
    def measured(part, candidates=(), **options):
        cell = list(cells(work, place, "NVIDIA H200"))[part]
        chosen = Options(**({"pace": PACE, "blocks": 3, "peers": ()} | options))
        return bench(
            stage,
            FamilyEvidence(),
            work,
            cell,
            Watch(),
            candidates,
            chosen,
            backend=stage.backend,
        )

    return measured


def test_a_part_is_timed_by_a_value_that_stands_for_it():
    for low, high, value in (
        (4, 458752, 1024),
        (65537, 131071, 92672),
        (458753, 29360128, 4194304),
        (65537, 65544, 65540),
        (65537, 65538, 65537),
        (7, 7, 7),
    ):
        assert representative(low, high) == value
    for work in TABLE.workloads:
        for part in work.parts:
            at = representative(*part.span)
            assert part.low <= at <= part.high
            assert at % 4 == 0


def test_cells_are_the_parts_of_the_device_else_those_of_all(work, place):
    found = list(cells(work, place, "NVIDIA H200"))
    assert [(cell.part.route, cell.at, cell.title(work)) for cell in found] == [
        ("tagged_words", 32, "payload_bytes 4 to 511 at 32"),
        ("one_stage", 512, "payload_bytes 512 to 1023 at 512"),
        ("two_stage", 1024, "payload_bytes 1024 to 2048 at 1024"),
    ]
    assert [cell.control(work).name for cell in found] == ["tagged", "one", "two"]
    own = replace(work, parts=(*work.parts, Part("one_stage", 4, 2048, "NVIDIA H200", measured=True)))
    (cell,) = cells(own, place, "NVIDIA H200")
    assert (cell.part.span, cell.control(own).name) == ((4, 2048), "one")
    (cell,) = cells(replace(work, parts=()), place, "NVIDIA H200")
    assert (cell.part, cell.at, cell.title(work)) == (None, 64, "payload_bytes at 64")
    assert list(cells(work, RankContext(CPU), None)) == [Cell(RankContext(CPU))]


def test_candidates_of_the_parts_route_become_records_of_the_part(measure, work, tmp_path):
    result = measure(0, peers=None)
    assert [(record.candidate, record.control, record.verdict) for record in result.records] == [
        ("tagged", "tagged", "no_difference"),
        ("narrow", "tagged", "admitted"),
    ]
    for record in result.records:
        part = record.part
        assert (part.field, part.low, part.high, part.at) == ("payload_bytes", 4, 511, 32)
        assert record.exactness.against == "array oracle"
        assert write_record(tmp_path, record).name.startswith(f"{record.candidate}.4to511.sm_90-nvidia-h200.")
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []
    assert (
        result.title
        == f"{work.label}, payload_bytes 4 to 511 at 32, on sm_90, 132 SMs, NVIDIA H200, scope chain"
    )
    assert set(result.peers) == {"a sum"}
    assert result.notes == (
        "peer nothing isn't timed: its results are "
        + result.notes[0].split("results are ")[1].split(" ")[0]
        + " (relative L2) from the control's",
    )
    (slower,) = measure(2).records[1:]
    assert (slower.candidate, slower.control, slower.verdict) == ("two_narrow", "two", "rejected")


def test_a_part_with_one_candidate_has_its_controls_record(measure):
    result = measure(1)
    assert [(record.candidate, record.verdict, record.part.span) for record in result.records] == [
        ("one", "no_difference", (512, 1023))
    ]


def test_a_wrong_value_on_any_rank_is_no_exactness(measure, stage):
    stage.gates["narrow"] = Gate(9, 1000, 2, None)  # another rank's: this one has no first mismatch to show
    record = measure(0).records[1]
    assert (record.verdict, record.exactness.mismatches, record.timing) == ("rejected", 2, None)


def test_a_graph_that_does_nothing_is_found_on_ranks_too(measure, stage):
    stage.empty = ("narrow",)
    assert measure(0).records[1].exactness.first.startswith("a replay of narrow's captured graph left")


def curve_of(tagged, one, two):
    """Microseconds by elements of both ranks, for runs of two calls."""
    return {
        "tagged": lambda n: 2e-3 * tagged(2 * n // 2),
        "one": lambda n: 2e-3 * one(2 * n // 2),
        "two": lambda n: 2e-3 * two(2 * n // 2),
    }


def test_tuning_finds_where_routes_cross_and_writes_it(session, work, place, stage, root):
    # In bytes: tagged words 1 + size / 256, one stage 4 + size / 1024, two stages 6.
    stage.times |= curve_of(lambda s: 1 + s / 256, lambda s: 4 + s / 1024, lambda _s: 6.0)
    found = tune(stage, FamilyEvidence(), work, place, Watch(), PACE, backend=stage.backend)
    assert found.curve.sizes == (1024, 1536, 2048)
    assert found.curve.times["tagged_words"] == pytest.approx((5, 7, 9))
    assert found.curve.times["one_stage"] == pytest.approx((5, 5.5, 6))
    assert found.curve.times["two_stage"] == pytest.approx((6, 6, 6))
    assert found.crossings.begins == {"one_stage": 1254, "two_stage": None}
    assert found.rows() == [
        (1024, "5.00", "5.00", "6.00", "tagged_words"),
        (1536, "7.00", "5.50", "6.00", "one_stage"),
        (2048, "9.00", "6.00", "6.00", "one_stage"),
    ]
    spec = root / "specs" / "mini.toml"
    before = spec.read_text()
    write(spec, found)
    assert spec.read_text() == before + (
        '[[threshold]]\ndevice = "NVIDIA H200"\ndtype = "bfloat16"\nworld_size = 2\none_stage = 1254\n'
        "measured = true\n"
    )
    workspace = find_workspace(root)
    write_generation(plan_generation(workspace))
    again = Session.open(workspace)
    tuned = next(w for w in again.workloads([]) if w.label == work.label)
    assert [
        (part.route, part.low, part.high, part.measured)
        for part in tuned.parts
        if part.device == "NVIDIA H200"
    ] == [("tagged_words", 4, 1253, True), ("one_stage", 1254, 2048, True)]
    curve = json.loads(write_curve(root / "figures", found).read_text())
    assert curve["crossings"]["begins"] == {"one_stage": 1254, "two_stage": None}
    assert (root / "figures" / "tune-mini-bf16-w56-b4to2048-tp2-nvidia-h200.json").is_file()


def test_tuning_again_replaces_the_entry(root):
    spec = root / "specs" / "mini.toml"
    curve = Curve((1024,), {"tagged_words": (1.0,)}, {"tagged_words": 2048})

    def tuned(**begins):
        return Tuned("mini", "x", "bfloat16", 2, "NVIDIA H200", curve, Crossings(begins, 0.0))

    write(spec, tuned(one_stage=700, two_stage=900))
    first = spec.read_text()
    write(spec, tuned(one_stage=None, two_stage=800))
    assert spec.read_text() == first.replace("one_stage = 700\n", "").replace(
        "two_stage = 900", "two_stage = 800"
    )
    (entry,) = (e for e in load_spec(spec, find_workspace(root)).spec.threshold if e.device)
    assert (entry.dtypes, entry.world_sizes, entry.measured) == (("bfloat16",), (2,), True)
    assert (entry.one_stage, entry.two_stage) == (None, 800)


def test_an_entry_that_holds_for_more_is_not_overruled(root):
    spec = root / "specs" / "mini.toml"
    with spec.open("a") as file:
        file.write('\n[[threshold]]\ndevice = "NVIDIA H200"\none_stage = 100\n')
    before = spec.read_text()
    curve = Curve((1024,), {"tagged_words": (1.0,)}, {"tagged_words": 2048})
    with pytest.raises(SpecError, match="already holds for bfloat16 at world_size 2"):
        write(spec, Tuned("mini", "x", "bfloat16", 2, "NVIDIA H200", curve, Crossings({"one_stage": 8}, 0.0)))
    assert spec.read_text() == before


def test_what_cannot_be_tuned(work, place, stage):
    with pytest.raises(NotHere, match="of mini has no thresholds to tune"):
        tune(stage, FamilyEvidence(), replace(work, parts=()), place, Watch(), PACE, backend=stage.backend)
    with pytest.raises(
        NotHere, match="of 4 groups of samples fewer than 3 were valid, the last one for: foreign"
    ):
        tune(stage, FamilyEvidence(), work, place, Watch(foreign=(77,)), PACE, backend=stage.backend)
    stage.empty = ("one",)
    with pytest.raises(GraphEmpty, match="a replay of one's captured graph left"):
        tune(stage, FamilyEvidence(), work, place, Watch(), PACE, backend=stage.backend)
