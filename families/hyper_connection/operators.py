"""The op as operators of torch, two for each kind: one gives fresh tensors, its overload `out` writes into given.

    torch.ops.kernwright.hyper_connection_boundary(residual, block, injection, norm_weight, down_weight,
        up_weight, *, eps=1e-06, branches=None, exact=False, policy=None, comm=None)
        -> (x, block_input, injection_out)

A kind takes and gives only what it has. `comm` is the name that `dispatch.publish(comm)` gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...runtime.operators import TorchOperator, namespace_of
from ...runtime.traced import graph_name
from .arguments import ARGUMENTS, RESULTS, check_presence, read, refuse_grad
from .shape import FAMILY, INPUTS, OUTPUTS

if TYPE_CHECKING:
    from .op import Op

Maybe = torch.Tensor | None

OPTIONS = "*, float eps=1e-06, int? branches=None, bool exact=False, str? policy=None, str? comm=None"


def operators(op: Op) -> tuple[TorchOperator, ...]:
    """Two operators for each kind, bound to an op."""
    return tuple(made for kind in INPUTS for made in (_fresh(op, kind), _out(op, kind)))


def _fresh(op: Op, kind: str) -> TorchOperator:
    count = len(OUTPUTS[kind])
    results = "Tensor" if count == 1 else f"({', '.join(f'Tensor {name}' for name in OUTPUTS[kind])})"
    places = [RESULTS.index(name) for name in OUTPUTS[kind]]
    (single,) = places if count == 1 else (None,)
    expand = _expansion(kind)

    def run(
        *tensors: torch.Tensor,
        eps: float = 1e-6,
        branches: int | None = None,
        exact: bool = False,
        policy: str | None = None,
        comm: str | None = None,
    ) -> Any:
        arguments = tensors if expand is None else expand(tensors)
        among = None if comm is None else op.communicator(comm)
        found = op.call(arguments, kind, eps, branches, among, exact, policy, None)
        if single is not None:
            return found[single]
        return found if count == len(found) else [found[place] for place in places]

    def fake(*tensors: torch.Tensor, eps: float = 1e-6, branches: int | None = None, **options: Any) -> Any:
        made = _like(
            op, kind, tensors if expand is None else expand(tensors), eps, branches, options.get("comm")
        )
        return made[0] if count == 1 else made

    schema = f"({', '.join(f'Tensor {name}' for name in INPUTS[kind])}, {OPTIONS}) -> {results}"
    return TorchOperator(f"{FAMILY}_{kind}", schema, run, fake)


def _out(op: Op, kind: str) -> TorchOperator:
    names = OUTPUTS[kind]
    expand = _expansion(kind)

    def run(
        *tensors: torch.Tensor,
        eps: float = 1e-6,
        branches: int | None = None,
        exact: bool = False,
        policy: str | None = None,
        comm: str | None = None,
        **out: torch.Tensor,
    ) -> None:
        arguments = tensors if expand is None else expand(tensors)
        among = None if comm is None else op.communicator(comm)
        given = tuple([out.get(name) for name in RESULTS])
        op.call(arguments, kind, eps, branches, among, exact, policy, given)

    def fake(*tensors: torch.Tensor, eps: float = 1e-6, branches: int | None = None, **options: Any) -> None:
        made = _like(
            op, kind, tensors if expand is None else expand(tensors), eps, branches, options.get("comm")
        )
        for name, like in zip(names, made, strict=True):
            found = options[name]
            if found.shape != like.shape or found.dtype != like.dtype or found.device != like.device:
                raise ValueError(
                    f"out's {name} is {found.dtype} of shape {tuple(found.shape)} on {found.device}; it must be "
                    f"{like.dtype} of shape {tuple(like.shape)} on {like.device}"
                )

    written = ", ".join(f"Tensor({chr(ord('a') + place)}!) {name}" for place, name in enumerate(names))
    schema = f"({', '.join(f'Tensor {name}' for name in INPUTS[kind])}, {OPTIONS}, {written}) -> ()"
    return TorchOperator(f"{FAMILY}_{kind}.out", schema, run, fake)


def _expansion(kind: str) -> Callable[[tuple[torch.Tensor, ...]], tuple[Maybe, ...]] | None:
    """How a kind's inputs become the op's arguments; None where they are."""
    names = INPUTS[kind]
    if names == ARGUMENTS:
        return None
    places = [names.index(name) if name in names else None for name in ARGUMENTS]
    return lambda tensors: tuple([None if place is None else tensors[place] for place in places])


def _like(
    op: Op, kind: str, arguments: Sequence[Maybe], eps: float, branches: int | None, comm: str | None
) -> list[torch.Tensor]:
    """What a kind gives, without values."""
    if torch.is_grad_enabled():
        refuse_grad(arguments)
    shape = read(op.table, arguments, kind, eps, branches, op.communicator(comm), real=False)
    residual = arguments[0]
    assert residual is not None
    return [residual.new_empty(buffer.shape) for buffer in shape.signature(kind).outputs]


def traced(
    key: str,
    arguments: Sequence[Maybe],
    kind: str,
    eps: float,
    branches: int | None,
    comm: Any,
    exact: bool,
    policy: str | None,
    out: Sequence[Maybe] | None,
) -> tuple[Maybe, Maybe, Maybe]:
    """The op's call as a call of its operator, for traced calls; results as the op gives them.

    Args:
        key: of the dispatch module.
        arguments: the op's six tensors.
        kind, eps, branches, comm, exact, policy, out: as the op has them.

    Raises:
        ValueError, TypeError: a tensor is there that the kind doesn't have, or is missing; or the communicator has
            no name yet.
    """
    if kind not in INPUTS:  # checked_kind() would name the nearest, by code that can't be traced
        raise ValueError(f"kind is {kind!r}; allowed are {', '.join(INPUTS)}")
    for name, value in zip(ARGUMENTS, arguments, strict=True):
        check_presence(name, value, name in INPUTS[kind], kind, name)
    tensors = [value for value in arguments if value is not None]
    known_as = None if comm is None else graph_name(comm)
    options = {"eps": eps, "branches": branches, "exact": exact, "policy": policy, "comm": known_as}
    operator = getattr(getattr(torch.ops, namespace_of(key)), f"{FAMILY}_{kind}")
    if out is not None:
        written = {name: out[RESULTS.index(name)] for name in OUTPUTS[kind]}
        operator.out(*tensors, **options, **written)
        return tuple(out)  # type: ignore[return-value]
    found = operator.default(*tensors, **options)
    given = (found,) if len(OUTPUTS[kind]) == 1 else found
    named = dict(zip(OUTPUTS[kind], given, strict=True))
    return tuple([named.get(name) for name in RESULTS])  # type: ignore[return-value]
