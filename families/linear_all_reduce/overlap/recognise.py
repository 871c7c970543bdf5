"""Which layers of a model compute and reduce as the operator does, told exactly; everything else is left alone.

Two kinds are known. A serving engine's row-parallel linear, by the name of its class, what its forward reads, and its
quantisation method. And a plain torch module that states the same attributes, computes without a quantisation method,
and is compared with the operator before it is routed. No engine is imported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, MethodType
from typing import Any

import torch

FORMATS = {
    torch.float16: "none",
    torch.bfloat16: "none",
    torch.float32: "none",
    torch.float8_e4m3fn: "fp8_per_token",
}
"""Quantisation that a weight's dtype stands for."""

STATED = ("weight", "bias", "reduce_results", "input_is_parallel", "tp_rank", "tp_size")
"""Attributes that a layer must have."""

PACKAGES = ("vllm", "sglang")
ENGINES = (
    "vllm.model_executor.layers.linear.RowParallelLinear",
    "sglang.srt.layers.linear.RowParallelLinear",
)
"""Classes whose forward is known: one product, one all-reduce, and a pair unless `return_bias` is False."""
UNQUANTISED = (
    "vllm.model_executor.layers.linear.UnquantizedLinearMethod",
    "sglang.srt.layers.linear.UnquantizedLinearMethod",
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod",
)
"""Their methods that multiply by `weight` [N, K] as it is. Others repack it, some as [K, N], or quantise."""
KNOWN_NAMES = frozenset(
    (
        *(
            "input_is_parallel",
            "split_tensor_along_last_dim",
            "contiguous",
            "tp_rank",
            "tp_size",
            "quant_method",
        ),
        *(
            "apply",
            "bias",
            "skip_bias_add",
            "reduce_results",
            "tensor_model_parallel_all_reduce",
            "return_bias",
        ),
        *(
            "use_symmetric_memory",
            "parallel_state",
            "get_tp_group",
            "tag",
        ),  # where the product lies, not what it is
        *("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
    )
)
"""What the forward of an engine's class may read. A version that reads more decides by something unknown."""
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"


@dataclass(frozen=True, slots=True)
class Recognised:
    """A layer that the operator can compute."""

    quantisation: str
    pair: bool
    """Its forward gives (result, None)."""
    certain: bool
    """Its class is known; else only a call can tell what it computes: [N, K] and [K, N] look alike where N = K."""


def recognise(module: Any, rank: int, world_size: int, device: torch.device) -> Recognised | str:
    """What a layer is, or the reason why it is left alone; for a communicator's rank, size and device."""
    missing = [name for name in STATED if not hasattr(module, name)]
    if missing:
        return f"it has no {', '.join(missing)}; a row-parallel layer states {', '.join(STATED)}"
    if not module.reduce_results:
        return "it doesn't reduce its own result"
    if _replaced(module):
        return "its forward is already replaced, by an installation or by other code"
    if next(module.children(), None) is not None:
        return "it contains other modules, so it is more than a linear"
    if module.tp_size != world_size or world_size == 1:
        sizes = f"it is shared by {module.tp_size} ranks; the communicator has {world_size}"
        return f"{sizes}, and one rank reduces nothing"
    if module.tp_rank != rank:
        return f"its rank is {module.tp_rank}, and {rank} in the communicator"
    if not module.input_is_parallel:
        return "it splits its input itself"
    if module.bias is not None:
        return "it has a bias, which serving engines add in different ways"
    objection = _class_objection(module) or _weight_objection(module, device)
    if objection is not None:
        return objection
    engine = class_name(module) in ENGINES
    reads_it = not engine or "return_bias" in _names(type(module).forward)
    pair = bool(getattr(module, "return_bias", engine)) if reads_it else True
    return Recognised(FORMATS[module.weight.dtype], pair, engine)


def class_name(instance: object) -> str:
    """Module and name of an object's class."""
    return f"{type(instance).__module__}.{type(instance).__qualname__}"


def defaults_of(module: torch.nn.Module) -> Mapping[str, object] | None:
    """The defaults of what a module's own forward takes besides one tensor; None where it takes more or less."""
    first, *others = inspect.signature(type(module).forward.__get__(module)).parameters.values()
    variable = (first.VAR_POSITIONAL, first.VAR_KEYWORD)
    if first.default is not first.empty or first.kind in (*variable, first.KEYWORD_ONLY):
        return None
    if any(other.kind in variable or other.default is other.empty for other in others):
        return None
    return {other.name: other.default for other in others}


def _replaced(module: torch.nn.Module) -> bool:
    own = vars(module).get("forward")
    if own is None:
        return False
    # A copy of a routed layer has its class's forward, bound to the copy.
    return not (isinstance(own, MethodType) and own == MethodType(type(module).forward, module))


def _class_objection(module: Any) -> str | None:
    name, method = class_name(module), getattr(module, "quant_method", None)
    engines = [base.__module__.split(".")[0] in PACKAGES for base in type(module).__mro__]
    if defaults_of(module) is None:
        return "its forward must take one tensor, and may take options that have defaults"
    if name in ENGINES:
        unknown = sorted(_names(type(module).forward) - KNOWN_NAMES)
        if unknown:
            return f"its forward reads {', '.join(unknown)}, which may decide what it reduces"
        if class_name(method) not in UNQUANTISED:
            return f"its quantisation method is {class_name(method)}; served are {', '.join(UNQUANTISED)}"
        if os.environ.get(BATCH_INVARIANT, "0") not in ("", "0"):
            return f"{BATCH_INVARIANT} is set, and no schedule keeps that promise"
        return None
    if any(engines) or method is not None:
        return (
            f"its class is {name}; known ones that compute by a quantisation method are {', '.join(ENGINES)}"
        )
    return None


def _weight_objection(module: Any, device: torch.device) -> str | None:
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.dtype not in FORMATS:
        tensor = isinstance(weight, torch.Tensor)
        kind = f"{weight.dtype} of shape {tuple(weight.shape)}" if tensor else "no tensor"
        return f"its weight is {kind}; served are matrices [N, K] of {', '.join(map(str, FORMATS))}"
    if type(weight).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"its weight is a {type(weight).__name__}, which computes in its own way"
    n, k = weight.shape
    wanted = getattr(module, "output_size", n), getattr(module, "input_size_per_partition", k)
    if wanted != (n, k):
        return f"its weight is [{n}, {k}] and not [{wanted[0]}, {wanted[1]}]: it is stored in another form"
    if weight.stride(1) != 1:
        return f"its weight [{n}, {k}] has strides {weight.stride()}: it is stored as [K, N]"
    if weight.device.type != device.type or device.index not in (None, weight.device.index):
        return f"its weight is on {weight.device}, and the communicator's device is {device}"
    if FORMATS[weight.dtype] == "fp8_per_token":
        scale = getattr(module, "weight_scale", None)
        if not isinstance(scale, torch.Tensor) or scale.numel() not in (1, n) or scale.dtype != torch.float32:
            return f"its FP8 weight has no float32 weight_scale of one or {n} elements"
        if getattr(module, "input_scale", None) is not None:
            return "its input is quantised by a fixed input_scale"
    return None


def _names(function: Any) -> frozenset[str]:
    """Globals and attributes that a function reads, also in functions inside of it, and what it closes over.

    A decorator's function calls the one that it closes over.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return frozenset(("what no Python code states",))
    return frozenset((*code.co_freevars, *(name for inner in _codes(code) for name in inner.co_names)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
