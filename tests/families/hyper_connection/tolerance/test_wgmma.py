"""Warpgroups on the emulator: near FP64, a token's bits whatever is around it, and what a changed text does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kernwright.emulator import check, find_races, fuzz
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.oracle.closeness import Bounds

from .test_tensor_core import KINDS, bits, broken

FP16, BF16 = "fp16-hc4-h256-n1to150-r64-tp1", "bf16-hc4-h256-n1to150-r64-tp1"


@pytest.mark.parametrize(
    ("label", "name", "tokens", "kind"),
    [
        (FP16, "wgmma", 70, "boundary"),
        (FP16, "wgmma", 1, "first"),
        (BF16, "wgmma_wide", 70, "final"),
        (BF16, "wgmma_wide", 1, "combine"),
        *(
            pytest.param(label, name, tokens, kind, marks=pytest.mark.long)
            for label, name, tokens in ((FP16, "wgmma", 130), (BF16, "wgmma_wide", 150))
            for kind in KINDS
        ),
    ],
)
def test_near_fp64(small: Any, label: str, name: str, tokens: int, kind: str) -> None:
    """Within a tenth of what the spec allows; nothing is read that wasn't written, nothing left unwritten."""
    called = small.call(label, name, Case(kind, "normal", 3, tokens))
    checked = check(called.launches)
    assert checked.problems == ()
    assert broken(called, checked.arrays, Bounds(relative_l2=8e-4)) == {}


LONG = [
    pytest.param(each, marks=pytest.mark.long) for each in ("zeros", "tiny", "large", "subnormal", "ties")
]


@pytest.mark.parametrize("inputs", ["signed_zero", "nonfinite", *LONG])
@pytest.mark.parametrize("label", [FP16, BF16])
def test_every_kind_of_values(small: Any, label: str, inputs: str) -> None:
    called = small.call(label, "wgmma", Case("boundary", inputs, 4, 11))
    checked = check(called.launches)
    assert checked.problems == ()
    assert broken(called, checked.arrays, Bounds(relative_l2=8e-3)) == {}


@pytest.mark.long
@pytest.mark.parametrize(("label", "name"), [(FP16, "wgmma"), (BF16, "wgmma_wide")])
def test_a_token_has_the_same_bits_in_every_batch(small: Any, label: str, name: str) -> None:
    """Alone, in another tile, at the end of a batch."""
    case = Case("boundary", "normal", 5, 140)
    whole = bits(small.call(label, name, case))
    assert set(whole) == {"x", "y", "lora", "injection_out", "block_input"}
    for rows in (slice(139, 140), slice(60, 70), slice(7, 124)):
        for tensor, found in bits(small.call(label, name, case, rows=rows)).items():
            assert torch.equal(found, whole[tensor][rows]), (rows, tensor)


@pytest.mark.long
def test_every_schedule_of_threads_gives_the_same_bits(small: Any) -> None:
    for label, name, tokens in ((FP16, "wgmma", 70), (BF16, "wgmma_wide", 9)):
        called = small.call(label, name, Case("boundary", "normal", 8, tokens))
        assert fuzz(called.launches, None, 2).problems == ()


@pytest.mark.long
def test_no_race(small: Any) -> None:
    called = small.call(FP16, "wgmma", Case("boundary", "normal", 9, 70))
    for launch in called.launches[1:]:  # combine_norm is the replicated route's
        few = replace(launch, grid=(min(launch.grid[0], 2), min(launch.grid[1], 2), min(launch.grid[2], 2)))
        assert find_races([few]) == ()


@pytest.mark.long
@pytest.mark.parametrize(
    "edit",
    [
        (
            "for (int block = 0; block < BLOCKS; ++block) {\n    wait",
            "for (int block = 1; block < BLOCKS; ++block) {\n    wait",
        ),
        ("wait_for_copy_groups<AHEAD - 1>();", ""),  # products of what may not have arrived
        ("AHEAD = STAGES - 2", "AHEAD = STAGES - 1"),  # a stage is filled while its products are under way
        ("min(first + row, tokens - 1) * STATE", "first * STATE"),  # another token's activations
        ("stage + group * 64 * ROW_BYTES", "stage"),  # the second warpgroup takes the tokens of the first
        ("(chunk ^ (row & 7)) << 4", "chunk << 4"),  # the layout that products don't expect
        ("c % 8 / 2 * 8 + c / 8 * 2 + c % 2", "c"),  # gates of other coordinates
        (
            "meet_at(group + 1, 128);  // the whole",
            "// the whole",
        ),  # inputs are overwritten while others need them
        ("products.wait<0>();\n      meet_at", "meet_at"),
        ("near_sigmoid(gate)", "gate"),
        ("token + half * 8 < static_cast<int>(tokens)", "true"),  # stores behind the last token
        ("const float t = over_branches(rounded(total));", "const float t = rounded(total);"),
        (
            "for (int segment = 0; segment < SEGMENTS; ++segment) part",
            "for (int segment = 1; segment < SEGMENTS; ++segment) part",
        ),
    ],
)
def test_a_changed_text_is_found(small: Any, edit: tuple[str, str]) -> None:
    """By values, by a fault of the emulator, or by what was never written."""
    for name in ("wgmma_wide", "wgmma"):
        called = small.call(FP16, name, Case("boundary", "normal", 10, 150), edits=[edit])
        checked = check(called.launches)
        if checked.problems or broken(called, checked.arrays, Bounds(relative_l2=8e-4)):
            return
        if fuzz(called.launches, None, 4).problems:
            return
    pytest.fail("nobody has noticed")
