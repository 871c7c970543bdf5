"""2 to 16 tokens on a real GPU, through the public op: a token has the oracle's bits, and those it has alone."""

from __future__ import annotations

import pytest
from harness.bits import mismatches
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.families.hyper_connection.shape import KINDS
from kernwright.generated.dispatch import DISPATCH, TABLE, hyper_connection

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

ARGUMENTS = ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight")
RESULTS = ("x", "block_input", "injection_out")
WORKLOADS = [work for work in TABLE.workloads if work.spec == "qwen38_flash_n16"]


def as_torch(bits, dtype: str):
    import torch

    return torch.from_dlpack(bits.view("int16")).view(getattr(torch, dtype))


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
@pytest.mark.parametrize("tokens", [2, 16, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 5, 8))])
@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.label)
def test_tokens_equal_the_oracle(work, tokens, kind):
    import torch

    cupy = pytest.importorskip("cupy")
    names = ("dtype", "branches", "hidden", "low_rank", "eps", "norm_weight")
    shape = OracleShape(tokens=tokens, trees=work.trees, **{name: work.fields[name] for name in names})
    for seed, inputs in enumerate(INPUT_KINDS):
        bits = tensors(shape, inputs, seed, cupy) | (
            weights(shape, seed, kind, cupy) if kind != "combine" else {}
        )
        expected = boundary(shape, bits, kind)
        needed = {
            "first": ("residual", "norm_weight", "down_weight", "up_weight"),
            "combine": ("residual", "block", "injection"),
        }.get(kind, ARGUMENTS)
        given = [as_torch(bits[name], shape.dtype) if name in needed else None for name in ARGUMENTS]
        branches = {"branches": shape.branches}
        explained = hyper_connection.explain(*given, kind=kind, policy="control", **branches)
        assert explained.chosen == "replicated", str(explained)
        found = hyper_connection(*given, kind=kind, policy="control", **branches)
        for name, tensor in zip(RESULTS, found, strict=True):
            if name not in KINDS[kind].outputs:
                assert tensor is None
                continue
            own = cupy.from_dlpack(tensor.view(torch.int16)).view(cupy.uint16)
            difference = mismatches(own, expected[name], shape.storage)
            assert difference.count == 0, f"{inputs}, {name}: {difference.first}"
            row = tokens - 1  # alone: the kernels for one token
            alone = [
                t[row : row + 1].clone() if n in ARGUMENTS[:3] and t is not None else t
                for n, t in zip(ARGUMENTS, given, strict=True)
            ]
            single = hyper_connection(*alone, kind=kind, policy="control", **branches)[RESULTS.index(name)]
            assert torch.equal(single.view(torch.int16), tensor[row : row + 1].view(torch.int16)) or (
                tensor[row].float().isnan().any()
            )


@pytest.mark.parametrize("candidate", ["two_rows", "four_rows"])
def test_the_other_schedules_give_the_controls_bits(candidate):
    """Those that the device has a build of, at 2, 7 and 16 tokens."""
    import torch
    from kernwright.runtime.device import current, serves
    from kernwright.runtime.loader import load
    from kernwright.runtime.plan import Plan

    cupy = pytest.importorskip("cupy")
    device = current(torch.device("cuda", 0))
    for work in WORKLOADS:
        names = ("dtype", "branches", "hidden", "low_rank", "eps", "norm_weight")
        found = next(c for c in work.candidates if c.name == candidate)
        arch = serves(found.builds, device.arch)
        if arch is None:
            pytest.skip(f"{candidate} has no build for {device}")
        module = load(TABLE.root, found.builds[arch], arch, device)
        for tokens in (2, 7, 16):
            shape = OracleShape(
                tokens=tokens, trees=work.trees, **{name: work.fields[name] for name in names}
            )
            bits = tensors(shape, "normal", tokens, cupy) | weights(shape, tokens, "boundary", cupy)
            expected = boundary(shape, bits, "boundary")
            request = hyper_connection.request_for({**work.fields, "tokens": tokens}, "boundary")
            plan = Plan(found, arch, "boundary", request.signature, device, module, request.constants)
            given = [as_torch(bits[buffer.name], shape.dtype) for buffer in request.signature.inputs]
            for buffer, tensor in zip(request.signature.outputs, plan(given), strict=True):
                own = cupy.from_dlpack(tensor.view(torch.int16)).view(cupy.uint16)
                difference = mismatches(own, expected[buffer.name], shape.storage)
                assert difference.count == 0, f"{tokens} tokens, {buffer.name}: {difference.first}"
    assert not DISPATCH.stats().fallbacks
