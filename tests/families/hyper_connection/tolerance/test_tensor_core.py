"""Tensor cores on the emulator: near FP64, a token's bits whatever is around it, and what a changed text does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kernwright.emulator import check, find_races, fuzz, run
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.oracle.closeness import Bounds, distance, outside
from kernwright.evidence.tensors import as_torch
from kernwright.families.hyper_connection.evidence import EVIDENCE

KINDS = ("boundary", "first", "combine", "final")
FP16, BF16 = "fp16-hc4-h256-n1to40-r64-tp1", "bf16-hc4-h256-n1to40-r64-tp1"
ODD = "fp16-hc3-h64-n1to20-r32-tp1"


def broken(called: Any, arrays: Any, bounds: Bounds) -> dict[str, float]:
    """Distances of what lies outside the bounds, by tensor."""
    found = {}
    for buffer, array in arrays.items():
        if buffer.name in called.truth:
            tensor = as_torch(array, buffer.dtype, torch.device("cpu"))
            truth = called.truth[buffer.name].reshape(tensor.shape)
            if bool(outside(tensor, truth, bounds).any()):
                found[buffer.name] = distance(tensor, truth)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("label", "name", "tokens"),
    [
        (FP16, "tensor_core", 1),
        (FP16, "tensor_core", 40),
        (FP16, "wide", 9),
        (FP16, "wide", 25),
        (BF16, "wide", 17),
        (BF16, "tensor_core", 16),
        (ODD, "tensor_core", 20),
    ],
)
def test_near_fp64(small: Any, label: str, name: str, tokens: int, kind: str) -> None:
    """Within a tenth of what the spec allows; nothing is read that wasn't written, nothing left unwritten."""
    called = small.call(label, name, Case(kind, "normal", 3, tokens))
    checked = check(called.launches)
    assert checked.problems == ()
    assert broken(called, checked.arrays, Bounds(relative_l2=8e-4)) == {}


@pytest.mark.parametrize(
    "inputs", ["zeros", "tiny", "large", "subnormal", "signed_zero", "nonfinite", "ties"]
)
@pytest.mark.parametrize("label", [FP16, BF16])
def test_every_kind_of_values(small: Any, label: str, inputs: str) -> None:
    called = small.call(label, "wide", Case("boundary", inputs, 4, 11))
    checked = check(called.launches)
    assert checked.problems == ()
    assert broken(called, checked.arrays, Bounds(relative_l2=8e-3)) == {}


def bits(called: Any) -> dict[str, torch.Tensor]:
    found = {}
    for buffer, array in run(called.launches).arrays.items():
        if buffer.name in called.truth:
            found[buffer.name] = torch.from_numpy(array.view("int16")).reshape(
                called.truth[buffer.name].shape
            )
    return found


@pytest.mark.parametrize("label", [FP16, BF16])
def test_a_token_has_the_same_bits_in_every_batch(small: Any, label: str) -> None:
    """By every schedule of the same sums: row tiles and tokens of a CTA change no bit."""
    case = Case("boundary", "normal", 5, 40)
    whole = bits(small.call(label, "tensor_core", case))
    assert set(whole) == {"x", "y", "lora", "injection_out", "block_input"}
    for name, rows in (("wide", slice(0, 40)), ("tensor_core", slice(39, 40)), ("wide", slice(7, 24))):
        for tensor, found in bits(small.call(label, name, case, rows=rows)).items():
            assert torch.equal(found, whole[tensor][rows]), (name, rows, tensor)


def test_a_token_of_numbers_between_tokens_that_arent(small: Any) -> None:
    """Inf and NaN stay in their own token."""
    case = Case("boundary", "nonfinite", 6, 8)
    called = small.call(FP16, "tensor_core", case)
    assert bool(called.truth["block_input"].isnan().any())
    alone = bits(small.call(FP16, "tensor_core", case, rows=slice(4, 5)))
    together = bits(called)
    numbers = ~called.truth["block_input"][4].isnan()
    assert bool(numbers.all())
    assert torch.equal(together["block_input"][4], alone["block_input"][0])


