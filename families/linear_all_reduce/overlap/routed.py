"""A layer's forward while it is routed. It decides at every call whether the layer is still what was recognised.

It stands in the layer's own dictionary, where other code that wraps forwards puts its own; no attribute that others
read is changed. So a LoRA layer that multiplies by the layer's method and reduces by itself finds what it expects.
"""

from __future__ import annotations

import threading
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from .operator import linear_all_reduce
from .recognise import Recognised, defaults_of

_taking_over = threading.Lock()


def own_forward(module: torch.nn.Module) -> MethodType:
    """The forward of a module's class, bound to it."""
    return MethodType(type(module).forward, module)


class RoutedForward:
    """Calls the operator for the calls that were recognised, and the layer's own forward for all others.

    A copy or a pickle of the layer gets the own forward: a layer group is a communicator's, and scratch isn't copied.
    """

    def __init__(self, module: Any, found: Recognised, group: str) -> None:
        """Take the layer, what was recognised, and the layer group's name in graphs."""
        described = defaults_of(module)
        assert described is not None
        self.module, self.group, self.on = module, group, True
        self._pair, self._scaled = found.pair, found.quantisation != "none"
        self._defaults = described
        self._before = vars(module).get("forward")
        self._method = getattr(module, "quant_method", None)
        weight = module.weight
        self._shape, self._strides, self._dtype = tuple(weight.shape), weight.stride(), weight.dtype
        self._tp_size = module.tp_size

    def __call__(self, *given: Any, **named: Any) -> Any:
        """As the layer's own forward."""
        if self._asks_for_nothing_else(given, named) and self.serves(given[0]):
            return self._route(given[0])
        return self.own(*given, **named)

    def own(self, *given: Any, **named: Any) -> Any:
        """What the layer gives when it isn't routed."""
        return type(self.module).forward(self.module, *given, **named)

    def serves(self, x: Any) -> bool:
        """Whether the layer is still what was recognised, and x is what the operator takes, for inference."""
        module = self.module
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor):  # a method that repacked it since keeps it under another name
            return False
        if not (self.on and type(x) is Tensor and x.dim() and module.reduce_results and module.bias is None):
            return False
        if module.tp_size != self._tp_size or getattr(module, "quant_method", None) is not self._method:
            return False
        if (tuple(weight.shape), weight.stride(), weight.dtype) != (self._shape, self._strides, self._dtype):
            return False
        if x.shape[-1] != self._shape[1] or x.device != weight.device:
            return False
        if (
            x.dtype not in (torch.float16, torch.bfloat16, torch.float32)
            if self._scaled
            else x.dtype != self._dtype
        ):
            return False
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            return False
        return not torch.is_autocast_enabled(x.device.type)

    def _asks_for_nothing_else(self, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """One tensor, and options at their defaults, if any: `skip_all_reduce=True` is for the layer itself."""
        if len(given) != 1:
            return False
        return all(name in self._defaults and value is self._defaults[name] for name, value in named.items())

    def _route(self, x: Tensor) -> Any:
        module = self.module
        scale = module.weight_scale if self._scaled else None
        result = linear_all_reduce(x, module.weight, scale, None, self.group)
        return (result, None) if self._pair else result

    def enter(self) -> bool:
        """Take the layer over; False where another thread has replaced its forward since it was recognised."""
        with _taking_over:
            if vars(self.module).get("forward") is not self._before:
                return False
            self.module.forward = self
            return True

    def leave(self) -> None:
        """Give the layer back as it was; code that has wrapped this forward since wraps the own one from now on."""
        self.on = False
        if vars(self.module).get("forward") is self:
            if self._before is None:
                del self.module.forward
            else:
                self.module.forward = self._before

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of the layer aren't routed."""
        return own_forward, (self.module,)
