"""A bench without a GPU: graphs, samples, exactness gate and NVML are scripted, everything else is as always."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from kernwright.evidence.bench import NO_LEDGER, Bench, Ledger, bench
from kernwright.evidence.benchmark_run import GpuBackend, GraphEmpty, Options
from kernwright.evidence.cells import Cell
from kernwright.evidence.external import ExternalUnusable
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.gate import CaseMismatch, Gate
from kernwright.evidence.health import Monitor
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.session import Session
from kernwright.evidence.timing import Pace
from kernwright.evidence.verify import NothingToVerify, Verification
from kernwright.families.hyper_connection.baselines import eager
from kernwright.families.hyper_connection.evidence import BoundaryChain, HyperConnectionEvidence, shape_of
from kernwright.ledger import RecordFile, check, write_record
from kernwright.ledger.names import record_name
from kernwright.runtime.device import fake
from kernwright.specs import find_workspace

LABEL = "fp16-hc5-h192-n1-r72-tp1"
H200 = fake("sm_90", 132, "NVIDIA H200")
WRONG = Gate(
    3, 100, 7, CaseMismatch(Case("boundary", "ties", 1), "graph", "x", (0, 3), 1.0, 0x3C00, 2.0, 0x4000)
)
PEERS = ("torch eager", "a copy", "something else")


class Chain(BoundaryChain):
    def read(self):
        return lambda: None


class FamilyEvidence(HyperConnectionEvidence):
    """Two boundaries instead of 96, and peers that are nothing to compile."""

    def __init__(self):
        self.made = None

    def chain(self, workload, device, seed):
        self.made = self.made or BoundaryChain.make(workload, device, seed, calls=2)
        return Chain(self.made.shape, self.made.first, self.made.weights)

    def baselines(self, workload):
        torch_eager = super().baselines(workload)["torch eager"]
        return {
            "torch eager": torch_eager,
            "a copy": torch_eager,
            "something else": lambda _chain: lambda inputs: [tensor + 1 for tensor in inputs[:3]],
        }


class Graph:
    """A run that is done again at every replay, into the same tensors, unless it is one of nothing."""

    def __init__(self, name, run, empty):
        self.name, self.result, self._run, self.empty = name, run(), run, empty

    def replay(self):
        if self.empty:
            return
        for kept, again in zip(self.result or (), self._run() or (), strict=True):
            for tensor, fresh in zip(kept, again, strict=True):
                tensor.copy_(fresh)


@dataclass
class Stage:
    """What happens: milliseconds of each entry, gates that fail, graphs that hold no kernel."""

    dispatch: object
    times: dict[str, float]
    gates: dict[str, Gate] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    breaking: str = ""
    """Whose graph does nothing any more once it was timed."""
    pids: tuple[int, ...] = ()
    called: str = "read floor"
    order: list[str] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    anew = property(lambda self: self.blocks.append)

    table = property(lambda self: self.dispatch.table)

    def plan_named(self, label, candidate, _arch, kind, _device, *, comm, at):
        self.plans.append(candidate)
        assert (comm, at) == (None, None)
        workload = next(entry for entry in self.table.workloads if entry.name == label)
        signature = self.dispatch.signature(workload, kind)
        boundary = eager(shape_of(workload))

        def call(inputs):
            self.called = candidate
            return boundary(inputs)

        call.signature = signature
        return call

    def verify(self, _dispatch, _family_evidence, workload, candidate, arch, _device, cases, _failures):
        assert len(cases) > 10
        gate = self.gates.get(candidate.name, Gate(len(cases), 1000, 0, None))
        against = "torch reference" if candidate is workload.control else f"control {workload.control.name}"
        problem = str(gate.first) if gate.first else ""
        return Verification(workload.label, candidate.name, arch, against, gate, (1,), 0.1, problem)

    def capture(self, run):
        self.called = "other"
        run()
        return Graph(self.called, run, self.called in self.empty)

    def sample(self, graph, _replays):
        self.order.append(graph.name)
        graph.empty = graph.empty or graph.name == self.breaking
        return self.times[graph.name] * (1 + 0.0001 * (len(self.order) % 5))

    def watch(self):
        nvml = SimpleNamespace(
            NVML_CLOCK_SM=1,
            NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
            NVML_VOLATILE_ECC=0,
            nvmlDeviceGetComputeRunningProcesses=lambda _: [
                SimpleNamespace(pid=pid) for pid in (1, *self.pids)
            ],
            nvmlDeviceGetClockInfo=lambda *_: 1980,
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0,
            nvmlDeviceGetTotalEccErrors=lambda *_: 0,
            nvmlSystemGetDriverVersion=lambda: "570.1",
        )
        return Monitor(nvml, "handle", frozenset({1}))


@pytest.fixture(autouse=True)
def _cache(cubin_cache, monkeypatch):
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))


@pytest.fixture(scope="module")
def session(odd_root):
    return Session.open(find_workspace(odd_root))


@pytest.fixture
def workload(session):
    return next(entry for entry in session.workloads([]) if entry.label == LABEL)


@pytest.fixture
def stage(session):
    times = {"replicated": 2.0, "passes": 1.5, "teams": 2.4, "other": 3.0}
    return Stage(session.dispatch, times)


@pytest.fixture(scope="module")
def evidence():
    return FamilyEvidence()


@pytest.fixture
def measure(session, workload, stage, evidence):
    def measured(
        candidates=(), workload=workload, device=H200, evidence=evidence, ledger=NO_LEDGER, **options
    ) -> Bench:
        return bench(
            stage,
            evidence,
            workload,
            Cell(RankContext(torch.device("cpu"))),
            stage.watch(),
            candidates,
            Options(**({"pace": Pace(groups=3, replays=5, most=4), "blocks": 3, "peers": ()} | options)),
            backend=GpuBackend(lambda _: device, stage.verify, stage.capture, stage.sample, stage.anew),
            ledger=ledger,
        )

    return measured


def verdicts(result):
    return {record.candidate: record.verdict for record in result.records}


def test_samples_become_records_that_the_ledger_accepts(measure, session, workload, tmp_path):
    result = measure()
    assert verdicts(result) == {"replicated": "no_difference", "passes": "admitted", "teams": "rejected"}
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []
    for record in result.records:
        assert write_record(tmp_path, record).is_file()
        arch = "sm_90"
        candidate = next(entry for entry in workload.candidates if entry.name == record.candidate)
        assert record.source_sha256 == candidate.builds[arch].sha256
        assert record.control_source_sha256 == workload.control.builds[arch].sha256
        assert record.code_sha256 == candidate.builds[arch].code
        assert record.control_code_sha256 == workload.control.builds[arch].code
        assert (record.family, record.spec, record.workload) == ("hyper_connection", "odd_passes", LABEL)
        assert (record.device.arch, record.device.sm_count, record.device.name) == (
            "sm_90",
            132,
            "NVIDIA H200",
        )
        assert record.toolkit.driver == "570.1"
        assert record.exactness.exact
    assert len({record.cubin_sha256 for record in result.records}) == 3
    assert len({record.machine_code_sha256 for record in result.records} - {None}) == 3
    passes = result.records[1]
    assert passes.gain == pytest.approx(0.25, abs=1e-3)
    assert passes.exactness.against == "control replicated"
    assert (passes.timing.scope, passes.timing.calls, passes.timing.replays) == ("chain", 2, 5)
    assert (passes.timing.bytes, passes.timing.flops) == (result.bytes, result.flops)
    assert passes.timing.floor_ms == pytest.approx(3.0, rel=1e-3)
    assert len(passes.timing.groups) == 9
    assert result.records[0].timing is None
    assert result.records[0].exactness.against == "torch reference"


class Chains(FamilyEvidence):
    """Counts chains, and those that are still there when one more is made."""

    def __init__(self):
        super().__init__()
        self.chains, self.alive = [], []

    def chain(self, workload, device, seed):
        gc.collect()
        self.alive.append(sum(chain() is not None for chain, _ in self.chains))
        chain = BoundaryChain.make(workload, device, seed, calls=2)
        made = Chain(chain.shape, chain.first, chain.weights)
        self.chains.append((weakref.ref(made), seed))
        return made


def test_everything_is_allocated_and_captured_anew_for_each_block(measure, stage):
    evidence = Chains()
    result = measure(evidence=evidence, blocks=4)
    assert [seed for _, seed in evidence.chains] == [500, 501, 502, 503]  # inputs and weights
    assert evidence.alive == [0, 1, 1, 1]  # the first block stays, so that no other lies where it does
    assert (
        stage.plans == ["replicated", "passes", "teams"] * 4
    )  # plans with their scratch and state, and graphs
    assert stage.blocks == [1, 2, 3]
    for record in result.records[1:]:
        assert [group.block for group in record.timing.groups] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
        assert "over 4 valid of 4 blocks" in record.reason
    timed = [name for name in stage.order if name in ("passes", "teams")]
    changes = [name for name, last in zip(timed, [None, *timed], strict=False) if name != last]
    assert changes == ["passes", "teams"] * 4  # all candidates of a block before the next one


def test_two_blocks_are_no_verdict(measure):
    result = measure(["passes"], blocks=2)
    assert verdicts(result)["passes"] == "invalid"
    assert result.records[1].reason == "2 of 2 blocks valid, 3 are needed: take more blocks."


def test_who_would_displace_another_is_timed_against_it(measure, stage):
    asked, kept = [], []

    def displaced(record, others):
        asked.append((record.candidate, [other.candidate for other in others]))
        return "teams" if record.candidate == "passes" else ""

    result = measure(ledger=Ledger(kept.append, displaced))
    assert asked == [("teams", []), ("passes", ["teams"])]  # the least gain first
    passes, teams = result.records[1:]
    assert teams.head_to_head is None
    both = passes.head_to_head
    assert both.against == "teams"
    assert both.code_sha256 == teams.code_sha256
    assert [group.block for group in both.timing.groups] == [0] * 3 + [1] * 3 + [2] * 3
    assert sum(both.timing.groups[0].control) / 2 == pytest.approx(2.4, rel=1e-3)
    assert sum(both.timing.groups[0].candidate) / 2 == pytest.approx(1.5, rel=1e-3)
    assert {record.candidate for record in kept} == {"replicated", "passes", "teams"}
    assert passes in kept
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []
    assert stage.blocks == [1, 2] * 2


def test_a_run_of_both_that_fails_leaves_the_record_without_it(measure, stage):
    """The candidate keeps its verdict, and the old winner its place."""
    times = dict(stage.times)

    def displaced(record, _others):
        stage.empty = ("teams",)
        return "teams" if record.candidate == "passes" else ""

    result = measure(ledger=Ledger(displaced=displaced))
    assert stage.times == times
    assert verdicts(result)["passes"] == "admitted"
    assert result.records[1].head_to_head is None
    (note,) = result.notes
    assert note.startswith("passes wasn't compared with teams: a replay of teams's captured graph left ")


def test_the_cost_model_counts_every_weight_once(measure):
    rows, width, rank = 72 + 5, 5 * 192, 72
    result = measure(["teams"])
    assert result.bytes == 2 * 2 * (rows * width + width * rank + width)
    assert result.flops == 2 * 2 * (rows * width + width * rank)


def test_bars_are_medians_and_lines_say_the_verdicts(measure):
    result = measure(["passes"])
    assert list(result.bars()) == ["passes", "replicated", "read floor"]
    assert result.bars()["replicated"] == pytest.approx(2.0, rel=1e-3)
    size, control, passes = result.lines()
    assert size.startswith("2 calls, 0.001 GB, 0.00 GFLOP; read at 0.00 TB/s")
    assert control.startswith("replicated: no_difference. The control itself, exact in ")
    assert passes.startswith("passes: admitted. +25.")
    document = result.to_json()
    assert (document["workload"], document["scope"], document["calls"]) == (LABEL, "chain", 2)
    assert [entry["verdict"] for entry in document["records"]] == ["no_difference", "admitted"]
    assert document["milliseconds"] == result.bars()


def test_names_select_candidates_and_the_control_is_always_there(measure):
    assert list(verdicts(measure(["teams"]))) == ["replicated", "teams"]
    assert list(verdicts(measure(["replicated"]))) == ["replicated"]
    with pytest.raises(
        NothingToVerify, match="its candidates are replicated, passes, teams, built for sm_70, "
    ):
        measure(["pases"])


def test_a_candidate_without_a_build_for_this_gpu_is_left_out(measure, workload):
    control, passes, teams = workload.candidates
    older = replace(passes, builds={"sm_70": passes.builds["sm_70"]})
    assert list(verdicts(measure(workload=replace(workload, candidates=(control, older, teams))))) == [
        "replicated",
        "teams",
    ]


def test_a_wrong_candidate_is_not_timed(measure, stage):
    stage.gates["passes"] = WRONG
    result = measure()
    assert verdicts(result)["passes"] == "rejected"
    record = result.records[1]
    assert record.timing is None
    assert (record.exactness.mismatches, record.exactness.first) == (7, str(WRONG.first))
    assert "passes" not in stage.order
    assert verdicts(result)["teams"] == "rejected"


def test_with_a_wrong_control_nothing_is_measured(measure, stage):
    """Who equals a wrong control isn't right."""
    stage.gates["replicated"] = WRONG
    result = measure(peers=PEERS)
    assert verdicts(result) == {"replicated": "rejected"}
    assert stage.order == []
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []


