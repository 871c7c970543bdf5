"""Negative controls: a barrier, a lane, a branch or a rounding removed from generated text is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, compile_text, find_races, fuzz
from kernwright.generated.dispatch import TABLE

SEEDS = 6
SANITIZED_THREADS = 256
KINDS = ("boundary", "first", "final")
_SYNC = re.compile(r"__sync(?:threads|warp)\(\);")

QUICK = [("fp16-hc4-h2560-n1-r320-tp1", name) for name in ("wide_rows", "persistent")]
LONG = [
    pair
    for pair in (
        (workload.label, c.name)
        for workload in TABLE.workloads
        for c in workload.candidates
        if workload.family == "hyper_connection" and workload.fields["world_size"] == 1
        if c.route == "replicated" and not c.arguments
    )
    if pair not in QUICK
]
ODD = [("fp16-hc3-h96-n1-r20-tp1", "striding")]
ODD_LONG = [
    *[("fp16-hc5-h192-n1-r72-tp1", name) for name in ("replicated", "passes", "teams")],
    ("bf16-hc3-h96-n1-r20-tp1", "striding"),
    *[("bf16-hc5-h192-n1-r72-tp1", name) for name in ("replicated", "passes", "teams")],
]

HARMLESS = {
    # One warp a CTA and one team: lane 0 alone writes and reads `partial`, and the barrier after the tile
    # still orders the staged rows.
    ("passes", "up_mix", 1),
    # ... and the barrier before `partial` is read already comes after the staged rows were read.
    ("passes", "up_mix", 2),
    # As above for the staged rows; `partial` is written again only behind the next tile's staging barrier,
    # which its readers must have reached.
    ("teams", "up_mix", 2),
}
"""Candidate, kernel and position of the barrier in it; docs/emulator.md lists them too."""


@dataclass(frozen=True)
class Mutant:
    kernel: str
    position: int
    """Among the barriers of its kernel."""
    text: str


def mutants(text: str, candidate: str) -> Iterator[Mutant]:
    """The text without one of its barriers, for each."""
    kernels = list(re.finditer(rf"^hyper_connection_(\w+)_{candidate}\(", text, re.MULTILINE))
    for kernel, following in zip(kernels, [*kernels[1:], None], strict=True):
        end = following.start() if following else len(text)
        for position, barrier in enumerate(_SYNC.finditer(text, kernel.start(), end)):
            yield Mutant(kernel[1], position, f"{text[: barrier.start()]};{text[barrier.end() :]}")


def with_text(launches: tuple[EmulatedLaunch, ...], text: str) -> list[EmulatedLaunch]:
    kernel = compile_text(text, "mutant.cu")
    return [replace(launch, kernel=kernel) for launch in launches]


def is_caught(boundaries, label: str, name: str, mutant: Mutant) -> bool:
    """By fuzzing; else by ThreadSanitizer on a few CTAs of the kernel."""
    symbol = f"hyper_connection_{mutant.kernel}_{name}"
    for kind in KINDS:
        program, expected = boundaries.program(label, name, kind)
        if symbol not in {launch.symbol for launch in program.launches}:
            continue
        launches = with_text(program.launches, mutant.text)
        if fuzz(launches, expected, SEEDS).problems:
            return True
        (launch,) = (launch for launch in launches if launch.symbol == symbol)
        ctas = max(1, min(launch.grid[0], SANITIZED_THREADS // launch.block[0]))
        return bool(find_races([replace(launch, grid=(ctas, 1, 1))]))
    raise AssertionError(f"no kind launches {symbol}")


def check_all_mutants(boundaries, label: str, name: str) -> None:
    program, _ = boundaries.program(label, name, "boundary")
    text = program.launches[0].kernel.text
    found = list(mutants(text, name))
    assert len(found) == len(_SYNC.findall(text))
    survivors = {(name, m.kernel, m.position) for m in found if not is_caught(boundaries, label, name, m)}
    assert survivors == {harmless for harmless in HARMLESS if harmless[0] == name}


@pytest.mark.parametrize(("label", "name"), QUICK)
def test_every_barrier_of_a_library_text_is_needed(library, label, name):
    check_all_mutants(library, label, name)


@pytest.mark.long
@pytest.mark.parametrize(("label", "name"), LONG)
def test_every_barrier_of_the_other_library_texts_is_needed(library, label, name):
    check_all_mutants(library, label, name)


@pytest.mark.parametrize(("label", "name"), ODD)
def test_every_barrier_of_an_odd_text_is_needed(odd, label, name):
    check_all_mutants(odd, label, name)


@pytest.mark.long
@pytest.mark.parametrize(("label", "name"), ODD_LONG)
def test_every_barrier_of_the_other_odd_texts_is_needed(odd, label, name):
    check_all_mutants(odd, label, name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for (int distance = WIDTH / 2;", "for (int distance = WIDTH / 4;"),  # half of the lanes are left out
        ("__shfl_xor_sync(0xffffffffu, value, distance)", "__shfl_xor_sync(0x7fffffffu, value, distance)"),
        ("injection_scale(injection, branch)", "injection_scale(injection, BRANCHES - 1 - branch)"),
        ("to_float(y[branch * HIDDEN + h])", "to_float(y[(branch ^ 1) * HIDDEN + h])"),
        ("total = total + groups[group]", "total = groups[group] + total * 1.0f + 0.0f * total"),
        ("sigmoid(rounded(total))", "sigmoid(total)"),  # the gate isn't rounded
        ("over_branches(rounded(total))", "over_branches(total)"),
        ("fmaf(scaled, to_float(weight.value[i]), scaled)", "scaled * rounded(1.0f + to_float(weight.value[i]))"),
        ("fmaf(value, value, square)", "square + rounded(value * value)"),  # rounds early
        ("fmaf(to_float(block.value[i]), scale, to_float(residual.value[i]))",
         "to_float(residual.value[i]) + rounded(to_float(block.value[i]) * scale)"),
    ],
)  # fmt: skip
def test_a_changed_computation_is_found(library, old, new):
    label, name = QUICK[0]
    program, expected = library.program(
        label, name, "boundary", "nonfinite" if "0.0f" in new else "normal", 0
    )
    text = program.launches[0].kernel.text
    assert old in text
    assert fuzz(with_text(program.launches, text.replace(old, new)), expected, 1).problems


def test_a_mutant_that_changes_nothing_passes(library):
    label, name = QUICK[0]
    program, expected = library.program(label, name, "boundary")
    text = program.launches[0].kernel.text.replace(
        "float total = groups[0];", "float total = 1.0f * groups[0];"
    )
    assert text != program.launches[0].kernel.text
    assert fuzz(with_text(program.launches, text), expected, 1).problems == ()


def test_expected_buffers_are_what_fuzz_compares(library):
    """The control of the controls: a wrong expectation fails."""
    label, name = QUICK[0]
    program, expected = library.program(label, name, "combine")
    buffer: DeviceBuffer = next(iter(expected))
    wrong = {buffer: expected[buffer] ^ 1}
    (mismatch,) = fuzz(program.launches, wrong, 1).problems
    assert str(mismatch).startswith("Mismatch: 10240 of 10240 elements of x of rank 0; element 0 is 0x")
