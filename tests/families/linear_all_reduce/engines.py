"""Doubles of serving engines' row-parallel linears: what calls what, which attributes are read, and signatures.

They mimic, without their code: vLLM 0.33.0 (vllm/model_executor/layers/linear.py, layers/quantization/fp8.py,
lora/layers/row_parallel_linear.py and base_linear.py), SGLang 0.5.2 (sglang/srt/layers/linear.py) and SGLang 0.5.23
(the same file and sglang/srt/lora/layers.py). A class says that it is of the engine's module, as it is recognised by
name.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch
import torch.distributed as distributed

VLLM = "vllm.model_executor.layers.linear"
SGLANG = "sglang.srt.layers.linear"
RANKS = 2

parallel_state = SimpleNamespace(get_tp_group=lambda: None)
forward_flags = SimpleNamespace(skip=False)


def tensor_model_parallel_all_reduce(partial):
    """As both engines': out of place."""
    total = partial.clone()
    distributed.all_reduce(total)
    return total


def split_tensor_along_last_dim(x, num_partitions):
    return x.chunk(num_partitions, dim=-1)


@contextlib.contextmanager
def use_symmetric_memory(group):
    yield SimpleNamespace(tag=lambda _: None)


def should_skip_mlp_all_reduce():
    """SGLang 0.5.23: a flag of the forward pass, which a decoder sets."""
    return forward_flags.skip


class Unquantized:
    """Multiplies by `layer.weight` [N, K]."""

    def apply(self, layer, x, bias=None):
        return torch.nn.functional.linear(x, layer.weight, bias)


VllmUnquantized = type("UnquantizedLinearMethod", (Unquantized,), {"__module__": VLLM})
SglangUnquantized = type("UnquantizedLinearMethod", (Unquantized,), {"__module__": SGLANG})


class VllmFp8:
    """vLLM 0.33.0 Fp8LinearMethod after loading: the weight is [K, N], a view of [N, K]; x is quantised by token."""

    __module__ = "vllm.model_executor.layers.quantization.fp8"
    __qualname__ = "Fp8LinearMethod"

    def apply(self, layer, x, bias=None):
        assert bias is None
        return (x.float() @ (layer.weight.float() * layer.weight_scale)).to(x.dtype)


class Linear(torch.nn.Module):
    """What both engines' classes state of themselves."""

    def __init__(self, n, k, method, rank, dtype=torch.float32, bias=False):
        super().__init__()
        generator = torch.Generator().manual_seed(100 * n + 10 * k + rank)
        weight = torch.randn(n, k, generator=generator).to(dtype)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = torch.nn.Parameter(torch.ones(n), requires_grad=False) if bias else None
        self.output_size, self.input_size, self.input_size_per_partition = n, k * RANKS, k
        self.skip_bias_add, self.input_is_parallel, self.reduce_results = False, True, True
        self.tp_rank, self.tp_size, self.quant_method = rank, RANKS, method


class VllmRowParallel(Linear):
    """vLLM 0.33.0 RowParallelLinear."""

    __module__ = VLLM
    __qualname__ = "RowParallelLinear"
    return_bias = True

    def forward(self, input_):
        if self.input_is_parallel:
            own = input_
        else:
            own = split_tensor_along_last_dim(input_, num_partitions=self.tp_size)[self.tp_rank].contiguous()
        bias = None if (self.tp_rank > 0 or self.skip_bias_add) else self.bias
        partial = self.quant_method.apply(self, own, bias)
        total = (
            tensor_model_parallel_all_reduce(partial) if self.reduce_results and self.tp_size > 1 else partial
        )
        if not self.return_bias:
            return total
        return total, self.bias if self.skip_bias_add else None


