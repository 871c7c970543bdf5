"""Tensor cores on a real GPU: near FP64, a token's bits whatever is around it, and a thousand equal replays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.oracle.closeness import Bounds, distance, outside
from kernwright.families.hyper_connection.evidence import EVIDENCE, shape_of
from kernwright.families.hyper_connection.truth import boundary as truth
from kernwright.generated.dispatch import DISPATCH, TABLE
from kernwright.runtime.device import current, serves

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

KINDS = ("boundary", "first", "combine", "final")
TOKENS = (1, 2, 16, 17, 64, 65, 300, 512)
BY_TOKEN = ("residual", "block", "injection")


def serving(dtype: str, tokens: int) -> Any:
    """The library's workload of HC4, H2560, R320 on one rank that serves so many tokens."""
    wanted = {"dtype": dtype, "branches": 4, "hidden": 2560, "low_rank": 320, "world_size": 1}
    return next(
        work
        for work in TABLE.workloads
        if work.family == "hyper_connection"
        and all(work.fields[name] == value for name, value in wanted.items())
        and work.fields["tokens"][0] <= tokens <= work.fields["tokens"][1]
    )


def candidates(work: Any) -> list[Any]:
    import torch

    here = current(torch.device("cuda", 0))
    return [c for c in work.candidates if c.route == "tensor_core" and serves(c.builds, here.arch)]


