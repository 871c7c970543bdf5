"""Cases of an all-reduce: payloads astride every threshold, values of every kind, channels before they wrap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernwright.evidence.family_evidence import Case, ChannelEvidence, parts_on, serves
from kernwright.evidence.session import Session
from kernwright.evidence.verify_emulated import essential
from kernwright.families.all_reduce.evidence import EVIDENCE, LAST_EPOCH
from kernwright.families.all_reduce.payloads import VALUE_KINDS
from kernwright.generated.dispatch import TABLE
from kernwright.specs import find_workspace
from kernwright.table import Part

CPU = torch.device("cpu")
LIBRARY = [work for work in TABLE.workloads if work.family == "all_reduce"]


@pytest.fixture(scope="module")
def works(mini_root):
    session = Session.open(find_workspace(mini_root))
    return {(w.fields["dtype"], w.fields["world_size"]): w for w in session.workloads([])}


def sizes(work, kind="staged", inputs="mixed"):
    return {case.at for case in EVIDENCE.cases(work) if (case.kind, case.inputs) == (kind, inputs)}


def test_it_is_a_subject_of_ranks():
    assert isinstance(EVIDENCE, ChannelEvidence)


@pytest.mark.parametrize(("dtype", "item"), [("float16", 2), ("float32", 4)])
@pytest.mark.parametrize("kind", ["staged", "sum2", "symmetric"])
def test_payloads_lie_below_at_and_above_every_border(works, dtype, item, kind):
    found = sizes(works[dtype, 4], kind)
    for border in (512, 1024):
        assert {border - item, border, border + item} <= found
    assert {4, 2048 - item, 2048} <= found
    assert any(size // item % 2 for size in found)
    assert all(size % item == 0 and 4 <= size <= 2048 for size in found)


@pytest.mark.parametrize("work", LIBRARY, ids=lambda work: work.name)
def test_every_part_of_the_library_has_cases_and_few_on_the_emulator(work):
    listed = list(EVIDENCE.cases(work))
    assert len({case.name for case in listed}) == len(listed)
    for part in work.parts:
        own = [case for case in listed if part.low <= case.at <= part.high]
        assert {(case.kind, case.inputs) for case in own} >= {
            (kind, inputs)
            for kind in ("staged", "sum2", "symmetric")
            for inputs in ("mixed", "wrap", *VALUE_KINDS)
        }
        assert {case.at for case in own} >= {part.high // 4 * 4, -(-part.low // 4) * 4}
        emulated = [case for case in essential(listed) if case in own]
        found = [(case.kind, case.inputs) for case in emulated]  # other devices' parts may begin there
        assert set(found) == {("staged", "wrap"), ("sum2", "mixed"), ("symmetric", "mixed")}
        assert len(found) <= 3 * len({other.device for other in work.parts})
        begins = [other.low for other in work.parts]
        assert all(
            case.at <= max(128 * 1024, max(low for low in begins if low <= case.at) + 16) for case in emulated
        )


def test_a_candidate_is_asked_for_its_own_parts(works):
    work = works["float32", 4]
    by_name = {candidate.name: candidate for candidate in work.candidates}
    asked = {
        name: {case.at for case in EVIDENCE.cases(work) if serves(work, candidate, case)}
        for name, candidate in by_name.items()
    }
    assert max(asked["tagged"]) == 508
    assert asked["narrow"] == asked["tagged"]
    assert (min(asked["one"]), max(asked["one"])) == (512, 1020)
    assert (min(asked["two"]), max(asked["two"])) == (1024, 2048)


def test_the_parts_of_a_device_replace_those_of_all():
    from dataclasses import replace

    work = LIBRARY[0]
    own = (Part("one_stage", 4, work.fields["payload_bytes"][1], "NVIDIA H200", measured=True),)
    changed = replace(work, parts=(*work.parts, *own))
    assert parts_on(changed, "NVIDIA H200") == own
    assert parts_on(changed, "NVIDIA B200") == work.parts


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tensors_hold_all_ranks_and_the_answer_is_every_ranks(works, dtype):
    work = works[dtype, 8]
    case = Case("sum2", "normal", 3, 400)
    given = EVIDENCE.tensors(work, case, CPU)
    numel = 400 // given["inputs"].element_size()
    assert {name: (tuple(t.shape), str(t.dtype)) for name, t in given.items()} == {
        "inputs": ((8, numel), f"torch.{dtype}"),
        "addends": ((8, numel), f"torch.{dtype}"),
    }
    assert set(EVIDENCE.tensors(work, Case("symmetric", "mixed", 3, 400), CPU)) == {"inputs"}
    width = np.uint32 if dtype == "float32" else np.uint16
    words = torch.int32 if dtype == "float32" else torch.int16
    bits = {name: tensor.view(words).numpy().view(width) for name, tensor in given.items()}
    (name, found) = next(iter(EVIDENCE.expected(work, case, bits).items()))
    assert (name, found.shape) == ("outputs", (8, numel))
    total = torch.zeros(numel)
    for rank, (a, b) in enumerate(zip(given["inputs"], given["addends"], strict=True)):
        mine = (a.float() + b.float()).to(a.dtype).float()
        total = mine if rank == 0 else total + mine
    wanted = total.to(given["inputs"].dtype).view(words).numpy().view(width)
    assert np.array_equal(found, np.stack([wanted] * 8))


def test_a_channel_before_it_wraps(works):
    work = works["bfloat16", 2]
    assert [EVIDENCE.call_before(Case("staged", kind, 1, 8)) for kind in ("mixed", "wrap")] == [
        None,
        LAST_EPOCH,
    ]
    words = np.zeros((2, work.channel["size"] // 4), np.int32)
    EVIDENCE.after_call(work, LAST_EPOCH, words)
    offsets, unsigned = work.channel, words.view(np.uint32)[1]
    ticket = unsigned[offsets["ticket"] // 4 :][:2]
    assert ticket.tolist() == [0, 2**32 - 1]
    assert set(unsigned[offsets["departures"] // 4 : offsets["flags"] // 4]) == {0}
    flags = unsigned[offsets["flags"] // 4 : offsets["packets"] // 4].reshape(-1, 2)
    assert [set(flags[:, half]) for half in (0, 1)] == [{0}, {2**32 - 1}]
    packets = unsigned[offsets["packets"] // 4 : offsets["packets"] // 4 + 2 * 2 * offsets["packet"] // 4]
    data, tags = packets.reshape(2, -1, 2).transpose(2, 0, 1)
    assert set(data.reshape(-1)) == {0}
    assert [set(row) for row in tags] == [
        {2**32 - 512},
        {2**32 - 256},
    ]  # the generations of even calls, odd calls
    assert set(unsigned[offsets["staged"] // 4 :]) == {0}
