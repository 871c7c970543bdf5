"""The kinds of calls of the all-reduce, and which arguments they may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...runtime.arguments import check_overlap
from ...runtime.communicator.owner import ChannelOwner
from ...runtime.declaration import Kind

if TYPE_CHECKING:
    import torch

FAMILY = "all_reduce"
_LAYOUT = frozenset({"width", "widths", "packet_bytes"})
"""What a workload says of its channel; it serves payloads of any shape."""
KINDS = {
    "staged": Kind(
        inputs=("inputs",), outputs=("outputs",), without=_LAYOUT, operator="all_reduce", called=("input",)
    ),
    "sum2": Kind(inputs=("inputs", "addends"), outputs=("outputs",), without=_LAYOUT, called=("a", "b")),
    "symmetric": Kind(inputs=(), outputs=("outputs",), without=_LAYOUT, operator=None),
}


def check_comm(comm: object) -> None:
    """Refuse what isn't a communicator of a dispatch module; raises TypeError."""
    if not isinstance(comm, ChannelOwner):
        raise TypeError(
            f"comm is {type(comm).__name__}; it must be what communicator() or local_communicator() of the dispatch "
            "module gave"
        )


def check_tensors(given: Sequence[torch.Tensor], comm: ChannelOwner, out: torch.Tensor | None) -> None:
    """Refuse tensors that don't fit the ranks or each other; raises ValueError."""
    tensor = given[0]
    if comm.local_ranks > 1 and (tensor.dim() == 0 or tensor.shape[0] != comm.local_ranks):
        raise ValueError(
            f"the tensor has shape {tuple(tensor.shape)}; with {comm.local_ranks} local ranks its first dimension "
            f"must be {comm.local_ranks}"
        )
    if out is None:
        return
    alike = (out.shape, out.dtype, out.device) == (tensor.shape, tensor.dtype, tensor.device)
    if not alike or not out.is_contiguous():
        raise ValueError(
            f"out is {out.dtype} of shape {tuple(out.shape)} on {out.device}, strides {out.stride()}; it must be "
            f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}, contiguous"
        )
    if out is tensor and len(given) == 1:
        return
    # A rank that stores its sums in a part of an input spoils what other CTAs, or other ranks, haven't read yet.
    begin, size = out.data_ptr(), out.nbytes
    for part in given:
        if part is out:
            continue
        distance = part.data_ptr() - begin
        if not part.is_contiguous() or -size < distance < 0 or 0 < distance < size:
            names = ("a", "b") if len(given) > 1 else ("the tensor",)
            check_overlap({"out": out}, dict(zip(names, given, strict=True)), {"out": "out"}, names)


def check_alike(given: Sequence[torch.Tensor]) -> None:
    """Refuse addends that differ from the first tensor; raises ValueError."""
    a = given[0]
    for b in given[1:]:
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            raise ValueError(
                f"a is {a.dtype} of shape {tuple(a.shape)} on {a.device}, b {b.dtype} of shape {tuple(b.shape)} on "
                f"{b.device}; both must be alike"
            )
