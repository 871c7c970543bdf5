"""Ranks that talk, verified on the emulator, and as on a GPU by local ranks that the emulator runs."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernwright.emulator import candidate_program
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.evidence.commands import run_fuzz, run_verify
from kernwright.evidence.emulated import emulated
from kernwright.evidence.family_evidence import Case, serves
from kernwright.evidence.fuzz import fuzz_workload
from kernwright.evidence.rank_context import RankContext, absence
from kernwright.evidence.ranks import RankJob
from kernwright.evidence.session import NotHere, Session
from kernwright.evidence.verify import Wanted, verify_one
from kernwright.evidence.verify_emulated import verify_emulated
from kernwright.families.all_reduce.evidence import EVIDENCE
from kernwright.families.all_reduce.op import AllReduce
from kernwright.runtime import bind
from kernwright.runtime.errors import LoadError
from kernwright.runtime.plan import Plan
from kernwright.specs import find_workspace
from kernwright.table import Build

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cache(cubin_cache, tmp_path, monkeypatch):
    """Nothing is remembered at first; what the emulator has compiled is shared."""
    (cubin_cache / "emulator").mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "emulator").symlink_to(cubin_cache / "emulator")
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def session(mini_root):
    return Session.open(find_workspace(mini_root))


def work_of(session, dtype, ranks):
    return next(
        work
        for work in session.workloads([])
        if (work.fields["dtype"], work.fields["world_size"]) == (dtype, ranks)
    )


def mutated(session, work, name, edits, root):
    """A dispatch of one workload and one candidate, in whose text something is replaced."""
    candidate = next(entry for entry in work.candidates if entry.name == name)
    arch, build = list(candidate.builds.items())[-1]
    text = (session.dispatch.table.root / build.source).read_text()
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (root / f"{digest[:8]}.cu").write_text(text)
    work = replace(
        work, candidates=(replace(candidate, builds={arch: Build(digest, f"{digest[:8]}.cu", digest)}),)
    )
    dispatch = bind(replace(session.dispatch.table, root=root, workloads=(work,)))
    AllReduce(dispatch)
    return dispatch, work


@pytest.mark.parametrize(("dtype", "ranks"), [("float32", 2), ("float16", 8)])
def test_every_candidate_passes_and_is_remembered(session, tmp_path, dtype, ranks):
    work = work_of(session, dtype, ranks)
    results = verify_emulated(session.dispatch, EVIDENCE, work, Wanted(), tmp_path)
    assert [(result.candidate, result.failure) for result in results] == [
        (name, "") for name in ("tagged", "narrow", "one", "two", "two_narrow")
    ]
    for result in results:
        assert result.passed
        assert (result.gate.cases, result.against, result.on) == (3, "array oracle", "emulator")
        assert result.gate.values > 3 * ranks
    again = verify_emulated(session.dispatch, EVIDENCE, work, Wanted(), tmp_path)
    assert [(entry.cached, entry.gate) for entry in again] == [(True, entry.gate) for entry in results]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_all_cases(session, tmp_path, dtype, ranks):
    work = work_of(session, dtype, ranks)
    names = tuple(case.name for case in EVIDENCE.cases(work))
    results = verify_emulated(session.dispatch, EVIDENCE, work, Wanted(cases=names), tmp_path)
    assert [result.failure for result in results] == [""] * 5


def test_each_rank_has_its_own_tensors_and_all_a_channel_with_the_case_in_it(session):
    work = work_of(session, "bfloat16", 4)
    candidate = work.candidates[0]
    case = Case("symmetric", "wrap", 3, 400)
    run = emulated(session.dispatch, EVIDENCE, work, candidate, "sm_70", case)
    assert [launch.rank for launch in run.program.launches] == [0, 1, 2, 3]
    assert {launch.grid for launch in run.program.launches} == {(3, 1, 1)}
    channels = run.program.buffers["channels"]
    offsets = work.channel
    for rank, channel in enumerate(channels):
        held = channel.array[offsets["inputs"] : offsets["inputs"] + 400].view(np.uint16)
        assert np.array_equal(held, run.inputs["inputs"][rank].view(torch.int16).numpy().view(np.uint16))
        assert channel.array[offsets["ticket"] :][:8].tobytes() == bytes(4) + b"\xff" * 4
    assert [buffer.array.nbytes for buffer in run.program.buffers["outputs"]] == [400] * 4
    assert len({expected.tobytes() for expected in run.expected.values()}) == 1


MUTANTS = {
    "another order of the ranks": (
        "one",
        {
            "elements_of(words[0])": "elements_of(words[WORLD_SIZE - 1])",
            "elements_of(words[rank])": "elements_of(words[WORLD_SIZE - 1 - rank])",
        },
        r"Mismatch: \d+ of \d+ elements of outputs of rank 0; element \d+ is 0x",
    ),
    "rounded after every rank": (
        "two",
        {
            "sum = sum + to_float(elements_of(words[rank]).value[i])": (
                "sum = to_float(to_storage(sum + to_float(elements_of(words[rank]).value[i])))"
            )
        },
        r"Mismatch: \d+ of \d+ elements of outputs of rank 0; element \d+ is 0x",
    ),
    "another rank's tensor": (
        "tagged",
        {"inputs.of[blockIdx.y]": "inputs.of[rank_base + blockIdx.y]"},
        "another rank's tensor",
    ),
    "a last word cut off": (
        "tagged",
        {"(numel + ELEMENTS - 1) / ELEMENTS": "numel / ELEMENTS"},
        r"Unwritten: no thread writes \d+ elements of the output outputs of rank 0",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_fail_with_a_sentence_and_an_artefact(session, tmp_path, mutant):
    name, edits, sentence = MUTANTS[mutant]
    dispatch, work = mutated(session, work_of(session, "bfloat16", 4), name, edits, tmp_path)
    case = max(
        (c for c in EVIDENCE.cases(work) if c.kind == "staged" and serves(work, work.control, c)),
        key=lambda case: (case.inputs == "mixed", case.at % 4, case.at),
    )
    (result,) = verify_emulated(dispatch, EVIDENCE, work, Wanted(cases=[case.name]), tmp_path / "failures")
    assert not result.passed
    assert re.search(sentence, result.problem), result.problem
    told = json.loads((result.artefact / "failure.json").read_text())
    assert told["command"].endswith(f"--arch sm_90 --case staged:mixed:1:{case.at}")
    assert told["case"] == {"kind": "staged", "inputs": "mixed", "seed": 1, "at": case.at}


def test_fuzzing_finds_a_barrier_that_is_gone(session, tmp_path):
    work = work_of(session, "float32", 2)
    right = fuzz_workload(session.dispatch, EVIDENCE, work, ["one"], 4, 1, sanitize=False)
    assert [(result.kind, result.problems) for result in right] == [
        ("staged", ()),
        ("sum2", ()),
        ("symmetric", ()),
    ]
    dispatch, work = mutated(session, work, "one", {"meet(channels, call, START)": "true"}, tmp_path)
    found = fuzz_workload(dispatch, EVIDENCE, work, ["one"], 12, 1, sanitize=False)
    assert [bool(result.problems) for result in found][:2] == [True, True]


def test_a_candidate_that_no_payload_takes_is_skipped_with_the_reason(session, tmp_path):
    work = work_of(session, "float16", 2)
    work = replace(work, parts=tuple(part for part in work.parts if part.route != "two_stage"))
    results = verify_emulated(session.dispatch, EVIDENCE, work, Wanted(["one", "two"]), tmp_path)
    assert [result.passed for result in results] == [True, False]
    assert (results[1].candidate, results[1].failure) == ("two", "")
    assert results[1].skipped == (
        f"no payload_bytes of {work.label} takes route two_stage, by the thresholds of spec mini; candidate two has "
        "nothing to show"
    )


class Recorded:
    """A CUDA graph that isn't one: a replay runs again what was captured."""

    current = None

    def __init__(self):
        self.runs = []

    def replay(self):
        for run in self.runs:
            run()


