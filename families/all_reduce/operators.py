"""`all_reduce` and `all_reduce_sum2` as operators of torch; each gives a fresh tensor or writes into a given one.

    torch.ops.kernwright.all_reduce(input, *, comm, channel=None, exact=False, policy=None) -> Tensor

`comm` is the name that a communicator of the dispatch module has (`torch_name`). Acquired tensors have no operators:
they are memory of a channel that lives outside of any graph, and their sums are parts of one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...runtime.operators import TorchOperator, namespace_of
from ...runtime.traced import graph_name

if TYPE_CHECKING:
    from ...runtime.communicator.owner import ChannelOwner
    from .op import Op

OPTIONS = "*, str comm, str? channel=None, bool exact=False, str? policy=None"

TENSORS = {"staged": ("input",), "sum2": ("a", "b")}
NAMES = {"staged": "all_reduce", "sum2": "all_reduce_sum2"}


def operators(op: Op) -> tuple[TorchOperator, ...]:
    """Two for each of `all_reduce` and `all_reduce_sum2`, and `all_reduce_`, which reduces in place."""
    return (*_pair(op, "staged"), *_pair(op, "sum2"), _in_place(op))


def _pair(op: Op, kind: str) -> tuple[TorchOperator, TorchOperator]:
    arguments = ", ".join(f"Tensor {name}" for name in TENSORS[kind])

    def run(*tensors: torch.Tensor, comm: str, **options: Any) -> torch.Tensor:
        return op.reduce(kind, tensors, op.communicator(comm), None, **options)

    def fake(*tensors: torch.Tensor, comm: str, **options: Any) -> torch.Tensor:
        del comm, options  # sizes follow from the tensors alone
        _check_fakes(op, tensors)
        return tensors[0].new_empty(tensors[0].shape)

    def run_out(*tensors: torch.Tensor, comm: str, out: torch.Tensor, **options: Any) -> None:
        op.reduce(kind, tensors, op.communicator(comm), out, **options)

    def fake_out(*tensors: torch.Tensor, comm: str, out: torch.Tensor, **options: Any) -> None:
        del comm, options
        _check_fakes(op, tensors)
        like = tensors[0]
        if out.shape != like.shape or out.dtype != like.dtype or out.device != like.device:
            raise ValueError(
                f"out is {out.dtype} of shape {tuple(out.shape)} on {out.device}; it must be {like.dtype} of shape "
                f"{tuple(like.shape)} on {like.device}"
            )

    name = NAMES[kind]
    return (
        TorchOperator(name, f"({arguments}, {OPTIONS}) -> Tensor", run, fake),
        TorchOperator(f"{name}.out", f"({arguments}, {OPTIONS}, Tensor(a!) out) -> ()", run_out, fake_out),
    )


def _in_place(op: Op) -> TorchOperator:
    def run(tensor: torch.Tensor, *, comm: str, **options: Any) -> None:
        op.reduce("staged", (tensor,), op.communicator(comm), tensor, **options)

    def fake(tensor: torch.Tensor, *, comm: str, **options: Any) -> None:
        del comm, options
        _check_fakes(op, (tensor,))

    return TorchOperator("all_reduce_", f"(Tensor(a!) input, {OPTIONS}) -> ()", run, fake)


def _check_fakes(op: Op, tensors: Sequence[torch.Tensor]) -> None:
    op.refuse_grad(tensors)
    first = tensors[0]
    for other in tensors[1:]:
        if (other.shape, other.dtype, other.device) != (first.shape, first.dtype, first.device):
            raise ValueError(
                f"a is {first.dtype} of shape {tuple(first.shape)} on {first.device}, b {other.dtype} of shape "
                f"{tuple(other.shape)} on {other.device}; both must be alike"
            )


def traced(
    key: str,
    kind: str,
    tensors: Sequence[torch.Tensor],
    comm: ChannelOwner,
    out: torch.Tensor | None,
    channel: str | None,
    exact: bool,
    policy: str | None,
) -> torch.Tensor:
    """The op's call as a call of its operator, for traced calls.

    Args:
        key: of the dispatch module.
        kind: `staged` or `sum2`.
        tensors: one or two.
        comm, out, channel, exact, policy: as the op has them.

    Raises:
        ValueError: the communicator has no name.
    """
    options = {"comm": graph_name(comm), "channel": channel, "exact": exact, "policy": policy}
    namespace = getattr(torch.ops, namespace_of(key))
    operator = getattr(namespace, NAMES[kind])
    if out is None:
        result: torch.Tensor = operator.default(*tensors, **options)
        return result
    if kind == "staged" and out is tensors[0]:
        namespace.all_reduce_.default(out, **options)
    else:
        operator.out(*tensors, **options, out=out)
    return out
