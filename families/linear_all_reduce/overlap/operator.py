"""`kernwright::linear_all_reduce`: one opaque torch operator that owns the reduction, whatever path a call takes.

    linear_all_reduce(Tensor x, Tensor weight, Tensor? weight_scale, Tensor? bias, str group) -> Tensor

Graphs refer to a layer group by its name, because an operator takes no objects. The number of rows is
read inside: a traced graph is the same for every M, and for every verdict of the ledger.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch
from torch import Tensor

from ....runtime.traced import constant_while_traced, modules
from ..decisions import FAMILY, Terms
from .group import LayerGroup

SCHEMA = "linear_all_reduce(Tensor x, Tensor weight, Tensor? weight_scale, Tensor? bias, str group) -> Tensor"

groups: dict[str, LayerGroup] = {}
"""By name, for good, as graphs may hold it."""
_numbers = itertools.count()


def name_of(namespace: str, terms: Terms) -> str:
    """A layer group's name in graphs. It states what defines the group, so that another process can make it again.

    Args:
        namespace: of the dispatch module's operators.
        terms: what was asked for; where the communicator has no name, or a schedule is an object, the name holds in
            this process alone.
    """
    comm = getattr(terms.comm, "torch_name", None)
    if comm is None or not isinstance(terms.force, str | None):
        return f"linear_all_reduce/{next(_numbers)}"
    own = (terms.quantisation, terms.nonfinite, terms.force, terms.plain_elsewhere)
    return json.dumps([namespace, comm, terms.exact, terms.policy, *own])


def group_of(name: str) -> LayerGroup:
    """The layer group of a name; made anew if this process has none and the name defines it.

    Raises:
        ValueError: it can't be: the dispatch module isn't loaded, or the communicator isn't there.
    """
    if name not in groups and name.startswith("["):  # others hold in one process alone
        namespace, comm, *rest = json.loads(name)
        for module in list(modules.values()):
            op: Any = module.dispatch.operator(FAMILY)
            if module.expected_name == namespace and op is not None:
                op.group(Terms(module.communicator(comm), *rest))
    if name not in groups:
        raise ValueError(
            f"no layer group is called {name!r} in this process; import the dispatch module that the graph was "
            "traced with, and install the model before it is compiled, or before a compiled graph is loaded"
        )
    return groups[name]


def _call(x: Tensor, weight: Tensor, weight_scale: Tensor | None, bias: Tensor | None, group: str) -> Tensor:
    return group_of(group)(x, weight, weight_scale, bias)


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@constant_while_traced
def traced_group(
    key: str, comm: str, quantisation: str, nonfinite: str, exact: bool, policy: str | None, force: str | None
) -> str:
    """The name of a layer group, made if there is none yet, while a call is traced; a trace passes constants alone.

    They are the key of the dispatch module, the communicator's name, and what `Terms` has.

    Raises:
        ValueError, TypeError: the communicator is gone, or terms aren't allowed.
    """
    module = modules[key]
    terms = Terms(module.communicator(comm), exact, policy, quantisation, nonfinite, force)
    op: Any = module.dispatch.operator(FAMILY)
    name: str = op.group(terms)[0]
    return name


_library: Any = torch.library.Library("kernwright", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_library.impl("linear_all_reduce", _call, "CompositeExplicitAutograd")
torch.library.register_fake("kernwright::linear_all_reduce", _fake, lib=_library)

linear_all_reduce = torch.ops.kernwright.linear_all_reduce.default
"""The operator, as graphs call it."""