@pytest.fixture
def local(session, monkeypatch):
    """Verify in the way of a GPU, on local ranks that the emulator runs."""

    @contextmanager
    def capturing(graph, stream):
        assert stream == "a stream"
        Recorded.current = graph
        yield
        Recorded.current = None

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "a stream")
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    run = Plan.run

    def recorded(self, tensors):
        if Recorded.current is not None:
            Recorded.current.runs.append(lambda: run(self, tensors))
        else:
            run(self, tensors)

    monkeypatch.setattr(Plan, "run", recorded)

    def verified(work, name, cases, dispatch=None, comm=None, failures=None):
        dispatch = dispatch or session.dispatch
        ranks = work.fields["world_size"]
        comm = comm or EmulatedCommunicator(dispatch.table, ranks, specs=[work.spec])
        candidate = next(entry for entry in work.candidates if entry.name == name)
        place = RankContext(CPU, comm)
        return verify_one(dispatch, EVIDENCE, work, candidate, "sm_90", place, cases, failures), comm

    return verified


@pytest.mark.parametrize(
    ("dtype", "ranks", "name"), [("float32", 2, "tagged"), ("float32", 2, "one"), ("float16", 4, "two")]
)
def test_local_ranks_eagerly_and_replayed(session, local, dtype, ranks, name):
    work = work_of(session, dtype, ranks)
    (result, comm) = local(work, name, list(EVIDENCE.cases(work)))
    assert (result.failure, result.against) == ("", "array oracle")
    own = [
        c for c in EVIDENCE.cases(work) if any(x.name == name and serves(work, x, c) for x in work.candidates)
    ]
    assert result.gate.cases == len(own) > 30
    item = 4 if dtype == "float32" else 2
    # Eagerly, replayed, and called six times, or five, where a call has to give its outputs.
    times = {case: 7 if case.kind == "symmetric" else 8 for case in own}
    assert result.gate.values == sum(times[case] * ranks * case.at // item for case in own)
    assert result.gate.ways == ("eager", "graph", "calls")
    comm.check()


def test_a_wrap_is_in_the_middle_of_the_runs(session, local):
    """The channel is as after the last epoch; the eager run is the first with a small one, the replay the next."""
    work = work_of(session, "bfloat16", 2)
    case = Case("staged", "wrap", 1, 300)
    (result, comm) = local(work, "tagged", [case])
    assert result.passed
    tickets = comm.channel("mini").memory[:, work.channel["ticket"] :][:, :8].contiguous().view(torch.int32)
    assert tickets.tolist() == [[0, 3 + 6], [0, 3 + 6]]  # six calls follow


def test_a_wrong_value_of_a_local_rank_is_found_and_left(session, local, tmp_path):
    work = work_of(session, "float32", 2)
    edits = {"sum = sum + to_float": "sum = sum - to_float"}
    dispatch, work = mutated(session, work, "one", edits, tmp_path)
    case = Case("staged", "normal", 11, 600)
    (result, _) = local(work, "one", [case], dispatch, failures=tmp_path / "failures")
    assert re.fullmatch(
        r"\d+ of 2400 values differ; outputs\[\d+\] is \S+ \(0x[0-9a-f]{8}\), expected \S+ \(0x[0-9a-f]{8}\), case "
        r"staged:normal:11:600, eager",
        result.problem,
    )
    with np.load(result.artefact / "inputs.npz") as held:
        assert held["inputs"].shape == (2, 150)
        assert held["inputs"].dtype == np.int32


def test_a_channel_that_broke_is_a_failure_and_made_anew(session, local):
    work = work_of(session, "bfloat16", 2)
    comm = EmulatedCommunicator(session.dispatch.table, 2, specs=["mini"])
    record = work.channel["record"]
    comm.channel("mini").memory[1, record : record + 32].view(torch.int32)[:7] = torch.tensor(
        [1, 1, 0, 2, 7, 5, 1]
    )
    ticket = comm.channel("mini").memory[1, work.channel["ticket"] :][:8].view(torch.int32)
    ticket[0] = -(2**31)  # FAILED, which the kernel that reports sets
    (result, _) = local(work, "tagged", [Case("staged", "normal", 11, 300)], comm=comm)
    assert not result.passed
    assert "values differ" in result.problem  # a failed rank gives NaN
    comm.check()
    (again, _) = local(work, "tagged", [Case("staged", "normal", 11, 300)], comm=comm)
    assert again.passed


def test_local_ranks_that_do_not_fit_are_skipped_with_the_reason(session, local, monkeypatch):
    def full(*_args):
        raise LoadError("the CTAs of kernel x wait for each other, and 16 of 32 threads are launched")

    work = work_of(session, "bfloat16", 2)
    comm = EmulatedCommunicator(session.dispatch.table, 2, specs=["mini"])
    monkeypatch.setattr(comm, "load", full)
    (result, _) = local(work, "tagged", list(EVIDENCE.cases(work)), comm=comm)
    assert (result.passed, result.failure) == (False, "")
    assert result.skipped.startswith(
        f"tagged of {work.label} can't run as local ranks: the CTAs of kernel x wait"
    )


def test_who_can_run_where(session):
    work = work_of(session, "bfloat16", 4)
    alone, pair, four = (RankJob(0, size, frozenset()) for size in (1, 2, 4))
    assert absence(work, alone, together=False) is None
    assert absence(work, four, together=True) is None
    assert absence(work, alone, together=True) == (
        f"{work.label} of mini has 4 ranks, and this job one process; start it with `torchrun --nproc-per-node 4 -m "
        "kernwright ...` on 4 GPUs"
    )
    assert "has 4 ranks, and this job 2 processes" in absence(work, pair, together=False)


def test_the_commands_take_ranks(mini_root):
    results = run_verify(find_workspace(mini_root), "emulator", ["bf16-w56-tp2"], ["one"], [], [], quiet=True)
    assert [(result.workload, result.passed) for result in results] == [("bf16-w56-b4to2048-tp2", True)]
    found = run_fuzz(find_workspace(mini_root), "fp32-w56-tp2", ["tagged"], 2, 0, sanitize=False, quiet=True)
    assert [(result.kind, result.seeds, result.problems) for result in found] == [
        (kind, 2, ()) for kind in ("staged", "sum2", "symmetric")
    ]


def test_a_family_without_evidence_is_skipped_and_alone_nothing_is_left(mini_root, monkeypatch):
    from kernwright.evidence import commands
    from kernwright.evidence.family_evidence import NoEvidence

    real = commands.evidence_of
    seen = []

    def first_has_none(family):
        seen.append(family)
        if len(seen) == 1:
            raise NoEvidence("family all_reduce has no module")
        return real(family)

    monkeypatch.setattr(commands, "evidence_of", first_has_none)
    workspace = find_workspace(mini_root)
    both = run_verify(workspace, "emulator", ["fp16-w56-tp2", "bf16-w56-tp2"], ["one"], [], [], quiet=True)
    assert [(result.skipped, result.passed) for result in both] == [
        ("family all_reduce has no module", False),
        ("", True),
    ]
    seen.clear()
    with pytest.raises(NotHere, match=r"^family all_reduce has no module$"):
        run_verify(workspace, "emulator", ["fp16-w56-tp2"], ["one"], [], [], quiet=True)


def test_sizes_that_do_not_fit_a_candidate_are_refused(session):
    work = work_of(session, "bfloat16", 2)
    tensors = {"inputs": np.zeros((2, 8), np.uint16)}
    request = session.dispatch.request(work, "staged", 400)
    signature = request.signature.of_one_rank(work.control.arguments, 2)
    channels = [np.zeros(work.channel["size"], np.uint8) for _ in range(2)]
    with pytest.raises(ValueError, match=r"inputs has 32 bytes; bfloat16 of shape \(200,\) has 400"):
        candidate_program(
            session.dispatch.table.root,
            work.control,
            "sm_90",
            "staged",
            signature,
            tensors,
            channels=channels,
            constants=request.constants,
        )
