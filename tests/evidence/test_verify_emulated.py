"""Verifying on the emulator: mutants fail with a sentence and an artefact; what passed is remembered, and no more."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.session import Session
from kernwright.evidence.verify import NothingToVerify, Wanted
from kernwright.evidence.verify_emulated import essential, judges_digest, verify_emulated
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.families.hyper_connection.op import HyperConnection
from kernwright.runtime import Plan, bind
from kernwright.specs import find_workspace
from kernwright.table import Build

LABEL = "fp16-hc3-h96-n1-r20-tp1"
NORMAL = "boundary:normal:1"
WANTED = Wanted(candidates=["striding"], cases=[NORMAL])
EARLY_ROUNDING = ("sigmoid(rounded(total))", "sigmoid(total)")
NO_OP = ("  using namespace up_mix;\n", "  using namespace up_mix;\n  if (BRANCHES > 0) return;\n")
SWAPPED = (
    "fmaf(sigmoid(rounded(total)), to_float(y[branch * HIDDEN + h]), mixed)",
    "fmaf(sigmoid(rounded(total)), to_float(y[(BRANCHES - 1 - branch) * HIDDEN + h]), mixed)",
)
DIFFERS = r"Mismatch: \d+ of 96 elements of block_input of rank 0; element \d+ is 0x\w+, expected 0x\w+\."
UNWRITTEN = (
    r"Unwritten: no thread writes 96 elements of the output block_input of rank 0; the first is element 0\."
)
NOTHING_LEFT = f"nothing of {LABEL} is left to verify: its candidates are striding, built for sm_70"

DAMAGES = [
    b"",
    b"{",
    b"\xff\x00",
    b"[]",
    b"3",
    b"{}",
    b'{"values": null}',
    b'{"values": 0}',
    b'{"values": "7"}',
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory, cubin_cache):
    """A memory of our own; what the emulator has compiled is shared."""
    own = tmp_path_factory.mktemp("cache")
    (cubin_cache / "emulator").mkdir(parents=True, exist_ok=True)
    (own / "emulator").symlink_to(cubin_cache / "emulator")
    return own


@pytest.fixture(autouse=True)
def memory(cache, monkeypatch):
    """Nothing is remembered at first; objects that were compiled stay."""
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cache))
    folder = cache / "verified"
    yield folder
    folder.unlink() if folder.is_file() else shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def session(odd_root):
    return Session.open(find_workspace(odd_root))


@pytest.fixture
def verify(session, tmp_path):
    """Verify with one text replaced in the candidate, in a table and folder of its own."""

    def verified(old="", new="", evidence=EVIDENCE, wanted=WANTED):
        table = session.dispatch.table
        work = next(entry for entry in table.workloads if entry.label == LABEL)
        candidate = next(entry for entry in work.candidates if entry.name == "striding")
        arch, build = next(iter(candidate.builds.items()))
        text = (table.root / build.source).read_text()
        assert text.count(old) == 1 or not old
        mutant = text.replace(old, new) if old else text
        root = tmp_path / "mutants"
        root.mkdir(exist_ok=True)
        digest = hashlib.sha256(mutant.encode()).hexdigest()
        (root / f"{digest[:8]}.cu").write_text(mutant)
        changed = replace(candidate, builds={arch: Build(digest, f"{digest[:8]}.cu", digest)})
        work = replace(work, candidates=(changed,))
        dispatch = bind(replace(table, root=root, workloads=(work,)))
        HyperConnection(dispatch)
        (result,) = verify_emulated(dispatch, evidence, work, wanted, tmp_path / "failures")
        return result

    return verified


def test_the_text_as_generated_passes(verify, tmp_path):
    result = verify()
    assert (result.passed, result.problem, result.artefact, result.cached) == (True, "", None, False)
    assert (result.workload, result.candidate, result.arch, result.on) == (
        LABEL,
        "striding",
        "sm_70",
        "emulator",
    )
    assert result.against == "array oracle"
    assert (result.gate.cases, result.gate.mismatches) == (1, 0)
    # x, y, lora, injection_out and block_input of HC3, H96, R20
    assert result.gate.values == 3 * 96 + 3 * 96 + 20 + 3 + 96
    assert result.seeds == (1,)
    assert not (tmp_path / "failures").exists()


@pytest.mark.parametrize(
    ("mutation", "sentence"),
    [
        (EARLY_ROUNDING, DIFFERS),
        (SWAPPED, DIFFERS),
        (NO_OP, UNWRITTEN),
    ],
    ids=["early rounding", "swapped branch", "no-op"],
)
def test_a_mutant_fails_and_leaves_what_it_takes_to_look_again(verify, tmp_path, mutation, sentence):
    result = verify(*mutation)
    assert not result.passed
    assert re.fullmatch(
        sentence + rf" Case {NORMAL}, Interleaving\(seed=0, policy='round_robin'\)\.", result.problem
    )
    assert result.artefact == tmp_path / "failures" / f"{LABEL}-striding-sm_70-1"
    assert result.failure == (
        f"{LABEL}, candidate striding, sm_70: {result.problem}; inputs and the command that repeats it are in "
        f"{result.artefact}"
    )
    told = json.loads((result.artefact / "failure.json").read_text())
    assert told["problem"] == result.problem
    assert told["command"] == (
        f"kernwright verify {LABEL} --on emulator --candidate striding --arch sm_70 --case {NORMAL}"
    )
    given = EVIDENCE.tensors(_workload(verify), Case("boundary", "normal", 1), _cpu())
    with np.load(result.artefact / "inputs.npz") as words:
        assert set(words) == set(given)
        assert all(np.array_equal(words[name].view("uint16"), _bits(given[name])) for name in words)


def test_a_call_that_goes_wrong_where_the_launches_are_right(verify, monkeypatch):
    """A plan that doesn't write where it is told to."""
    right = Plan._step_by_step

    def wrong(self, inputs, outputs=None):
        return right(self, inputs, outputs and [torch.zeros_like(tensor) for tensor in outputs])

    assert verify().gate.ways == ("launches", "calls")
    monkeypatch.setattr(Plan, "_step_by_step", wrong)
    result = verify(
        "// ---- workload ----", "// ---- the workload ----"
    )  # another text, which isn't remembered
    assert not result.passed
    assert result.problem.endswith(f"case {NORMAL}, a call with given outputs.")
    assert (result.gate.cases, result.gate.mismatches) == (1, 1)


