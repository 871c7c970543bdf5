"""Every replicated candidate on the emulator against the array oracle, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness.golden import GoldenCase, read_golden
from kernwright.emulator import Interleaving, candidate_program, check, fuzz, run
from kernwright.evidence.oracle.dtypes import digest
from kernwright.families.hyper_connection.inputs import INPUT_KINDS
from kernwright.generated.dispatch import DISPATCH, TABLE

BETWEEN = ("partials",)
"""Scratch that the contract doesn't name: sums of parts, on their way from one CTA to another."""
KINDS = ("boundary", "first", "combine", "final")
REPLICATED = [
    (workload.label, c)
    for workload in TABLE.workloads
    for c in workload.candidates
    if workload.family == "hyper_connection"
    and c.route == "replicated"  # other routes have tests of their own
    and not c.arguments  # one token
    and workload.fields["world_size"] == 1  # the control is the same text where there are more
]
CANDIDATES = [(label, c.name) for label, c in REPLICATED]
SEVERAL_ARCHS = [(label, c.name) for label, c in REPLICATED if len(c.builds) > 1]
REAL = ("fp16-hc4-h2560-n1-r320-tp1", "bf16-hc4-h2560-n1-r320-tp1")
ODD = [
    (f"{dtype}-{label}", name)
    for dtype in ("fp16", "bf16")
    for label, names in (
        ("hc3-h96-n1-r20-tp1", ("replicated", "striding")),
        ("hc5-h192-n1-r72-tp1", ("replicated", "passes", "teams")),
    )
    for name in names
] + [("fp16-hc2-h40-n1-r7-tp1", "replicated")]


@pytest.mark.parametrize(("label", "name"), CANDIDATES)
def test_a_candidate_of_the_library_equals_the_oracle(library, label, name):
    stored = set()
    for kind in KINDS:
        program, expected = library.program(label, name, kind)
        stored |= {buffer.name for buffer in expected}
        if kind == "boundary":
            checked = check(program.launches, expected)
            assert checked.problems == ()
            found = {buffer for buffer in checked.arrays if buffer.name not in BETWEEN}
            assert found == set(expected), "a stored value that nobody compares"
        assert fuzz(program.launches, expected, 1, first=1).problems == (), kind
    sums = BETWEEN[0] in library.candidate(label, name).scratch  # in their place lora is never stored
    assert stored == {"x", "y", "block_input", "injection_out", *([] if sums else ["lora"])}


@pytest.mark.parametrize(("label", "name"), SEVERAL_ARCHS)
def test_what_holds_for_one_architecture_holds_for_all(library, label, name):
    """They share a text, hence an object."""
    archs = library.candidate(label, name).builds
    programs = [library.program(label, name, "boundary", arch=arch)[0] for arch in archs]
    assert len({program.launches[0].kernel.path for program in programs}) == 1
    assert len({program.launches[0].kernel.name for program in programs}) == 1


@pytest.mark.parametrize("label", REAL)
@pytest.mark.parametrize(
    ("inputs", "seed"), [("large", 4), ("subnormal", 1)] + [("nonfinite", s) for s in range(4)]
)
def test_hard_inputs_of_the_real_shape(library, label, inputs, seed):
    program, expected = library.program(label, "wide_rows", "boundary", inputs, seed)
    assert fuzz(program.launches, expected, 1).problems == ()


@pytest.mark.long
@pytest.mark.parametrize(("label", "name"), CANDIDATES)
@pytest.mark.parametrize("inputs", INPUT_KINDS)
def test_every_candidate_on_every_input_under_several_schedules(library, label, name, inputs):
    for kind in ("boundary", "final"):
        program, expected = library.program(label, name, kind, inputs, seed=6)
        assert fuzz(program.launches, expected, 2, first=2).problems == (), kind


@pytest.mark.parametrize(("label", "name"), ODD)
def test_odd_trees_and_tilings_equal_the_oracle(odd, label, name):
    """L < 32, L = 64 and 96, two and three segments, HC3 and HC5, tails, lane passes, staged loads."""
    for kind in KINDS:
        program, expected = odd.program(label, name, kind)
        assert check(program.launches, expected).problems == (), kind
        assert fuzz(program.launches, expected, 4, first=1).problems == (), kind
    for inputs in INPUT_KINDS:
        program, expected = odd.program(label, name, "boundary", inputs, seed=2)
        assert fuzz(program.launches, expected, 1).problems == (), inputs


@pytest.mark.parametrize("label", REAL)
def test_golden_digests(library, label):
    """The digests in the ledger, which other machines and processors gave."""
    shape = library.shape(label)
    case = GoldenCase(shape, "boundary", "large", 4)
    program, _ = library.program(label, "replicated", "boundary", "large", 4)
    arrays = run(program.launches).arrays
    golden = read_golden()[case.name]
    found = {buffer.name: digest({buffer.name: array}, shape.storage) for buffer, array in arrays.items()}
    assert len(found) == 5
    assert {name: golden[name] for name in found} == found


def test_a_program_tells_outputs_from_intermediates(odd):
    label, name = ODD[0]
    given, answer = odd.answer(label, "first", "normal", 3)
    fields = {**odd.workloads[label].fields, "tokens": 1}
    signature = odd.dispatch.hyper_connection.request_for(fields, "first").signature
    candidate, root = odd.candidate(label, name), odd.dispatch.TABLE.root

    def program(**changes):
        return candidate_program(root, candidate, "sm_80", "first", signature, {**given, **changes})

    made = program()
    outcome = run(made.launches, Interleaving(5, "random"))
    assert outcome.fault is None
    stored = {buffer.name: array for buffer, array in outcome.arrays.items()}
    assert set(made.outputs) == {"block_input", "injection_out"}
    assert set(stored) == {*made.outputs, "y", "lora"}
    for buffer, array in stored.items():
        assert (array == answer[buffer]).all(), buffer
    with pytest.raises(ValueError, match="up_weight is missing; the op takes it as float16"):
        program(up_weight=None)
    with pytest.raises(ValueError, match=r"residual has 10 bytes; float16 of shape \(1, 288\) has 576"):
        program(residual=given["residual"][0, :5])


def test_what_follows_from_a_call_must_be_given():
    """Kernels for several tokens take their number; without it the sentence says where it comes from."""
    work, candidate = next(
        (work, candidate)
        for work in TABLE.workloads
        for candidate in work.candidates
        if work.family == "hyper_connection" and candidate.arguments.get("tokens") and candidate.kernels
    )
    arch = next(iter(candidate.builds))
    request = DISPATCH.request(work, "combine", 2)
    shapes = {buffer.name: buffer.shape for buffer in request.signature.inputs}
    given = {name: np.zeros(shape, np.uint16) for name, shape in shapes.items()}
    arguments = (TABLE.root, candidate, arch, "combine", request.signature, given)
    with pytest.raises(
        ValueError, match=r"take tokens, which follows from the call; pass constants=request\.constants"
    ):
        candidate_program(*arguments)
    program = candidate_program(*arguments, constants=request.constants)
    assert run(program.launches).fault is None
