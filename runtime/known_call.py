"""The short path of a call that was decided before: whether its tensors are laid out as those of the decided call.

Reading a call's shapes for a decision takes ten microseconds, and comparing them one by one two. A function of
torch's compiler compares all of them in a third of a microsecond, so it is called first. Addresses aren't compared
here: the plan checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .arguments import refuse_grad
from .resolved import Resolved, picker

if TYPE_CHECKING:
    import torch

    from .op import Op

    Maybe = torch.Tensor | None

Facts = tuple[type, tuple[int, ...], "torch.dtype", "torch.device"]
"""Type (so that a FakeTensor is never taken for a tensor), shape, dtype and device."""

MAX_APART = 4096
"""Sets of addresses that are remembered as apart; a step of a model has a hundred, and they come again."""

MAX_RECORDED = 32
"""How often a call's tensors are recorded anew. In inference mode tensors have other dispatch keys than out of it, so
a process that changes between the two would do so at every call."""


class Recorded:
    """Recognises tensors like the recorded ones by one call of torch; a match is certain, a mismatch isn't.

    It passes where type, dispatch keys, dtype, device, sizes and strides are the same, and none requires a gradient
    where gradients are enabled.
    """

    __slots__ = ("_left", "like")

    def __init__(self) -> None:
        """Recognise nothing yet."""
        self._left = MAX_RECORDED
        self.like: Callable[..., bool] = lambda *_: False
        """Whether tensors, all different ones, are like those that were recorded last."""

    def record(self, tensors: Sequence[torch.Tensor]) -> None:
        """Recognise tensors like these from now on; if gradients are enabled, none may require one."""
        if self._left == 0:
            return
        self._left -= 1
        import torch

        guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
        if guards is None:
            self._left = 0
            return
        # What is given here is compared; where a dimension is None, it isn't.
        sizes = [list(tensor.shape) for tensor in tensors]
        strides = [list(tensor.stride()) for tensor in tensors]
        self.like = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


class KnownCall:
    """A call that kernels serve, and what must be true of another call's tensors for them to serve that too."""

    def __init__(self, op: Op, resolved: Resolved, arguments: Sequence[Maybe]) -> None:
        """Write down the facts of a call of `op` that `resolved`, which has a plan, was decided for."""
        import torch

        signature = resolved.request.signature
        results = {buffer.name: (buffer.shape, getattr(torch, buffer.dtype)) for buffer in signature.outputs}
        device = next(tensor.device for tensor in arguments if tensor is not None)
        self.resolved, self._op = resolved, op
        self._arguments: list[Facts | None] = [
            None if t is None else (type(t), t.shape, t.dtype, device) for t in arguments
        ]
        self._results: list[Facts | None] = [
            (torch.Tensor, *results[name], device) if name in results else None for name in op.results
        ]
        self._no_arguments = [place for place, facts in enumerate(self._arguments) if facts is None]
        self._no_results = [place for place, facts in enumerate(self._results) if facts is None]
        self._given = picker([place for place, facts in enumerate(self._arguments) if facts is not None])
        self._written = picker([place for place, facts in enumerate(self._results) if facts is not None])
        self._recorded_given, self._recorded_written = Recorded(), Recorded()
        sizes = {buffer.name: buffer.nbytes for buffer in (*signature.inputs, *signature.outputs)}
        self._nbytes = [sizes[name] for name in (*op.arguments, *op.results) if name in sizes]
        self._apart: set[tuple[int, ...]] = set()

    def fits(self, arguments: Sequence[Maybe], out: Sequence[Maybe] | None) -> bool:
        """Whether a call is like the recorded one; TypeError and RuntimeError (a gradient) as the op raises them."""
        for place in self._no_arguments:
            if arguments[place] is not None:
                return False
        given = self._given(arguments)
        if not self._recorded_given.like(*given):
            if not _alike(arguments, self._arguments):
                return False
            op = self._op
            refuse_grad(zip(op.arguments, arguments, strict=True), op.family)
            self._recorded_given.record(given)
        return out is None or self._fits_into(given, out)

    def _fits_into(self, given: tuple[Any, ...], out: Sequence[Maybe]) -> bool:
        if len(out) != len(self._results):
            return False
        for place in self._no_results:
            if out[place] is not None:
                return False
        written = self._written(out)
        if not self._recorded_written.like(*written):
            if not _alike(out, self._results):
                return False
            if not any(tensor.requires_grad for tensor in written):
                self._recorded_written.record(written)
        addresses = tuple([tensor.data_ptr() for tensor in (*given, *written)])
        return addresses in self._apart or self._are_apart(addresses)

    def _are_apart(self, addresses: tuple[int, ...]) -> bool:
        """Whether no two of the tensors overlap in memory, a stronger condition than needed."""
        end = 0
        for start, size in sorted(zip(addresses, self._nbytes, strict=True)):
            if start < end:
                return False
            end = start + size
        if len(self._apart) >= MAX_APART:
            self._apart.clear()
        self._apart.add(addresses)
        return True


def _alike(tensors: Sequence[Maybe], facts: Sequence[Facts | None]) -> bool:
    for tensor, known in zip(tensors, facts, strict=True):
        if tensor is None or known is None:
            if (tensor is None) != (known is None):
                return False
            continue
        kind, shape, dtype, device = known
        if (
            type(tensor) is not kind
            or tensor.shape != shape
            or tensor.dtype is not dtype
            or tensor.device != device
            or not tensor.is_contiguous()
        ):
            return False
    return True


def facts_of(tensor: torch.Tensor | None, alignment: int) -> tuple[object, ...] | None:
    """All that a decision can depend on of a tensor; the type, so that a FakeTensor is never taken for one."""
    if tensor is None:
        return None
    aligned = tensor.data_ptr() % alignment == 0
    return (type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.is_contiguous(), aligned)
