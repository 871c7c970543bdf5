"""Every route gives the control's bits, on every rank, in all that it stores."""

from __future__ import annotations

import pytest
from kernwright.emulator import check, fuzz, run
from kernwright.families.hyper_connection.inputs import INPUT_KINDS

KINDS = ("boundary", "first", "combine", "final")
REAL = ("gates", "hidden", "fused")
FOUR = (*REAL, "fused_serial", "sent_from_down", "split", "fused_norm", "all_fused")
EIGHT = (*REAL, "fused_serial")
QUICK = [("mini4", "fp16-hc4-h256-n1-r320-tp4", name) for name in ("fused", "split", "all_fused")] + [
    ("mini8", "fp16-hc8-h160-n1-r48-tp8", name) for name in ("gates", "hidden")
]
ALL = [
    *(
        ("mini4", f"{dtype}-hc4-h256-n1-r320-tp{ranks}", n)
        for dtype in ("fp16", "bf16")
        for ranks in (2, 4)
        for n in FOUR
    ),
    *(("mini8", f"fp16-hc8-h160-n1-r48-tp{ranks}", name) for ranks in (2, 8) for name in EIGHT),
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in ALL if case not in QUICK)]


def right(made, seeds: int) -> None:
    checked = check(made.launches, made.expected)
    assert not checked.problems, "\n".join(map(str, checked.problems))
    fuzzed = fuzz(made.launches, made.expected, seeds, first=1)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize(("file", "label", "name"), CASES)
def test_every_kind_on_every_rank(group, file, label, name):
    """One rank a process, as in a group of GPUs."""
    made = group(label, file)
    for kind in KINDS:
        made.call(name, kind, seed=1 + made.calls)
    right(made, seeds=1)
    compared = {buffer.name.split()[0] for buffer in made.expected}
    assert {"x", "y", "lora", "block_input", "injection_out", "shard"} <= compared


@pytest.mark.parametrize(("file", "label", "name"), CASES)
def test_all_ranks_in_one_launch(group, file, label, name):
    """As on a machine with one GPU."""
    made = group(label, file)
    for kind in ("boundary", "final", "boundary"):
        made.call(name, kind, seed=1 + made.calls, one_grid=True)
    fuzzed = fuzz(made.launches, made.expected, 2, first=1)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize(
    "generation", [65_534, *(pytest.param(g, marks=pytest.mark.long) for g in (0, 2**32 - 2))]
)
@pytest.mark.parametrize("name", REAL)
def test_sixteen_inputs_with_weights_of_their_own(group, name, generation):
    """The control computes the same beside it; tags and counters wrap on the way."""
    made = group("fp16-hc4-h32-n1-r64-tp4", "tiny", generation=generation)
    for call in range(16):
        for candidate in ("replicated", name):
            made.call(candidate, "boundary", INPUT_KINDS[call % len(INPUT_KINDS)], seed=1 + call)
    right(made, seeds=1)
    counters = list(made.counters(run(made.launches).arrays, rank=2))
    assert counters[0] == {(generation + 16) % 2**32}
    exchange = {"gates": 1, "hidden": 2, "fused": 3}[name]
    assert counters[exchange] == {(generation + 16) % 2**32}


@pytest.mark.parametrize("generation", [0, 65_534, 2**32 - 2])
def test_routes_and_grids_that_alternate_on_one_channel(group, generation):
    made = group("fp16-hc4-h32-n1-r64-tp4", "tiny", generation=generation)
    for name in (
        "fused",
        "gates",
        "fused_serial",
        "fused",
        "hidden",
        "fused_serial",
        "gates",
        "hidden",
        "fused",
    ):
        made.call(name, "final" if name == "hidden" else "boundary", seed=1 + made.calls)
    right(made, seeds=6)
    down, gates, outputs, fused, more = made.counters(run(made.launches).arrays, rank=1)
    assert down == {(generation + 9) % 2**32}
    assert (gates, outputs) == ({(generation + 2) % 2**32}, {(generation + 2) % 2**32})
    assert fused == more == {(generation + 5) % 2**32}


@pytest.mark.parametrize("inputs", INPUT_KINDS)
@pytest.mark.parametrize("name", ["fused", pytest.param("all_fused", marks=pytest.mark.long)])
def test_all_kinds_of_values(group, name, inputs):
    made = group("bf16-hc4-h256-n1-r320-tp4")
    for seed in (1, 2, 3, 4) if inputs == "nonfinite" else (1,):
        made.call(name, "boundary", inputs, seed, one_grid=True)
    fuzzed = fuzz(made.launches, made.expected, 1)
    assert not fuzzed.problems, str(fuzzed)
