"""What a spec file may say of route `tensor_core`, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest
from kernwright.families.hyper_connection.lowering import lower
from kernwright.families.hyper_connection.spec import SPEC
from kernwright.generator.identity import code_digest
from pydantic import ValidationError

WORKLOAD = {
    "dtype": "float16",
    "branches": 4,
    "hidden": 2560,
    "low_rank": 320,
    "tokens": {"min": 65, "max": 512},
}
CONTROL = {"name": "replicated", "arch": ["sm_80", "sm_90"], "route": "replicated"}
CANDIDATE = {
    "name": "mma",
    "arch": ["sm_80", "sm_90"],
    "route": "tensor_core",
    "tolerance": {"relative_l2": 8e-3},
}


def spec(workload: dict[str, Any] | None = None, **options: Any) -> Any:
    candidate = {key: value for key, value in (CANDIDATE | options).items() if value is not None}
    archs = sorted({*CONTROL["arch"], *candidate["arch"]})
    return SPEC.model_validate(
        {
            "family": "hyper_connection",
            "name": "a",
            "workload": WORKLOAD | (workload or {}),
            "candidate": [CONTROL | {"arch": archs}, candidate],
        }
    )


@pytest.mark.parametrize(
    ("workload", "options", "sentence"),
    [
        (
            {},
            {"contract": "exact", "tolerance": None},
            'found "exact"; no specification states the order in which tensor cores',
        ),
        ({}, {"tolerance": None}, 'contract is "tolerance", but there is no tolerance'),
        ({}, {"arch": ["sm_75", "sm_80"]}, r'"?sm_75"? lacks mma\.m16n8k16'),
        ({}, {"tokens_per_cta": 12}, "found 12; an mma takes 8 tokens"),
        ({}, {"segments": 7}, r"needs branches \* hidden to be a multiple of 1792; it is 10240"),
        ({"low_rank": 72}, {}, "needs low_rank to be a multiple of 32; it is 72"),
        ({"hidden": 2568}, {}, "needs hidden to be a multiple of 16; it is 2568"),
        (
            {"low_rank": 1024},
            {},
            "a thread would hold 256 words of weights; 128 are allowed: take another route",
        ),
        (
            {},
            {"row_tiles": 4},
            "a thread would hold 160 words of weights; 128 are allowed: lower row_tiles or raise segments",
        ),
        (
            {},
            {"tokens_per_cta": 128, "row_tiles": 3},
            "128 tokens of a CTA of down need 212992 bytes .* or row_tiles",
        ),
        (
            {},
            {"tokens_per_cta": 160, "warps": 2},
            "160 tokens of a CTA of up_mix need 51200 bytes of shared memory; 49152",
        ),
        ({"tokens": {"min": 65, "max": 2000}}, {}, "serves up to 1024 tokens; tokens is up to 2000"),
    ],
)
def test_what_doesnt_fit_is_a_sentence(
    workload: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ValidationError, ValueError), match=sentence):
        spec(workload, **options)


def test_grids_follow_tokens_and_rows() -> None:
    """21 tiles of 16 rows; blocks of tokens; sums that don't depend on either."""
    made = spec(row_tiles=3, tokens_per_cta=48)
    (work,) = made.workloads()
    wide, narrow = lower(work, made.candidates[1]), lower(work, spec().candidates[1])
    assert [low.kernels["down"].grid for low in (wide, narrow)] == [(7, 8, 11), (21, 8, 8)]
    assert [low.kernels["up_mix"].grid for low in (wide, narrow)] == [(160, 11, 1), (160, 8, 1)]
    assert [low.kernels["down"].shared_bytes for low in (wide, narrow)] == [8 * 48 * 52 * 4, 8 * 64 * 20 * 4]
    assert (wide.constants["steps"], wide.scratch["partials"]) == (5, ((512, 8, 336), "float32"))
    assert [wide.constants["tilings"][k].ragged for k in ("down", "down_final")] == [False, True]
    one = spec({"tokens": 1})
    alone = lower(one.workloads()[0], one.candidates[1])
    assert alone.constants["tokens_per_cta"] == 16  # two tiles: see `tokens_at_once`
    assert (alone.kernels["down"].grid, alone.constants["steps"]) == ((21, 8, 1), 5)


def test_bounds_are_part_of_the_identity() -> None:
    """A record is of the bounds that the text states; a budget isn't."""
    made = spec()
    (work,) = made.workloads()

    def digest(candidate: Any) -> str:
        lowering = lower(work, candidate)
        symbols = {kernel: kernel for kernel in lowering.kernels}
        return code_digest(work, candidate, lowering, symbols, "0" * 64, "sm_90")

    known = digest(made.candidates[1])
    assert known == digest(spec(budget={"registers": 200}).candidates[1])
    assert known != digest(spec(tolerance={"relative_l2": 1e-3}).candidates[1])