def call(work: Any, candidate: Any, kind: str, given: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The outputs by name."""
    import torch

    here = current(torch.device("cuda", 0))
    arch = serves(candidate.builds, here.arch)
    plan = DISPATCH.plan_named(work.name, candidate.name, arch, kind, here, at=tokens)
    results = plan([given[buffer.name] for buffer in plan.signature.inputs])
    return {buffer.name: result for buffer, result in zip(plan.signature.outputs, results, strict=True)}


def rows(given: Mapping[str, Any], first: int, count: int) -> dict[str, Any]:
    """The call of some of the tokens, in memory of its own: a slice may begin where no word does."""
    return {n: t[first : first + count].clone() if n in BY_TOKEN else t for n, t in given.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_near_fp64(dtype: str, tokens: int, kind: str, figures: dict[str, object]) -> None:
    """Every kind of values; torch eager's own distance beside it."""
    import torch

    work = serving(dtype, tokens)
    assert candidates(work)
    for seed, inputs in enumerate(("normal", "large", "tiny", "nonfinite", "signed_zero", "ties")):
        case = Case(kind, inputs, seed + 1, tokens)
        given = EVIDENCE.tensors(work, case, torch.device("cuda", 0))
        wanted, plain = EVIDENCE.truth(work, case, given), EVIDENCE.eager(work, case, given)
        for candidate in candidates(work):
            found = call(work, candidate, kind, given, tokens)
            for name, tensor in found.items():
                wrong = int(outside(tensor, wanted[name], Bounds.of(candidate.tolerance)).sum())
                own, eager = distance(tensor, wanted[name]), distance(plain[name], wanted[name])
                where = f"{work.label}, {candidate.name}, {kind}, {tokens} tokens, {inputs}, {name}"
                assert wrong == 0, f"{where}: {own:.3e}; torch eager {eager:.3e}"
                if inputs == "normal":
                    print(f"{where}: {own:.3e}; torch eager {eager:.3e}")
                    figures[where] = [own, eager]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_near_unrounded_fp64_as_torch_eager_is(dtype: str) -> None:
    """From the function itself, whose rounding points count: about as far as torch eager."""
    import torch

    for tokens in (16, 64, 512):
        work = serving(dtype, tokens)
        case = Case("boundary", "normal", 3, tokens)
        given = EVIDENCE.tensors(work, case, torch.device("cuda", 0))
        wanted = truth(shape_of(work, tokens), given, rounded=False)
        plain = EVIDENCE.eager(work, case, given)
        for candidate in candidates(work):
            for name, tensor in call(work, candidate, "boundary", given, tokens).items():
                own, eager = distance(tensor, wanted[name]), distance(plain[name], wanted[name])
                print(f"{work.label}, {candidate.name}, {name}: {own:.3e}; torch eager {eager:.3e}")
                assert own <= 1.25 * eager, f"{work.label}, {candidate.name}, {name}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_token_has_the_same_bits_in_every_batch(dtype: str) -> None:
    """Alone, in other batches, in other workloads, by every candidate; whatever the tokens around it hold."""
    import torch

    most = 512
    work = serving(dtype, most)
    given = EVIDENCE.tensors(work, Case("boundary", "normal", 7, most), torch.device("cuda", 0))
    other = EVIDENCE.tensors(work, Case("boundary", "nonfinite", 8, most), torch.device("cuda", 0))
    whole = {c.name: call(work, c, "boundary", given, most) for c in candidates(work)}
    reference = whole["tensor_core"]
    for results in whole.values():
        for name, tensor in results.items():
            assert torch.equal(tensor.view(torch.int16), reference[name].view(torch.int16)), name
    for tokens in (1, 2, 3, 8, 9, 16, 17, 24, 49, 64, 65, 97, 511):
        for first in {0, min(5, most - tokens), most - tokens}:
            for candidate in candidates(serving(dtype, tokens)):
                found = call(
                    serving(dtype, tokens), candidate, "boundary", rows(given, first, tokens), tokens
                )
                for name, tensor in found.items():
                    expected = reference[name][first : first + tokens]
                    where = f"{tokens} tokens from {first}, {candidate.name}, {name}"
                    assert torch.equal(tensor.view(torch.int16), expected.view(torch.int16)), where
    mixed = {n: t.clone() for n, t in given.items()}
    for name in BY_TOKEN:  # every second token is foreign
        mixed[name][1::2] = other[name][1::2]
    found = call(work, candidates(work)[0], "boundary", mixed, most)
    for name, tensor in found.items():
        assert torch.equal(tensor[0::2].view(torch.int16), reference[name][0::2].view(torch.int16)), name


@pytest.mark.parametrize("tokens", [1, 16, 64, 512])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_thousand_replays_are_identical(dtype: str, tokens: int) -> None:
    import torch

    work = serving(dtype, tokens)
    given = EVIDENCE.tensors(work, Case("boundary", "normal", 9, tokens), torch.device("cuda", 0))
    here = current(torch.device("cuda", 0))
    for candidate in candidates(work):
        arch = serves(candidate.builds, here.arch)
        plan = DISPATCH.plan_named(work.name, candidate.name, arch, "boundary", here, at=tokens)
        inputs = [given[buffer.name] for buffer in plan.signature.inputs]
        expected = [tensor.clone() for tensor in plan(inputs)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = plan(inputs)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(1000):
            for tensor in results:
                tensor.view(torch.int16).fill_(0x7E5A)
            graph.replay()
            for tensor, wanted in zip(results, expected, strict=True):
                wrong += (tensor.view(torch.int16) != wanted.view(torch.int16)).sum()
        assert int(wrong) == 0, f"{work.label}, {candidate.name}"


@pytest.mark.parametrize("tokens", [17, 40, 64, 65, 512])
def test_the_exact_control_of_many_tokens_has_the_bits_of_one(tokens: int) -> None:
    """Blocks of 16 tokens: each has the bits that the kernels for one token give it."""
    import torch

    for dtype in ("float16", "bfloat16"):
        work, single = serving(dtype, tokens), serving(dtype, 1)
        given = EVIDENCE.tensors(work, Case("boundary", "normal", 11, tokens), torch.device("cuda", 0))
        found = call(work, work.control, "boundary", given, tokens)
        for token in (0, 15, 16, tokens // 2, tokens - 1):
            alone = call(single, single.control, "boundary", rows(given, token, 1), 1)
            for name, tensor in alone.items():
                same = torch.equal(tensor.view(torch.int16), found[name][token : token + 1].view(torch.int16))
                assert same, f"{work.label}, token {token} of {tokens}, {name}"


def test_exact_calls_never_take_it() -> None:
    """By the op: under exact=True an exact candidate serves 512 tokens, and says so."""
    import torch
    from kernwright.generated.dispatch import hyper_connection

    work = serving("float16", 512)
    given = EVIDENCE.tensors(work, Case("boundary", "normal", 1, 512), torch.device("cuda", 0))
    explained = hyper_connection.explain(*given.values(), branches=4, exact=True)
    assert (explained.contract, explained.chosen) == ("exact", "replicated"), str(explained)