def test_a_graph_without_the_kernel_is_noticed(measure, stage):
    stage.empty = ("teams",)
    result = measure()
    assert verdicts(result) == {"replicated": "no_difference", "passes": "admitted", "teams": "rejected"}
    record = result.records[2]
    assert record.timing is None
    values = 2 * (5 * 192 + 192 + 5)
    assert record.exactness.first == (
        f"a replay of teams's captured graph left {values} values that aren't the control's; it isn't timed"
    )
    assert "teams" not in stage.order
    assert check([RecordFile(record_name(record), record)]) == []


def test_results_are_compared_once_more_after_the_timing(measure, stage):
    stage.breaking = "passes"
    result = measure(["passes"])
    assert "passes" in stage.order
    assert verdicts(result)["passes"] == "rejected"
    assert result.records[1].timing is None
    assert "that aren't the control's" in result.records[1].reason


def test_a_control_whose_graph_is_empty_stops_the_run(measure, stage):
    stage.empty = ("replicated",)
    with pytest.raises(GraphEmpty, match=r"^a replay of replicated's captured graph left"):
        measure()


def test_a_contended_gpu_gives_no_verdict(measure, stage):
    stage.pids = (77,)
    result = measure()
    assert verdicts(result) == {"replicated": "no_difference", "passes": "invalid", "teams": "invalid"}
    record = result.records[1]
    assert len(record.timing.groups) == 12
    assert record.reason == (
        "0 of 3 blocks valid, 3 are needed; the commonest problem, in 12 groups: foreign process on the GPU: 77."
    )
    assert result.bars() == {}
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []


