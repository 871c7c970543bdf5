"""Combinations that no kernel can have are spec errors, with one sentence at the key that is to blame."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernwright.specs import SpecError, load_spec

HEAD = """
family = "hyper_connection"
name = "s"
[workload]
dtype = "float16"
branches = {branches}
hidden = {hidden}
low_rank = {low_rank}
{more}
[[candidate]]
name = "control"
arch = ["sm_80", "sm_90"]
route = "replicated"
[[candidate]]
name = "fast"
arch = ["{arch}"]
{candidate}
"""
ONE, TWO = 'route = "one_kernel"\n', 'route = "two_kernels"\n'


def problems(tmp_path: Path, candidate: str, **workload: object) -> list[str]:
    """Key and message of every problem."""
    fields = {"branches": 4, "hidden": 2560, "low_rank": 320, "more": "", "arch": "sm_90"} | workload
    path = tmp_path / "s.toml"
    path.write_text(HEAD.format(candidate=candidate, **fields))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (ONE + "ctas = 130", "ctas: down: ctas is 130; a CTA serves one branch, so 4 must divide it."),
        (ONE + "ctas = 8", "ctas: a CTA's weights take 1653760 bytes of shared memory"),
        (
            ONE + "threads = 352",
            "threads: down: threads is 352; teams of 320, one thread for each lane of the norm's tree, "
            "and two warps on top make 384, 704 or 1024.",
        ),
        (
            ONE + "down = { rows_per_cta = 9 }",
            "down.rows_per_cta: down: rows_per_cta is 9; 324 rows over 33 CTAs of a branch need at least "
            "10, and a multiple of 1, the teams of a CTA.",
        ),
        (
            ONE + "threads = 704\ndown = { rows_per_cta = 11 }",
            "down.rows_per_cta: down: rows_per_cta is 11; 324 rows over 33 CTAs of a branch need at least"
            " 10, and a multiple of 2, the teams of a CTA.",
        ),
        (
            ONE + "down = { rows_at_once = 3 }",
            "down.rows_at_once: down: rows_at_once is 3; it must divide the 10 rows and make at most 32 "
            "rows: 1, 2, 5 or 10.",
        ),
        (
            ONE + "down = { converted = 11 }",
            "down.converted: down: converted is 11; at most the 10 rows that a thread multiplies at once "
            "can be.",
        ),
        (
            ONE + "up = { columns_per_cta = 30 }",
            "up.columns_per_cta: up: columns_per_cta is 30; it must divide hidden, 2560, and be a "
            "multiple of 10, the warps that compute, and at least 20 for 132 CTAs: 20, 40, 80, 160, 320 "
            "or 640.",
        ),
        (
            ONE + "up = { columns_at_once = 3 }",
            "up.columns_at_once: up: columns_at_once is 3; it must divide the 2 hidden coordinates and "
            "make at most 32 rows: 1 or 2.",
        ),
        (
            ONE + "up = { converted = 41 }",
            "up.converted: up: converted is 41; at most the 40 chunks that a lane multiplies at once can be.",
        ),
        (ONE + "up = { copies = 3 }", "up.copies: up: copies is 3; it must divide columns_per_cta, 20."),
        (ONE + "exchange_bytes = 4", "exchange_bytes: found 4; allowed are 8 or 16."),
        (ONE + "load_bytes = 4", 'load_bytes: route "one_kernel" has no option "load_bytes"'),
        (
            TWO + "up_mix = { threads = 100 }",
            "up_mix.threads: up_mix: threads is 100; it must be a multiple of 32 from 96 to 1024: two "
            "warps don't compute.",
        ),
        (
            TWO + "down = { ctas = 130 }",
            "down.ctas: down: ctas is 130; a CTA serves one branch, so 4 must divide it.",
        ),
        (
            TWO + "budget.boundary = { registers = 80 }",
            'budget.boundary: route "two_kernels" has no kernel "boundary"; its kernels are '
            "combine_norm_down, norm_down, combine_norm_down_final, up_mix, up_mix_final and combine",
        ),
    ],
)
def test_options(tmp_path, candidate, message):
    (found,) = problems(tmp_path, candidate)
    assert found.startswith(f"candidate[1].{message}")


@pytest.mark.parametrize("candidate", [ONE, TWO])
@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"more": "tokens = { min = 1, max = 4 }"}, "serves tokens = 1 alone; tokens is 1 to 4."),
        ({"hidden": 2568}, "gives every thread one chunk of 8 elements, to normalise and to multiply"),
        ({"more": "tree = { down = [2, 320, 8] }"}, "gives every thread one chunk of 8 elements"),
        ({"more": "tree = { norm = [1, 160, 8] }"}, "gives every thread one chunk of 8 elements"),
        (
            {"more": "tree = { up = [1, 16, 2] }"},
            "sums a row of up in one warp: it needs up = [1, 32, chunk]",
        ),
        ({"low_rank": 96}, "needs a low_rank that 64 divides, 32 lanes x chunk 2; low_rank is 96."),
    ],
)
def test_workloads(tmp_path, candidate, workload, message):
    (found,) = problems(tmp_path, candidate, **workload)
    assert found.startswith("candidate[1].route: ")
    assert message in found


def test_targets_and_eps(tmp_path):
    (older,) = problems(tmp_path, ONE, arch="sm_80")
    assert older == (
        'candidate[1].arch: route "one_kernel" needs programmatic launches and bulk copies, which sm_80 doesn\'t '
        "have; list sm_90, sm_90a or sm_100a."
    )
    (tiny,) = problems(tmp_path, ONE, more="eps = 1e-30")
    assert tiny.startswith(
        "candidate[1].seeded: seeded arithmetic is exact for eps from 2^-70 on; eps is 1e-30"
    )


def test_an_odd_number_of_branches_takes_words_one_by_one(tmp_path):
    (found,) = problems(tmp_path, ONE + "ctas = 132", branches=3, low_rank=64, hidden=512)
    assert found == (
        "candidate[1].exchange_bytes: two words a load need an even number of branches, not 3; take 8."
    )


def test_what_no_cta_can_have(tmp_path):
    (found,) = problems(tmp_path, ONE, hidden=8192)
    assert "candidate[1].threads: down: a team has 1024 threads" in found
