"""Routing the row-parallel linears of a model through the operator, and back.

A layer is recognised by its attributes, not by its class, so that modules of serving engines fit without an import:

- `weight` [N, K], this rank's part; `weight_scale` too where it is FP8; `bias` or None;
- `reduce_results`: the layer all-reduces what it computes; it is switched off while the layer is routed;
- `tp_size`: ranks that share the layer; `input_is_parallel`: its input is already this rank's part;
- `return_bias`, optional: its forward gives a pair, the second being the bias that it didn't add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .operator import linear_all_reduce

FORMATS = {
    torch.float16: "none",
    torch.bfloat16: "none",
    torch.float32: "none",
    torch.float8_e4m3fn: "fp8_per_token",
}
"""Quantisation that a weight's dtype stands for."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What was decided on one row-parallel layer."""

    name: str
    """In the model."""
    routed: bool
    reason: str
    """Why it was skipped, or what serves it."""


@dataclass
class Installation:
    """Routed layers; `uninstall` gives the model back as it was."""

    layers: tuple[Layer, ...]
    groups: tuple[str, ...]
    """Names of the layer groups that the graphs know."""
    _modules: tuple[torch.nn.Module, ...]

    @property
    def routed(self) -> tuple[str, ...]:
        """Names of the layers that go through the operator."""
        return tuple(layer.name for layer in self.layers if layer.routed)

    @property
    def skipped(self) -> dict[str, str]:
        """Names of the other row-parallel layers, and why."""
        return {layer.name: layer.reason for layer in self.layers if not layer.routed}

    def uninstall(self) -> None:
        """Restore the layers' own forward; graphs that were compiled in between keep the operator."""
        for module in self._modules:
            del module.forward
            module.reduce_results = True  # type: ignore[assignment]
        self._modules, self.groups = (), ()

    def __str__(self) -> str:
        """A line for every row-parallel layer."""
        return "\n".join(
            f"{'+' if layer.routed else '-'} {layer.name}: {layer.reason}" for layer in self.layers
        )


def objection(module: Any, world_size: int) -> str | None:
    """The reason why a row-parallel layer can't be routed, or None."""
    weight, bias = module.weight, getattr(module, "bias", None)
    ranks = getattr(module, "tp_size", 1)
    if not module.reduce_results:
        return "it doesn't reduce its own result"
    if "forward" in vars(module):
        return "its forward is already replaced, by an installation or by other code"
    if ranks != world_size or ranks == 1:
        return (
            f"it is shared by {ranks} ranks; the communicator has {world_size}, and one rank reduces nothing"
        )
    if not getattr(module, "input_is_parallel", True):
        return "it splits its input itself"
    if bias is not None:
        return "it has a bias, which serving engines add in different ways"
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.dtype not in FORMATS:
        kind = (
            f"{weight.dtype} of shape {tuple(weight.shape)}"
            if isinstance(weight, torch.Tensor)
            else "no tensor"
        )
        return f"its weight is {kind}; served are matrices [N, K] of {', '.join(map(str, FORMATS))}"
    wanted = getattr(module, "output_size", weight.shape[0])
    if wanted != weight.shape[0]:
        return f"its weight has {weight.shape[0]} rows, and its result {wanted} columns: it is stored in another form"
    if FORMATS[weight.dtype] == "fp8_per_token":
        scale = getattr(module, "weight_scale", None)
        if not isinstance(scale, torch.Tensor) or scale.numel() not in (1, weight.shape[0]):
            return f"its FP8 weight has no weight_scale of one or {weight.shape[0]} elements"
    return None


def route(module: Any, group: str) -> None:
    """Replace a layer's forward by the operator, and switch its own reduction off."""
    returns_pair = bool(getattr(module, "return_bias", False))
    scaled = FORMATS[module.weight.dtype] != "none"

    def forward(x: torch.Tensor) -> Any:
        scale = module.weight_scale if scaled else None
        result = linear_all_reduce(x, module.weight, scale, None, group)
        return (result, None) if returns_pair else result

    module.forward = forward
    module.reduce_results = False


def install(
    model: torch.nn.Module,
    world_size: int,
    serving: Callable[[torch.Tensor, str], tuple[bool, str]],
    group_for: Callable[[str], str],
) -> Installation:
    """Route every eligible layer.

    Args:
        model: whose layers.
        world_size: of the communicator.
        serving: whether some schedule serves a weight of a quantisation, and which, or why none does.
        group_for: the name of the layer group of a quantisation.
    """
    layers, modules, groups = [], [], {}
    for name, module in model.named_modules():
        if not (hasattr(module, "reduce_results") and hasattr(module, "weight")):
            continue
        reason, routed = objection(module, world_size), False
        if reason is None:
            quantisation = FORMATS[module.weight.dtype]
            routed, reason = serving(module.weight, quantisation)
        if routed:
            if quantisation not in groups:
                groups[quantisation] = group_for(quantisation)
            route(module, groups[quantisation])
            modules.append(module)
        layers.append(Layer(name, routed, reason))
    return Installation(tuple(layers), tuple(groups.values()), tuple(modules))
