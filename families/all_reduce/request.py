"""What a call of the all-reduce asks for, and which arguments it may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...runtime.communicator.owner import ChannelOwner
from ...runtime.declaration import Kind
from ...runtime.request import Request, Signature
from ...table import ITEM_BYTES, SHORT_DTYPE, Buffer, Contract, FieldValue

if TYPE_CHECKING:
    import torch

FAMILY = "all_reduce"
KINDS = {
    "staged": Kind(inputs=("inputs",), outputs=("outputs",), operator="all_reduce", called=("input",)),
    "sum2": Kind(inputs=("inputs", "addends"), outputs=("outputs",), called=("a", "b")),
    "symmetric": Kind(inputs=(), outputs=("outputs",), operator=None),
}


def request_of(
    kind: str,
    numel: int,
    dtype: str,
    world_size: int,
    ranks: int,
    contract: Contract,
    note: str,
    slot: int = 0,
) -> Request:
    """The request of a call.

    Args:
        kind: one of `KINDS`.
        numel: elements that a rank contributes.
        dtype: torch's name of it.
        world_size: ranks of the call.
        ranks: of them that share this process, whose tensors lie one after the other.
        contract: what the fallback promises.
        note: how it computes, in words.
        slot: of the channel's inputs, for kind `symmetric`.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; allowed are {', '.join(KINDS)}")
    size = numel * ITEM_BYTES.get(dtype, 8)
    buffers = [Buffer(name, (ranks * numel,), dtype) for name in (*KINDS[kind].inputs, "outputs")]
    return Request(
        family=FAMILY,
        kind=kind,
        fields={"dtype": dtype, "world_size": world_size, "payload_bytes": size},
        signature=Signature(tuple(buffers[:-1]), tuple(buffers[-1:])),
        label=f"{SHORT_DTYPE.get(dtype, dtype)}-b{size}-tp{world_size}",
        reference_contract=contract,
        reference_note=note,
        constants={"numel": (numel % 2**32).to_bytes(4, "little"), "input_slot": slot.to_bytes(4, "little")},
    )


def local_request(fields: Mapping[str, FieldValue], kind: str) -> Request:
    """The request of a call on local ranks whose payload has `payload_bytes`, one number.

    Raises:
        ValueError: an unknown kind or dtype, or payloads that aren't one number of whole elements.
    """
    dtype, size, ranks = str(fields["dtype"]), fields["payload_bytes"], int(str(fields["world_size"]))
    if isinstance(size, tuple):
        raise ValueError(f"payload_bytes is {size[0]} to {size[1]}; name one number of it")
    if dtype not in ITEM_BYTES or int(size) % ITEM_BYTES[dtype]:
        raise ValueError(f"{size} bytes aren't whole elements of {dtype}; take another payload_bytes")
    numel = int(size) // ITEM_BYTES[dtype]
    return request_of(kind, numel, dtype, ranks, ranks, "exact", "torch, in rank order")


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


def check_alike(given: Sequence[torch.Tensor]) -> None:
    """Refuse addends that differ from the first tensor; raises ValueError."""
    a = given[0]
    for b in given[1:]:
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            raise ValueError(
                f"a is {a.dtype} of shape {tuple(a.shape)} on {a.device}, b {b.dtype} of shape {tuple(b.shape)} on "
                f"{b.device}; both must be alike"
            )
