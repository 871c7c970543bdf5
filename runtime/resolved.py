"""A decided call: what serves it, and where its tensors go; all names are positions by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .plan import Plan
from .ranges import ranged
from .request import Request
from .selection import Selection
from .statistics import Tally

if TYPE_CHECKING:
    import torch

    from .request import Runner


class Resolved:
    """Call it with tensors of the same shapes, dtype, layout and device as it was resolved for.

    That they are is not checked again, but for their alignment, which `Misaligned` is raised for.
    """

    __slots__ = ("_inputs", "_results", "_run", "_tally", "plan", "request", "selection")

    def __init__(
        self,
        request: Request,
        inputs: tuple[int, ...] | None,
        results: tuple[int | None, ...] | None,
        reference: Runner,
        tally: Tally,
        selection: Selection | None = None,
        plan: Plan | None = None,
    ) -> None:
        """Bind a call.

        Args:
            request: what was asked for.
            inputs: which of the op's arguments the signature's inputs are; None for all of them, in order.
            results: which of the signature's outputs the op's results are, a None for each that the kind hasn't;
                None for all of them, in order.
            reference: what serves it where there is no plan.
            tally: the counter of its calls.
            selection: the decisions; None for a call without tokens, which nothing has to serve.
            plan: the kernels; None where torch serves.
        """
        self._inputs, self._results, self._tally = inputs, results, tally
        served = "torch" if plan is None else plan.candidate.name
        label = f"kernwright {request.family} {request.kind} {request.label} {served}"
        self._run = ranged(reference if plan is None else plan, label)
        self.request, self.selection, self.plan = request, selection, plan

    def __call__(
        self, *arguments: torch.Tensor | None, out: Sequence[torch.Tensor | None] | None = None
    ) -> tuple[torch.Tensor | None, ...]:
        """The op's results for the op's tensors, in the op's order; None for what the kind doesn't have."""
        places, results = self._inputs, self._results
        inputs: Any = arguments if places is None else [arguments[place] for place in places]
        outputs: Any = None
        if out is not None:
            outputs = out if results is None else [tensor for tensor in out if tensor is not None]
        self._tally.calls += 1
        given = self._run(inputs, outputs)
        if results is None:
            return tuple(given)
        return tuple([None if place is None else given[place] for place in results])