def test_peers_are_timed_if_they_compute_the_same(measure):
    result = measure(["passes"], peers=None)
    assert set(result.peers) == {"torch eager", "a copy"}
    assert all(len(samples) == 3 for samples in result.peers.values())
    assert set(result.records[1].timing.baselines) == {"torch eager", "a copy"}
    assert set(result.bars()) == {"torch eager", "a copy", "passes", "replicated", "read floor"}


def test_peers_by_name_or_none_at_all(measure):
    assert set(measure(["replicated"], peers=("a copy",)).peers) == {"a copy"}
    assert measure(["replicated"], peers=()).peers == {}


@pytest.fixture
def today(tmp_path, monkeypatch):
    (tmp_path / "kernels_of_today.py").write_text(
        "import torch\n"
        "from kernwright.families.hyper_connection.baselines import eager\n"
        "from kernwright.families.hyper_connection.oracle_shape import OracleShape\n"
        "TREES = {name: (1, 1, 1) for name in ('norm', 'down', 'up')}\n"
        "SHAPE = OracleShape('float16', 5, 192, 72, 1, 'per_branch', 1e-6, trees=TREES)\n"
        "def boundary(*inputs): return eager(SHAPE)(inputs)\n"
        "def wrong(x, block, injection, *_): return x + 1, block + 1, injection + 1\n"
        "def short(x, *_): return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("today")
def test_an_external_control_is_compared_in_words(measure, stage):
    text = "kernels_of_today:boundary"
    result = measure(["passes"], against=text)
    assert set(result.against) == {"replicated", "passes"}
    assert result.against["passes"].startswith(f"{text}: +50.")
    assert result.against["replicated"].startswith(f"{text}: +33.")
    assert result.lines()[-1].startswith(f"passes against {text}: +50.")
    assert verdicts(result)["passes"] == "admitted"


@pytest.mark.usefixtures("today")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "wrong",
            r"doesn't compute hyper_connection: its results are .* \(relative L2\) from the control's, ",
        ),
        ("short", r"gives torch.float16 of shape \(1, 960\); the op's outputs are torch.float16 of shape "),
    ],
)
def test_an_external_control_that_computes_something_else_is_refused(measure, name, sentence):
    with pytest.raises(ExternalUnusable, match=f"^kernels_of_today:{name} {sentence}"):
        measure(against=f"kernels_of_today:{name}")
