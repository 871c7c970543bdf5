"""Steps that ranks take together, over Gloo: whatever fails on whatever rank, no rank is in another collective.

`rank_steps_worker.py` is a rank. A failure is injected at each step on each rank, and after each scenario the
application's own collectives must give what they should.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.bundle import write_bundle

RANKS = 3
Found = list[dict[str, dict[str, Any]]]
TORCH, IPC = "symmetric_memory", "ipc"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    worker = Path(__file__).with_name("rank_steps_worker.py")
    paths = [str(Path(__file__).parents[1]), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in environment.items() if not name.startswith("KERNWRIGHT_")}
    environment["KERNWRIGHT_BUNDLE"] = str(bundle(folder / "bundle"))
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                str(worker),
                str(rank),
                str(RANKS),
                str(folder / "store"),
                str(folder / f"{rank}"),
            ],
            env=environment | {"PYTHONHASHSEED": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(said)[-6000:]
    return [json.loads((folder / f"{rank}").read_text()) for rank in range(RANKS)]


def bundle(folder: Path) -> Path:
    """A bundle with a name for machine code of every build of the library for ranks."""
    from kernwright.generated.dispatch import TABLE

    builds = {
        (build.sha256, arch): f"{build.source} for {arch}".encode()
        for work in TABLE.workloads
        for candidate in work.candidates
        for arch, build in candidate.builds.items()
        if work.channel and build.sha256
    }
    write_bundle(
        folder,
        [
            Artifact(arch, "cubin", source, digest(data), data, {}, False, 0.1)
            for (source, arch), data in builds.items()
        ],
    )
    return folder


def test_the_applications_collectives_are_right_after_every_scenario(found: Found) -> None:
    for rank in found:
        wrong = [
            f"{part}: {tag}"
            for part, entries in rank.items()
            for tag, out in entries.items()
            if not out["right"]
        ]
        assert wrong == []
    assert {part: len(entries) for part, entries in found[0].items()} == {
        "making": 24, "arguments": 3, "disagreeing": 4, "closing": 25, "measuring": 9, "loading": 14,
        "fleet": 3,
    }  # fmt: skip


@pytest.mark.parametrize("step", ["allocate", "reach"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("who", range(RANKS))
def test_a_backend_that_fails_on_one_rank_is_left_by_all(
    found: Found, step: str, number: int, who: int
) -> None:
    after = (who + 1) % RANKS
    for rank in range(RANKS):
        one, both = (found[rank]["making"][f"{step} {number} on {who}, {fails} fail"] for fails in (1, 2))
        assert (one["backend"], one["channels"]) == (IPC, ["first", "second"])
        assert (both["backend"], both["channels"]) == (None, [])
        assert both["absence"] == (
            f"no backend gives the ranks shared memory: {TORCH} failed (rank {who}: no luck with {TORCH} {step} "
            f"{number}); {IPC} failed (rank {after}: no luck with {IPC} {step} {number})"
        )
        for backend, failing, out in ((TORCH, who, one), (IPC, after, both)):
            did = [event.removeprefix(f"{backend} ") for event in out["did"] if event.startswith(backend)]
            failed_here = rank == failing and step == "allocate"
            allocated = 1 + number if failed_here else 2
            assert did.count("allocate") == allocated
            assert did.count("free") == allocated - failed_here  # all that was made, and nothing else
            assert did.count("reach") == (0 if step == "allocate" else 1 + number)
            assert did.count("leave") == (0 if step == "allocate" else 2)
        if step == "reach":
            assert one["freed after all left"]


@pytest.mark.parametrize(
    ("tag", "own", "said"),
    [
        ("backend", "ValueError: ", "backend is 'pigeons'; allowed are symmetric_memory, ipc, or None"),
        ("spec", "ValueError: ", "spec third has no channel for 3 ranks"),
        ("timeout", "ValueError: ", "timeout_s is 0; it must be above 0 seconds"),
    ],
)
def test_what_one_rank_refuses_no_rank_makes(found: Found, tag: str, own: str, said: str) -> None:
    errors = [rank["arguments"][tag]["error"] for rank in found]
    assert errors[1].startswith(own + said)
    assert errors[0] == errors[2]
    assert errors[0].startswith(f"PeerFailed: another rank could not make the communicator; rank 1: {said}")


@pytest.mark.parametrize(
    ("tag", "what"),
    [
        ("records", "the records of spec first: ranks 0, 2: 1, digest"),
        ("no record", "the records of spec first: ranks 0, 2: 1, digest"),
        ("candidates", "the builds of spec first: ranks 0, 2: 2, digest"),
        ("policy", "the policy: ranks 0, 2: measured; rank 1: control. Set the same on all ranks"),
    ],
)
def test_ranks_that_would_choose_differently_disagree(found: Found, tag: str, what: str) -> None:
    errors = {rank["disagreeing"][tag]["error"] for rank in found}
    assert len(errors) == 1
    assert errors.pop().startswith(f"Disagreement: ranks disagree on {what}")


@pytest.mark.parametrize("step", ["leave", "free", "finish"])
@pytest.mark.parametrize("who", range(RANKS))
def test_closing_goes_on_where_a_step_fails(found: Found, step: str, who: int) -> None:
    outs = [rank["closing"][f"close, {step} on {who}"] for rank in found]
    for rank, out in enumerate(outs):
        assert out["channels"] == []
        freed = out["did"].count(f"{TORCH} free")
        assert freed == (2 if step == "free" else 0)  # never what a peer may still map
        assert out["kept"] == 2 - freed
        if step == "free":
            assert out["error"] == ""
        else:
            assert out["error"].startswith(
                "RuntimeError: no luck" if rank == who else "PeerFailed: another rank"
            )


@pytest.mark.parametrize("step", ["finish", "clear"])
@pytest.mark.parametrize("who", range(RANKS))
def test_a_reset_waits_for_all_before_and_behind(found: Found, step: str, who: int) -> None:
    for rank, entry in enumerate(found):
        out, after = (
            entry["closing"][f"reset, {step} on {who}"],
            entry["closing"][f"late reset, {step} on {who}"],
        )
        assert out["error"].startswith(
            "RuntimeError: no luck" if rank == who else "PeerFailed: another rank could"
        )
        assert (out["generation"], after["generation"]) == (0, 1)
        assert after["cleared after all ended"]  # no rank clears what a peer's kernel may still write
        assert after["left after all were clear"]  # no rank begins before all are clear


@pytest.mark.parametrize("by", range(RANKS))
def test_what_one_rank_has_captured_all_keep(found: Found, by: int) -> None:
    for rank in found:
        did = rank["closing"][f"close, captured by {by}"]["did"]
        assert (did.count(f"{TORCH} leave"), did.count(f"{TORCH} free")) == (1, 1)  # the other channel's


@pytest.mark.parametrize("name", ["after_call", "finish", "nothing"])
@pytest.mark.parametrize("who", range(RANKS))
def test_what_evidence_prepares_all_ranks_have_or_none(found: Found, name: str, who: int) -> None:
    for rank, entry in enumerate(found):
        out = entry["measuring"][f"{name} on {who}"]
        if name == "nothing":
            assert out["error"] == ""
        else:
            assert out["error"].startswith(
                "RuntimeError: no luck" if rank == who else "PeerFailed: another rank could"
            )
        assert out.get("all had written", True)  # none begins a case before


def test_an_error_that_leaves_the_block_does_nothing_collective(found: Found) -> None:
    outs = [rank["closing"]["an error leaves the block"] for rank in found]
    assert [out["error"] for out in outs] == ["", "KeyError: 'of the application'", ""]
    assert not [event for out in outs for event in out["did"] if event.endswith(("leave", "free"))]
    assert [out["kept"] for out in outs] == [[], ["first", "second"], []]  # also where closing one fails
    assert [out["absence"] for out in outs] == [None, "the communicator is closed; make a new one", None]


@pytest.mark.parametrize("names", [["fast"], ["fast", "control"]])
@pytest.mark.parametrize("who", range(RANKS))
def test_what_one_rank_cannot_load_is_off_on_all(found: Found, names: list[str], who: int) -> None:
    for rank in found:
        out = rank["loading"][f"{names} on {who}"]
        assert out["chosen"] == ("control" if names == ["fast"] else None)
        assert out["reason"] == (
            f"rank {who} could not load it, so it is off on all ranks of this communicator: fast has no room"
        )
        assert out["asked"] == ["control", "fast"]  # the control alone when it was the choice
        assert out["elsewhere"] == {}  # other communicators may load it


def test_a_communicator_whose_ranks_would_choose_differently_is_closed(found: Found) -> None:
    errors = {rank["loading"]["another choice"]["error"] for rank in found}
    assert len(errors) == 1
    assert errors.pop().startswith(
        "Disagreement: ranks disagree on what serves hyper_connection fp16-hc4-h64-n1-r32-tp3 (kind boundary): ranks "
        "0, 2: fast (sm_90, code "
    )
    for rank, entry in enumerate(found):
        out = entry["loading"]["no room at all"]
        assert out["error"].startswith(
            "RuntimeError: no luck" if rank == 1 else "PeerFailed: another rank could not decide"
        )
        for tag in ("another choice", "no room at all"):
            did = entry["loading"][tag]["did"]
            assert (did.count(f"{TORCH} leave"), did.count(f"{TORCH} free")) == (2, 2)


def test_a_load_that_fails_in_a_call_raises_there_and_is_no_fallback(found: Found) -> None:
    errors = [rank["loading"]["in a call"]["errors"] for rank in found]
    assert errors[0] == errors[2] == ["", ""]
    assert errors[1][0] == errors[1][1]
    assert errors[1][0].startswith(
        "LoadError: rank 1 could not load control of first/fp16-hc4-h64-n1-r32-tp3, which its peers may be running "
        "now: control has no room; let all ranks call warm_up(comm=comm)"
    )


def test_a_warm_up_decides_together(found: Found) -> None:
    for rank, entry in enumerate(found):
        out = entry["loading"]["warmed up"]
        assert set(out["chosen"][:8]) == {"fast"}
        assert set(out["chosen"][8:]) == {"reference"}
        assert out["called"] is None
        assert out["reason"].startswith("rank 1 could not load it, so it is off on all ranks")
        assert entry["loading"]["an iterator"]["chosen"] == ["reference"] * 8  # in the second round, too
        assert out["remembered"] == 0  # ranks that had loaded it must not go on with it
        error = entry["loading"]["unknown workload"]["error"]
        assert error.startswith(
            "ValueError: no work" if rank == 1 else "PeerFailed: another rank could not decide"
        )
        assert entry["loading"]["fewer workloads"]["error"].startswith(
            "Disagreement: ranks disagree on how many calls are warmed up: ranks 0, 2: 8; rank 1: 4"
        )
        assert entry["loading"]["policy"]["error"].startswith(
            "Disagreement: ranks disagree on what serves hyper_connection fp16-hc4-h64-n1-r32-tp3 (kind boundary): "
            "ranks 0, 2: fast (sm_90, code "
        )


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_same_bundle_gives_the_same_choices_on_all_ranks(found: Found, size: int) -> None:
    """In processes whose hashes have different seeds: nothing goes by the order of a set."""
    first, *others = [rank["fleet"][f"{size} ranks"] for rank in found]
    assert others == [first, first]
    assert len(first["choices"]) > 20
    assert len(set(first["code"])) > 5
    assert "all_reduce_7168" in first["digests"]
