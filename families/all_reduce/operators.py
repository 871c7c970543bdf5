"""`all_reduce_`, the operator of torch that reduces in place; those of the kinds are made by the base of all ops.

`comm` is the name that a communicator of the dispatch module has (`torch_name`). Acquired tensors have no operators:
they are memory of a channel that lives outside of any graph, and their sums are parts of one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...runtime.call_options import options_schema
from ...runtime.operators import TorchOperator

if TYPE_CHECKING:
    from .op import AllReduce


def in_place(op: AllReduce) -> TorchOperator:
    """`all_reduce_(Tensor(a!) input, *, ...) -> ()`."""

    def run(tensor: torch.Tensor, *, comm: str, **options: Any) -> None:
        op.reduce("staged", (tensor,), op.communicator(comm), tensor, **options)

    def fake(tensor: torch.Tensor, **options: Any) -> None:
        del options  # nothing is given back
        op.refuse_grad((tensor,))

    return TorchOperator("all_reduce_", f"(Tensor(a!) input, {options_schema(op.options)}) -> ()", run, fake)
