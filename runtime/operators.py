"""Operators of `torch.library`, so that compilers and exporters see one node a call and never look inside.

A dispatch module has a namespace of its own: the library `kernwright`, a workspace `kernwright_<folder>`.
An operator is opaque: what serves a call is decided when it runs, so a graph that was compiled before a
verdict or a policy changed dispatches by the new one. Registering loads torch and happens at the first call
that needs it, or by `dispatch.torch_ops()`.

`Library.define` and `impl` are used as they are: `torch.library.custom_op` costs about twice as much a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..table import Table
from .traced import constant_while_traced, modules

DEVICES = ("CPU", "CUDA")
"""Where operators run; elsewhere torch says that it has no kernel."""


@dataclass(frozen=True, slots=True)
class TorchOperator:
    """One operator, as a family describes it."""

    name: str
    """With its overload where it has one: `my_op.out`."""
    schema: str
    """Arguments and results, as torch writes them: `(Tensor x) -> Tensor`."""
    run: Callable[..., Any]
    fake: Callable[..., Any]
    """Gives results of the right shape for tensors without memory; sizes may be symbols."""


_registered: dict[str, tuple[Table, Any]] = {}
"""Owner of each namespace, and its `torch.library.Library`; the operators live as long as that does."""
_lock = threading.Lock()


def register(namespace: str, table: Table, operators: Sequence[TorchOperator]) -> Any:
    """Register operators, once, and give `torch.ops.<namespace>`; modules of the very same table share them.

    Raises:
        ValueError: the namespace isn't a name, or belongs to another table.
    """
    if not namespace.isidentifier():
        raise ValueError(
            f"the namespace is {namespace!r}; it must be a name as Python has them: letters, digits, _"
        )
    with _lock:
        owner, _ = _registered.get(namespace, (None, None))
        if owner is not None and owner != table:
            raise ValueError(
                f"torch.ops.{namespace} belongs to the dispatch table of {owner.root} in this process, and "
                f"that of {table.root} is another one; give this one a name of its own before its first use: "
                "dispatch.torch_ops('name')"
            )
        if owner is None:
            _registered[namespace] = table, _library(namespace, operators)
    return getattr(torch.ops, namespace)


def _library(namespace: str, operators: Sequence[TorchOperator]) -> Any:
    library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    tags = [torch.Tag.pt2_compliant_tag]
    # Kernels take contiguous tensors; inductor must not hand over others than eager code would.
    tags.append(getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))
    for operator in operators:
        library.define(operator.name + operator.schema, tags=tuple(tags))
        for device in DEVICES:
            library.impl(operator.name, operator.run, device)
        torch.library.register_fake(f"{namespace}::{operator.name}", operator.fake, lib=library)
    return library


@constant_while_traced
def namespace_of(key: str) -> str:
    """The namespace of a dispatch module's operators; registers them, while a call is traced."""
    return modules[key].name
