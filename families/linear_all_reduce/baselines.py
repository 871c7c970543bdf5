"""What people run today for a row-parallel linear: the GEMM, then NCCL or PyTorch's two-shot; PyTorch's fused op."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from ...evidence.family_evidence import Call, Chain
    from .chain import LinearChain


def of(quantisation: str) -> Mapping[str, Callable[[Chain], Call]]:
    """The baselines that are installed here and take the quantisation."""
    if quantisation != "none":
        return {"serial, NCCL": nccl}
    found: dict[str, Callable[[Chain], Call]] = {"serial, NCCL": nccl}
    if hasattr(torch.ops.symm_mem, "two_shot_all_reduce_"):
        found["serial, two-shot"] = two_shot
    if hasattr(torch.ops.symm_mem, "fused_matmul_reduce_scatter"):
        found["torch fused_matmul_reduce_scatter"] = fused
    return found


def nccl(chain: Chain) -> Call:
    """cuBLAS (FP8 by `torch._scaled_mm`), then `torch.distributed.all_reduce` in place."""
    del chain

    def call(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        result = _product(inputs)
        dist.all_reduce(result)
        return [result]

    return call


def two_shot(chain: Chain) -> Call:
    """cuBLAS into symmetric memory, then `symm_mem.two_shot_all_reduce_` in place; a result of its own each call."""
    results = [_shared(cast("LinearChain", chain)) for _ in range(chain.calls)]
    calls = 0

    def call(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        nonlocal calls
        x, weight = inputs
        result = results[calls % len(results)]
        calls += 1
        torch.mm(x, weight.t(), out=result)
        summed: torch.Tensor = torch.ops.symm_mem.two_shot_all_reduce_(result, "sum", _name())
        return [summed]

    return call


def fused(chain: Chain) -> Call:
    """`symm_mem.fused_matmul_reduce_scatter`, then an all-gather: pipelined by PyTorch."""
    del chain

    def call(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        x, weight = inputs
        part = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight.t(), "sum", 0, _name())
        result = x.new_empty((x.shape[0], weight.shape[0]))
        dist.all_gather_into_tensor(result, part)
        return [result]

    return call


def _product(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    from .overlap.quantise import quantise_rows

    x, weight, *scale = inputs
    if not scale:
        return torch.mm(x, weight.t())
    codes, scales = quantise_rows(x)
    return torch._scaled_mm(
        codes,
        weight.view(torch.float8_e4m3fn).t(),
        scale_a=scales,
        scale_b=scale[0].t(),
        out_dtype=x.dtype,
    )


def _shared(chain: LinearChain) -> torch.Tensor:
    """[M, N] in symmetric memory; collective."""
    symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
    m, n = chain.x.shape[0], chain.weights[0][0].shape[0]
    tensor: torch.Tensor = symmetric.empty(m * n, dtype=chain.x.dtype, device=chain.x.device)
    symmetric.rendezvous(tensor, dist.group.WORLD)
    return tensor.view(m, n)


def _name() -> str:
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)
