"""What users run today for a row-parallel linear: the GEMM, then NCCL or PyTorch's two-shot; PyTorch's fused op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from ..all_reduce.baselines import group_name, shared
from .overlap.gemm import scaled_gemm
from .overlap.quantise import quantise_rows

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
    linears = cast("LinearChain", chain)
    like = linears.x.new_empty(linears.x.shape[0], linears.weights[0][0].shape[0])
    results = [shared(like) for _ in range(chain.calls)]
    calls = 0

    def call(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        nonlocal calls
        x, weight = inputs
        result = results[calls % len(results)]
        calls += 1
        torch.mm(x, weight.t(), out=result)
        summed: torch.Tensor = torch.ops.symm_mem.two_shot_all_reduce_(result, "sum", group_name())
        return [summed]

    return call


def fused(chain: Chain) -> Call:
    """`symm_mem.fused_matmul_reduce_scatter`, then an all-gather: pipelined by PyTorch."""
    del chain

    def call(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        x, weight = inputs
        part = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight.t(), "sum", 0, group_name())
        result = x.new_empty((x.shape[0], weight.shape[0]))
        dist.all_gather_into_tensor(result, part)
        return [result]

    return call


def _product(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    x, weight, *scale = inputs
    if not scale:
        return torch.mm(x, weight.t())
    result = x.new_empty(x.shape[0], weight.shape[0])
    codes, scales = quantise_rows(x)
    scaled_gemm(codes, scales, weight.view(torch.float8_e4m3fn), scale[0], None)(0, x.shape[0], result)
    return result
