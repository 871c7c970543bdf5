"""A decided call: what serves it, and where its tensors go; all names are positions by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
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

    That they are is not checked again, but for their alignment, which `Misaligned` is raised for; nor is that `out`
    shares no memory with the other tensors, which the op checks on every call.
    """

    def __init__(
        self,
        request: Request,
        inputs: tuple[int, ...] | None,
        results: tuple[int | None, ...] | None,
        reference: Runner,
        tally: Tally,
        selection: Selection | None = None,
        plan: Plan | None = None,
        *,
        single: bool = False,
    ) -> None:
        """Bind a call.

        Args:
            inputs: which of the op's arguments the signature's inputs are; None for all of them, in order.
            results: which of the signature's outputs the op's results are, a None for each that the kind hasn't;
                None for all of them, in order.
            selection: the decisions; None for an empty call, which nothing has to serve.
            plan: the kernels; None where torch serves.
            single: the op has one result, and gives and takes it as a tensor instead of a tuple.
        """
        self._tally = tally
        self._inputs = None if inputs is None else picker(inputs)
        self._arranged: Callable[[Any], Any] = tuple
        self._chosen: Callable[[Any], Sequence[Any]] | None = None
        if single:
            self._arranged, self._chosen = itemgetter(0), lambda out: (out,)
        if results is not None:
            there = {place: index for index, place in enumerate(results) if place is not None}
            self._chosen = picker([there[place] for place in range(len(there))])
            arranged = picker([-1 if place is None else place for place in results])
            self._arranged = lambda given: arranged((*given, None))
        served = "torch" if plan is None else plan.candidate.name
        label = f"kernwright {request.family} {request.kind} {request.label} {served}"
        self.serve: Runner = ranged(reference if plan is None else plan.serve, label)
        """The call for callers that keep the kind's inputs, and its outputs or None, in sequences of their own. It is
        the cheapest, because nothing is picked or arranged, and Python calls a function quicker than an object;
        `dispatch.stats()` doesn't count it."""
        self.request, self.selection, self.plan = request, selection, plan

    def __call__(self, *arguments: torch.Tensor | None, out: Any = None) -> Any:
        """The op's results for the op's tensors, as the op takes and gives them; None for those the kind lacks."""
        inputs: Any = arguments if self._inputs is None else self._inputs(arguments)
        self._tally.calls += 1
        if out is None:
            return self._arranged(self.serve(inputs, None))
        outputs: Any = out if self._chosen is None else self._chosen(out)
        self.serve(inputs, outputs)
        return tuple(out) if type(out) is list else out


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What picks the items at some places; at least one."""
    if len(places) == 1:
        (place,) = places
        return itemgetter(slice(place, place + 1 or None))  # a slice is a tuple already
    return itemgetter(*places)
