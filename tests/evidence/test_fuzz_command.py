"""Fuzzing candidates of a dispatch table: what is reported, and that a failing schedule replays."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from kernwright.emulator import Fuzzed
from kernwright.evidence import fuzz as fuzzing
from kernwright.evidence.fuzz import fuzz_workload
from kernwright.evidence.session import Session
from kernwright.evidence.verify import NothingToVerify
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.families.hyper_connection.op import HyperConnection
from kernwright.runtime import bind
from kernwright.specs import find_workspace
from kernwright.table import Build

LABEL = "fp16-hc3-h96-n1-r20-tp1"
START = "  using namespace up_mix;\n"
RACE = "  if (blockIdx.x == 0 && threadIdx.x == 0) block_input[ROWS_PER_CTA] = to_storage(0.0f);\n"
"""CTA 0 begins by overwriting what CTA 1 stores: right only where CTA 0 begins first, as in round robin."""
LOST = "Mismatch: 1 of 96 elements of block_input of rank 0; element 32 is 0x0000, expected 0x"


@pytest.fixture(scope="module", autouse=True)
def _cache(cubin_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))
        yield


@pytest.fixture(scope="module")
def session(odd_root):
    return Session.open(find_workspace(odd_root))


@pytest.fixture(scope="module")
def fuzz(session, tmp_path_factory):
    """Fuzz the candidate `striding`, with or without the race."""
    root = tmp_path_factory.mktemp("mutant")

    def fuzzed(seeds, first=0, race=True, candidates=("striding",), **options):
        table = session.dispatch.table
        work = next(entry for entry in table.workloads if entry.label == LABEL)
        mutants = []
        for candidate in work.candidates:
            arch, build = next(iter(candidate.builds.items()))
            text = (table.root / build.source).read_text()
            assert text.count(START) == 1
            text = text.replace(START, START + RACE) if race else text
            digest = hashlib.sha256(text.encode()).hexdigest()
            (root / f"{digest[:8]}.cu").write_text(text)
            mutants.append(replace(candidate, builds={arch: Build(digest, f"{digest[:8]}.cu", digest)}))
        work = replace(work, candidates=tuple(mutants))
        dispatch = bind(replace(table, root=root, workloads=(work,)))
        HyperConnection(dispatch)
        return fuzz_workload(
            dispatch, EVIDENCE, work, list(candidates), seeds, first, **({"sanitize": False} | options)
        )

    return fuzzed


def test_every_kind_of_a_right_candidate_passes_all_schedules(fuzz):
    results = fuzz(12, race=False)
    assert [result.to_json() | {"seconds": 0} for result in results] == [
        {
            "workload": LABEL,
            "candidate": "striding",
            "kind": kind,
            "seeds": 12,
            "seconds": 0,
            "schedule": "",
            "problems": [],
        }
        for kind in ("boundary", "first", "combine", "final")
    ]


def test_a_failing_schedule_is_told_and_replays(fuzz):
    assert [bool(result.problems) for result in fuzz(1)] == [False] * 4  # round robin doesn't find it
    found = fuzz(40)
    assert [bool(result.problems) for result in found] == [True, True, False, True]
    for number in (0, 1, 3):
        result = found[number]
        seed = result.seeds - 1
        assert 1 <= seed < 40
        assert (
            result.schedule
            == f"Interleaving(seed={seed}, policy={'random' if seed % 2 else 'adversarial'!r})"
        )
        assert len(result.problems) == 1
        assert result.problems[0].startswith(LOST)
        again = fuzz(1, seed)[number]
        assert (again.seeds, again.schedule, again.problems) == (1, result.schedule, result.problems)


def test_a_later_first_seed_goes_on_from_there(fuzz, monkeypatch):
    asked = []
    monkeypatch.setattr(
        fuzzing,
        "fuzz",
        lambda _launches, _expected, seeds, first: (
            asked.append((seeds, first)) or Fuzzed(seeds, 0.0, None, ())
        ),
    )
    fuzz(7, 100)
    assert asked == [(7, 100)] * 4


def test_all_candidates_without_a_filter(fuzz):
    results = fuzz(1, race=False, candidates=())
    assert [result.candidate for result in results] == ["replicated"] * 4 + ["striding"] * 4


def test_a_candidate_that_is_not_there(fuzz):
    with pytest.raises(NothingToVerify, match=r"its candidates are replicated, striding, built for sm_70$"):
        fuzz(1, candidates=("stridin",))


@pytest.mark.long
def test_under_thread_sanitizer_one_schedule_is_enough(fuzz):
    results = fuzz(100, race=False, sanitize=True)
    assert [(result.seeds, result.schedule, result.problems) for result in results] == [(1, "", ())] * 4
