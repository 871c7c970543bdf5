"""How graphs refer to a dispatch module: a namespace of operators, and names of communicators.

Nothing here loads torch before operators are asked for.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from .communicator import Communicator

if TYPE_CHECKING:
    from .dispatch import Dispatch

F = TypeVar("F")

LIBRARY = "kernwright"
"""Namespace of the shipped library, and how those of workspaces begin."""

_numbers = count()


class Namespace:
    """The operators of one dispatch module, registered when they are needed."""

    def __init__(self, dispatch: Dispatch) -> None:
        """Choose a key; the name follows from the table's folder unless `torch_ops` is given one."""
        self.dispatch = dispatch
        self._name: str | None = None
        self._communicators: WeakValueDictionary[str, Communicator] = WeakValueDictionary()
        self._published = count()
        self.key = f"module{next(_numbers)}"
        """What the module is called in this process."""
        modules[self.key] = self

    def torch_ops(self, name: str | None = None) -> Any:
        """As `Dispatch.torch_ops`."""
        from .operators import TorchOperator, register

        if name is not None and self._name not in (None, name):
            raise ValueError(
                f"these operators are torch.ops.{self._name} already, and can't become torch.ops.{name}; "
                "name them before their first use"
            )
        chosen = name or self.expected_name
        operators: list[TorchOperator] = []
        for op in self.dispatch.operators.values():
            described = getattr(op, "torch_operators", None)  # a family of one's own may have none
            operators += described() if described is not None else ()
        found = register(chosen, self.dispatch.table, operators)
        self._name = chosen
        return found

    @property
    def name(self) -> str:
        """The namespace's name; registers it."""
        if self._name is None:
            self.torch_ops()
        assert self._name is not None
        return self._name

    @property
    def expected_name(self) -> str:
        """The namespace's name, also where it isn't registered yet."""
        return self._name or default_name(self.dispatch.table.root)

    def publish(self, comm: Communicator, name: str | None = None) -> str:
        """Give a communicator a name for use in graphs.

        Args:
            comm: kept by its owner; the name dies with it.
            name: by default `comm0` and so on, in the order of publishing: ranks, and processes that share a
                compile cache, must publish in one order or name theirs.

        Returns:
            The name, also as the communicator's `torch_name`.

        Raises:
            ValueError: another communicator has the name.
        """
        known: str | None = getattr(comm, "torch_name", None)
        chosen = name or known or f"comm{next(self._published)}"
        if self._communicators.get(chosen, comm) is not comm:
            raise ValueError(f"another communicator is called {chosen!r}; choose another name")
        self._communicators[chosen] = comm
        comm.torch_name = chosen  # type: ignore[attr-defined]
        return chosen

    def communicator(self, name: str | None) -> Communicator | None:
        """The communicator of a name; ValueError where it was never published in this process, or is gone."""
        if name is None:
            return None
        found = self._communicators.get(name)
        if found is None:
            known = ", ".join(self._communicators) or "none"
            raise ValueError(
                f"no communicator is called {name!r}; there are {known}: call dispatch.publish(comm) in this "
                "process before the graph runs"
            )
        return found


def graph_name(comm: Any) -> str:
    """A communicator's name in graphs; ValueError where it has none."""
    name: str | None = getattr(comm, "torch_name", None)
    if name is None:
        raise ValueError(
            f"comm is a {type(comm).__name__} without a name, and a graph holds names alone; make it by "
            "dispatch.communicator(), or call dispatch.publish(comm) before it is traced"
        )
    return name


def constant_while_traced(function: F) -> F:
    """Let a trace call `function` with constants, and keep its result as one.

    `torch.compiler.assume_constant_result` sets the same mark, but imports `torch._dynamo`. That keeps a process
    group that was there before in default arguments of `torch.distributed.nn.functional`: the group outlives
    `destroy_process_group`, and so do Gloo's threads. One that releases a tensor while the interpreter exits
    ends the process by "terminate called without an active exception".
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


modules: WeakValueDictionary[str, Namespace] = WeakValueDictionary()
"""Dispatch modules by their key, by which a call that is traced finds its operators."""


def default_name(root: Path) -> str:
    """`kernwright` for the library; `kernwright_<folder>` for the workspace whose `generated/` is `root`."""
    if root == Path(__file__).parents[1] / "generated":
        return LIBRARY
    folder = re.sub(r"\W+", "_", root.parent.name, flags=re.ASCII).strip("_").lower()
    return f"{LIBRARY}_{folder or 'workspace'}"