class VllmRowParallelWithLora(torch.nn.Module):
    """vLLM 0.33.0 RowParallelLinearWithLoRA: multiplies by the base layer's method and reduces by itself."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.tp_rank, self.tp_size = base_layer.tp_rank, base_layer.tp_size

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, input_):
        base = self.base_layer
        partial = base.quant_method.apply(base, input_, None) + 1.0  # what the adapter adds
        total = (
            tensor_model_parallel_all_reduce(partial) if base.reduce_results and self.tp_size > 1 else partial
        )
        return total if not base.return_bias else (total, None)


class SglangRowParallel(Linear):
    """SGLang 0.5.2 RowParallelLinear: always a pair, and a caller may ask it not to reduce."""

    __module__ = SGLANG
    __qualname__ = "RowParallelLinear"

    def forward(self, input_, skip_all_reduce=False):
        bias = None if (self.tp_rank > 0 or self.skip_bias_add) else self.bias
        with use_symmetric_memory(parallel_state.get_tp_group()) as memory:
            partial = self.quant_method.apply(self, input_, bias=bias)
            memory.tag(partial)
        reduces = self.reduce_results and self.tp_size > 1 and not skip_all_reduce
        total = tensor_model_parallel_all_reduce(partial) if reduces else partial
        return total, self.bias if self.skip_bias_add else None


class SglangFlagged(Linear):
    """SGLang 0.5.23 RowParallelLinear: flags of the forward pass decide whether it reduces."""

    __module__ = SGLANG
    __qualname__ = "RowParallelLinear"

    def forward(self, input_, skip_all_reduce=False, forward_batch=None, output_tensor=None):
        assert forward_batch is output_tensor is None
        partial = self.quant_method.apply(self, input_, bias=None)
        if self.reduce_results and not skip_all_reduce and not should_skip_mlp_all_reduce():
            return tensor_model_parallel_all_reduce(partial), None
        return partial, None


class SglangRowParallelWithLora(torch.nn.Module):
    """SGLang 0.5.23 RowParallelLinearWithLoRA: copies the base layer's weight and `reduce_results` onto itself."""

    __module__ = "sglang.srt.lora.layers"

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.weight, self.reduce_results = base_layer.weight, base_layer.reduce_results

    def forward(self, input_, skip_all_reduce=False):
        partial = self.base_layer.quant_method.apply(self.base_layer, input_, bias=None) + 1.0
        return (partial if skip_all_reduce else tensor_model_parallel_all_reduce(partial)), None


class Plain(torch.nn.Module):
    """A plain torch module that states what a row-parallel layer states."""

    def __init__(self, n, k, rank, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(100 * n + 10 * k + rank)
        weight = torch.randn(n, k, generator=generator).to(dtype)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias, self.reduce_results, self.input_is_parallel = None, True, True
        self.tp_rank, self.tp_size = rank, RANKS

    def multiply(self, x):
        return torch.nn.functional.linear(x, self.weight)

    def forward(self, x):
        partial = self.multiply(x)
        return tensor_model_parallel_all_reduce(partial) if self.reduce_results else partial


class StoredTransposed(Plain):
    """FP8 [K, N] in rows, N = K: by its shape it could be [N, K]."""

    def __init__(self, n, rank):
        super().__init__(n, n, rank)
        self.weight = torch.nn.Parameter(self.weight.to(torch.float8_e4m3fn), requires_grad=False)
        self.weight_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)

    def multiply(self, x):
        return (x.float() @ self.weight.float()).to(x.dtype)


class StoredAsServed(StoredTransposed):
    """FP8 [N, K]."""

    def multiply(self, x):
        return (x.float() @ self.weight.float().t()).to(x.dtype)


class Averaging(Plain):
    """Its result isn't the sum."""

    def forward(self, x):
        return super().forward(x) / self.tp_size


class Fails(Plain):
    """Its forward needs something that isn't there."""

    def forward(self, x):
        raise RuntimeError(f"no forward context for {x.dim()} dimensions")


class Raises(Plain):
    """An attribute raises on one rank."""

    @property
    def input_size_per_partition(self):
        if self.tp_rank == 0:
            raise RuntimeError("not loaded yet")
        return 16


class Pairs(Plain):
    """A pair, which nothing states."""

    def forward(self, x):
        return super().forward(x), None
