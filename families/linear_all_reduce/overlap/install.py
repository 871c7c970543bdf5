"""Routing the row-parallel linears of a model through the operator, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....runtime.errors import first_line
from .recognise import Recognised, class_name, recognise
from .routed import RoutedForward
from .trial import Statement, gather, objection, objections


@dataclass(frozen=True, slots=True)
class Layer:
    """What was decided on one row-parallel layer."""

    name: str
    """In the model."""
    routed: bool
    reason: str
    """Why it was left alone, or what serves it."""


@dataclass(frozen=True, slots=True)
class Served:
    """What serves a layer."""

    words: str
    rows: int
    """The fewest rows that take it, at which it is checked."""
    dtype: torch.dtype
    """Of the activations."""
    loaded: str = ""
    """The schedule that was loaded for so many rows."""


@dataclass
class Installation:
    """Routed layers; `uninstall` gives the model back as it was."""

    layers: tuple[Layer, ...]
    groups: tuple[str, ...]
    """Names of the layer groups that the graphs know."""
    _routed: tuple[RoutedForward, ...]

    @property
    def routed(self) -> tuple[str, ...]:
        """Names of the layers that go through the operator."""
        return tuple(layer.name for layer in self.layers if layer.routed)

    @property
    def kinds(self) -> tuple[tuple[object, str], ...]:
        """Shapes and dtypes of the routed layers' weights."""
        weights = [forward.module.weight for forward in self._routed]
        return tuple(dict.fromkeys((tuple(weight.shape), str(weight.dtype)) for weight in weights))

    @property
    def skipped(self) -> dict[str, str]:
        """Names of the other row-parallel layers, and why."""
        return {layer.name: layer.reason for layer in self.layers if not layer.routed}

    def uninstall(self) -> None:
        """Restore the layers' own forward; graphs that were compiled in between keep the operator."""
        for routed in self._routed:
            routed.leave()
        self._routed, self.groups = (), ()

    def __str__(self) -> str:
        """A line for every row-parallel layer."""
        return "\n".join(
            f"{'+' if layer.routed else '-'} {layer.name}: {layer.reason}" for layer in self.layers
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A layer that this rank would route."""

    forward: RoutedForward
    served: Served


def install(
    model: torch.nn.Module,
    comm: Any,
    serving: Callable[[torch.Tensor, str], Served],
    group_for: Callable[[str], str],
    check: bool = True,
) -> Installation:
    """Route every eligible layer; collective.

    Args:
        model: whose layers.
        comm: a communicator with a process a rank.
        serving: what serves a weight of a quantisation; raises ValueError with the reason where nothing does.
        group_for: the name of the layer group of a quantisation.
        check: compare a routed call of every layer with the layer's own before it is routed.
    """
    found: dict[str, Found] = {}
    statements: dict[str, Statement] = {}
    wrapped = _wrapped(model)
    for name, module in model.named_modules():
        if not hasattr(module, "reduce_results"):
            continue
        one = _examined(module, comm, serving, group_for, check, wrapped.get(id(module)))
        if isinstance(one, str):
            statements[name] = Statement(one)
        else:
            found[name] = one
            weight = one.forward.module.weight
            statements[name] = Statement(None, f"{tuple(weight.shape)} {weight.dtype} {one.served}")
    if comm.world_size > 1:
        left = objections(gather(statements, comm))
        if check:
            # In one order on all ranks, all of which have these layers.
            tried = [name for name in found if name not in left]
            verdicts = {name: _verdict(found[name], comm, seed) for seed, name in enumerate(tried)}
            left |= objections(gather(verdicts, comm))
    else:
        left = {name: one.reason for name, one in statements.items() if one.reason is not None}
    return _entered(statements, found, left)


def _entered(statements: dict[str, Statement], found: dict[str, Found], left: dict[str, str]) -> Installation:
    layers, routed = [], []
    for name in statements:
        reason = left.get(name)
        if reason is None and not found[name].forward.enter():
            reason = "another thread has routed it"
        if reason is None:
            routed.append(found[name].forward)
        layers.append(Layer(name, reason is None, reason or found[name].served.words))
    groups = dict.fromkeys(forward.group for forward in routed)
    return Installation(tuple(layers), tuple(groups), tuple(routed))


def _examined(
    module: Any,
    comm: Any,
    serving: Callable[[torch.Tensor, str], Served],
    group_for: Callable[[str], str],
    check: bool,
    wrapper: str | None,
) -> Found | str:
    """What this rank would route, or why it leaves the layer alone."""
    if wrapper is not None:
        return f"it is the base_layer of a {wrapper}, which may multiply by its weight and reduce by itself"
    try:
        recognised = recognise(module, comm.rank, comm.world_size, comm.device)
        if not isinstance(recognised, Recognised):
            return recognised
        if not check and not recognised.certain:
            return f"its class {class_name(module)} isn't known, so only a check can tell what it computes"
        served = serving(module.weight, recognised.quantisation)
        return Found(RoutedForward(module, recognised, group_for(recognised.quantisation)), served)
    except ValueError as error:
        return str(error)
    except (
        Exception
    ) as error:  # whatever an attribute of others raises: the other ranks wait for what is said here
        return f"it can't be examined: {type(error).__name__}: {first_line(error)}"


def _verdict(found: Found, comm: Any, seed: int) -> Statement:
    try:
        return Statement(objection(found.forward, found.served.rows, found.served.dtype, comm, seed))
    except Exception as error:  # a layer of others raises what it likes; the other ranks must hear of it
        return Statement(f"its check failed: {type(error).__name__}: {first_line(error)}")


def _wrapped(model: torch.nn.Module) -> dict[int, str]:
    """Layers that another module holds as its `base_layer`, with the class of that module."""
    found = {}
    for module in model.modules():
        inner = module._modules.get("base_layer")
        if inner is not None:
            found[id(inner)] = class_name(module)
    return found
