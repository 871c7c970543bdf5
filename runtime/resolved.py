"""A decided call: what serves it, and where its tensors go; all names are positions by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .plan import Plan
from .request import Request
from .selection import Selection
from .statistics import Tally

if TYPE_CHECKING:
    import torch

    from .request import Runner


class Resolved:
    """Call it with tensors of the same shapes, dtype, layout and device as it was resolved for: unchecked."""

    __slots__ = ("_inputs", "_results", "_run", "_tally", "plan", "request", "selection")

    def __init__(
        self,
        request: Request,
        inputs: tuple[int, ...],
        results: tuple[int | None, ...],
        reference: Runner,
        tally: Tally,
        selection: Selection | None = None,
        plan: Plan | None = None,
    ) -> None:
        """Bind a call.

        Args:
            request: what was asked for.
            inputs: which of the op's arguments the signature's inputs are.
            results: which of the signature's outputs the op's results are; None where the kind has none.
            reference: what serves it where there is no plan.
            tally: the counter of its calls.
            selection: the decisions; None for a call without tokens, which nothing has to serve.
            plan: the kernels; None where torch serves.
        """
        self._inputs, self._results, self._tally = inputs, results, tally
        self._run: Runner = reference if plan is None else plan
        self.request, self.selection, self.plan = request, selection, plan

    def __call__(
        self, *arguments: torch.Tensor | None, out: Sequence[torch.Tensor | None] | None = None
    ) -> tuple[torch.Tensor | None, ...]:
        """The op's results for the op's tensors, in the op's order; None for what the kind doesn't have."""
        inputs: Any = [arguments[position] for position in self._inputs]
        outputs: Any = None if out is None else [tensor for tensor in out if tensor is not None]
        self._tally.calls += 1
        given = self._run(inputs, outputs)
        return tuple([None if position is None else given[position] for position in self._results])