def test_a_failure_is_not_remembered_and_stops_at_the_first_case(verify, memory):
    wanted = Wanted(candidates=["striding"], cases=[NORMAL, "boundary:tiny:1"])
    first, second = (verify(*EARLY_ROUNDING, wanted=wanted) for _ in range(2))
    assert [result.gate.cases for result in (first, second)] == [1, 1]
    assert not second.cached
    assert not memory.exists()
    assert (first.artefact.name[-2:], second.artefact.name[-2:]) == ("-1", "-2")


def test_a_second_run_is_remembered(verify):
    first, second = verify(), verify()
    assert (first.cached, second.cached) == (False, True)
    assert second.gate == first.gate
    assert second.passed
    assert second.to_json() | {"cached": False, "seconds": first.to_json()["seconds"]} == first.to_json()


def test_a_changed_source_other_cases_or_another_subject_are_not(verify, tmp_path):
    verify()
    assert not verify("// ---- workload ----", "// ---- the workload ----").cached
    assert not verify(wanted=Wanted(["striding"], (), ["boundary:tiny:1"])).cached
    (tmp_path / "own").mkdir()
    assert not verify(evidence=subject_at(tmp_path / "own" / "evidence.py")).cached
    assert verify().cached


def test_a_judge_that_changed_decides_again(verify, tmp_path):
    path = tmp_path / "own" / "evidence.py"
    path.parent.mkdir()
    evidence = subject_at(path)
    assert [verify(evidence=evidence).cached for _ in range(2)] == [False, True]
    path.write_text(path.read_text() + "# another opinion\n")
    judges_digest.cache_clear()
    assert not verify(evidence=evidence).cached
    (path.parent / "oracle.py").write_text("")
    judges_digest.cache_clear()
    assert not verify(evidence=evidence).cached


def test_a_damaged_memory_is_ignored_and_mended(verify, memory):
    whole = verify()
    (place,) = memory.iterdir()
    kept = place.read_bytes()
    for damage in DAMAGES:
        place.write_bytes(damage)
        again = verify()
        assert (again.cached, again.passed, again.gate) == (False, True, whole.gate)
        assert place.read_bytes() == kept
        assert list(memory.iterdir()) == [place]


def test_a_memory_that_cannot_be_written_is_no_failure(verify, memory):
    memory.write_text("a file where the folder should be")
    assert verify().passed
    assert not verify().cached


def test_essential_cases_are_all_values_of_the_first_kind_and_normal_ones_of_the_others():
    listed = [
        Case(kind, inputs, seed)
        for kind in ("boundary", "first")
        for seed in (1, 2)
        for inputs in ("zeros", "normal")
    ]
    assert [case.name for case in essential(listed)] == [
        "boundary:zeros:1",
        "boundary:normal:1",
        "first:normal:1",
    ]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (Wanted(candidates=["stridin"]), NOTHING_LEFT),
        (Wanted(archs=["sm_61"]), NOTHING_LEFT),
        (
            Wanted(cases=["boundary:huge:1"]),
            'there is no case "boundary:huge:1"; there are boundary:zeros:1, ',
        ),
    ],
)
def test_what_is_not_there_is_said(verify, wanted, sentence):
    with pytest.raises(NothingToVerify) as raised:
        verify(wanted=wanted)
    assert str(raised.value).startswith(sentence)


def subject_at(path: Path):
    """A user's own evidence, in a module of its own."""
    if not path.exists():
        path.write_text(
            "from kernwright.families.hyper_connection.evidence import HyperConnectionEvidence\n"
            "class Mine(HyperConnectionEvidence):\n"
            "    def expected(self, workload, case, bits): return super().expected(workload, case, bits)\n"
            "EVIDENCE = Mine()\n"
        )
    spec = importlib.util.spec_from_file_location("my_evidence", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EVIDENCE


def _workload(verify):
    table = verify.__closure__[0].cell_contents.dispatch.table
    return next(entry for entry in table.workloads if entry.label == LABEL)


def _cpu():
    import torch

    return torch.device("cpu")


def _bits(tensor):
    import torch

    return tensor.contiguous().view(torch.int16).numpy().view("uint16")


def test_what_others_may_have_written_is_not_remembered(verify, memory):
    verify()
    assert verify().cached
    [place] = memory.iterdir()
    place.chmod(0o666)
    assert not verify().cached
    assert verify().cached
    memory.chmod(0o777)
    assert [verify().cached for _ in range(2)] == [False, False]
