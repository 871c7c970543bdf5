"""The short way of a call that was decided before: does each tensor lie as the one that it was decided for?

Deciding reads a call's shapes in a dictionary of facts, ten microseconds; comparing them costs two. What isn't
compared is an address: a plan looks at those itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..resolved import Resolved
from .hyper_connection_arguments import RESULTS

if TYPE_CHECKING:
    import torch

    Maybe = torch.Tensor | None

Facts = tuple[type, tuple[int, ...], "torch.dtype", "torch.device"]
"""Type (so that a FakeTensor is never taken for a tensor), shape, dtype and device."""


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A call that kernels serve, and what must be true of another call's tensors for them to serve that too."""

    resolved: Resolved
    arguments: tuple[Facts | None, ...]
    results: tuple[Facts | None, ...]
    nbytes: tuple[int, ...]
    """Sizes of the tensors that there are, arguments and results."""

    @classmethod
    def of(cls, resolved: Resolved, arguments: Sequence[Maybe]) -> KnownCall:
        """Write down the facts of a call that `resolved`, which has a plan, was decided for."""
        import torch

        signature = resolved.request.signature
        shapes = {buffer.name: buffer.shape for buffer in signature.outputs}
        given = [tensor for tensor in arguments if tensor is not None]
        dtype, device = given[0].dtype, given[0].device
        return cls(
            resolved=resolved,
            arguments=tuple(None if t is None else (type(t), t.shape, dtype, device) for t in arguments),
            results=tuple(
                (torch.Tensor, shapes[name], dtype, device) if name in shapes else None for name in RESULTS
            ),
            nbytes=tuple(buffer.nbytes for buffer in (*signature.inputs, *signature.outputs)),
        )

    def fits(self, arguments: Sequence[Maybe], out: Sequence[Maybe] | None) -> bool:
        """Whether a call is one of those; where it isn't, it has to be read.

        Raises:
            TypeError: something isn't a tensor.
        """
        if not _alike(arguments, self.arguments):
            return False
        if out is None:
            return True
        return len(out) == len(RESULTS) and _alike(out, self.results) and self._apart(arguments, out)

    def _apart(self, arguments: Sequence[Maybe], out: Sequence[Maybe]) -> bool:
        """Whether no two of the tensors overlap in memory, which is more than is asked for."""
        addresses = [tensor.data_ptr() for tensor in (*arguments, *out) if tensor is not None]
        spans = sorted(zip(addresses, self.nbytes, strict=True))
        end = 0
        for start, size in spans:
            if start < end:
                return False
            end = start + size
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


def facts_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """All that a decision can depend on of a tensor; the type, so that a FakeTensor is never taken for one."""
    aligned = tensor.data_ptr() & 15 == 0
    return (type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.is_contiguous(), aligned)