@pytest.mark.parametrize("tokens", [17, 33])
def test_the_exact_control_in_blocks_of_sixteen(small: Any, tokens: int) -> None:
    """Against the array oracle, whose answer doesn't know of blocks; and fuzzed."""
    from kernwright.evidence.emulated import emulated

    for kind in KINDS:
        case = Case(kind, "normal", 7, tokens)
        work = small.workload(FP16)
        found = emulated(small.dispatch, EVIDENCE, work, work.control, "sm_80", case)
        assert check(found.program.launches, found.expected).problems == (), kind
        assert fuzz(found.program.launches, found.expected, 1, first=3).problems == (), kind


def test_every_schedule_of_threads_gives_the_same_bits(small: Any) -> None:
    for label, name, tokens in ((FP16, "wide", 9), (ODD, "tensor_core", 20)):
        called = small.call(label, name, Case("boundary", "normal", 8, tokens))
        assert fuzz(called.launches, None, 3).problems == ()


def test_no_race(small: Any) -> None:
    called = small.call(ODD, "tensor_core", Case("boundary", "normal", 9, 9))
    for launch in called.launches[1:]:  # combine_norm is the replicated route's
        few = replace(launch, grid=(min(launch.grid[0], 2), min(launch.grid[1], 2), launch.grid[2]))
        assert find_races([few]) == ()


@pytest.mark.parametrize(
    "edit",
    [
        ("for (int part = 1; part < WARPS;", "for (int part = 1; part < WARPS - 1;"),  # a part is left out
        (
            "for (int segment = 0; segment < SEGMENTS; ++segment) part",
            "for (int segment = 1; segment < SEGMENTS; ++segment) part",
        ),
        (
            "min(tile + group, count - 1)) * STATE",
            "min(tile + group, 0u)) * STATE",
        ),  # another token's activations
        ("min(tile + group, count - 1)) * LOW_RANK", "min(tile + group, 0u)) * LOW_RANK"),
        ("load_ahead(low + 8 * stride)", "load_ahead(low)"),  # the upper rows of a tile
        (
            "rows.low.z, rows.high.z, rows.low.w, rows.high.w, token.z, token.w",
            "rows.low.z, rows.high.z, rows.low.w, rows.high.w, token.w, token.z",
        ),
        ("sigmoid(rounded(sum[e]))", "rounded(sum[e])"),
        ("tile + 2 * place + e % 2, i * TILE_ROWS", "tile + 2 * place + 1 - e % 2, i * TILE_ROWS"),
        ("const float t = over_branches(rounded(total));", "const float t = rounded(total);"),
        (
            "(first + token) * STATE + origin + row",
            "token * STATE + origin + row",
        ),  # of the first CTA's tokens
    ],
)
def test_a_changed_text_is_found(small: Any, edit: tuple[str, str]) -> None:
    """Every one of them lies outside the bounds that the library states."""
    called = small.call(FP16, "wide", Case("boundary", "normal", 10, 27), edits=[edit])
    checked = check(called.launches)
    bounds = Bounds.of(small.candidate(FP16, "wide").tolerance)
    assert checked.problems or broken(called, checked.arrays, bounds)


@pytest.mark.parametrize("barrier", [0, 1, 2])
def test_a_missing_barrier_is_a_race(small: Any, barrier: int) -> None:
    """The two phases of each matrix kernel meet once: in down, in down_final, and in up_mix."""
    candidate = small.candidate(ODD, "tensor_core")
    text = (small.dispatch.table.root / candidate.builds["sm_80"].source).read_text(encoding="utf-8")
    parts = text.split("  __syncthreads();\n")
    assert len(parts) - 1 == 3  # a norm of eight lanes needs none
    kind = "final" if barrier == 1 else "boundary"
    joined = parts[barrier] + "  __syncthreads();\n" + parts[barrier + 1]
    called = small.call(
        ODD, "tensor_core", Case(kind, "normal", 9, 9), edits=[(joined, parts[barrier] + parts[barrier + 1])]
    )
    few = [
        replace(launch, grid=(min(launch.grid[0], 2), min(launch.grid[1], 2), launch.grid[2]))
        for launch in called.launches
    ]
    assert any(find_races([launch]) for launch in few)
