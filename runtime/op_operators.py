"""The operators of torch of an op, made from its declaration: two for each kind.

torch.ops.kernwright.<op>_<kind>(inputs, ..., *, options, ..., policy=None, comm=None) -> outputs
torch.ops.kernwright.<op>_<kind>.out(inputs, ..., *, options, ..., outputs, ...) -> ()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .arguments import check_out
from .call_options import options_schema
from .operators import TorchOperator

if TYPE_CHECKING:
    from .declaration import Kind
    from .op import Op


def operator_name(family: str, kind: str, declared: Kind) -> str:
    """The name of a kind's operator."""
    return declared.operator or (family if kind == family else f"{family}_{kind}")


def operators_of(op: Op) -> tuple[TorchOperator, ...]:
    """Two operators for each kind: one gives fresh tensors, its overload `out` writes into given ones.

    A kind takes and gives only what it has. `comm` is the name that `dispatch.publish(comm)` gave.
    """
    kinds = [kind for kind, declared in op.kinds.items() if declared.operator is not None]
    return tuple(made for kind in kinds for made in _pair(op, kind))


def _pair(op: Op, kind: str) -> tuple[TorchOperator, TorchOperator]:
    declared, single = op.kinds[kind], len(op.results) == 1
    names = declared.outputs
    written_names = ("out",) if single else names
    places = [op.results.index(name) for name in names]
    whole = single or names == op.results
    expand, defaults = _expansion(op, declared), op.values({})

    def run(*tensors: torch.Tensor, **options: Any) -> Any:
        arguments = tensors if expand is None else expand(tensors)
        found = op.call(arguments, kind, op.values(options) if options else defaults, None)
        if whole:
            return found
        return found[places[0]] if len(places) == 1 else [found[place] for place in places]

    def fake(*tensors: torch.Tensor, **options: Any) -> Any:
        made = likes(tensors, options)
        return made[0] if len(made) == 1 else made

    def run_out(*tensors: torch.Tensor, **options: Any) -> None:
        written = {name: options.pop(name) for name in written_names}
        out = written["out"] if single else tuple([written.get(name) for name in op.results])
        arguments = tensors if expand is None else expand(tensors)
        op.call(arguments, kind, op.values(options), out)

    def fake_out(*tensors: torch.Tensor, **options: Any) -> None:
        written = [options.pop(name) for name in written_names]
        for name, tensor, like in zip(written_names, written, likes(tensors, options), strict=True):
            check_out(tensor, like.shape, like.dtype, like, "out" if single else f"out's {name}")

    def likes(tensors: tuple[torch.Tensor, ...], options: dict[str, Any]) -> Any:
        arguments = tensors if expand is None else expand(tensors)
        return op.results_like(arguments, kind, op.told(options))

    name = operator_name(op.family, kind, declared)
    tensors = ", ".join(f"Tensor {name}" for name in declared.called or declared.inputs)
    # Only here: an op without operators may have options that torch has no type for.
    taken = f"{tensors}, {options_schema(op.options)}"
    given = "Tensor" if len(names) == 1 else f"({', '.join(f'Tensor {name}' for name in names)})"
    written = ", ".join(
        f"Tensor({chr(ord('a') + place)}!) {name}" for place, name in enumerate(written_names)
    )
    return (
        TorchOperator(name, f"({taken}) -> {given}", run, fake),
        TorchOperator(f"{name}.out", f"({taken}, {written}) -> ()", run_out, fake_out),
    )


def _expansion(op: Op, declared: Kind) -> Callable[[tuple[torch.Tensor, ...]], tuple[Any, ...]] | None:
    """How a kind's inputs become the op's arguments; None where they are."""
    names = declared.inputs
    if names == op.arguments:
        return None
    places = [names.index(name) if name in names else None for name in op.arguments]
    return lambda tensors: tuple([None if place is None else tensors[place] for place in places])
