"""A call's tensors: whether they are what a kind takes, and sentences about what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import not_allowed
from .plain import described, is_plain

if TYPE_CHECKING:
    import torch

    from .declaration import Kind
    from .request import Signature


def checked_kind(kind: str, kinds: Mapping[str, Kind]) -> Kind:
    """The declaration of `kind`; ValueError where the op has no such kind."""
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    raise ValueError(not_allowed("kind", kind, kinds))


def check_presence(name: str, value: object, wanted: bool, kind: str, called: str) -> None:
    """Check that a tensor is there exactly where the kind has one; else ValueError or TypeError."""
    import torch

    if value is None and wanted:
        raise ValueError(f"{called} is None; kind {kind} needs a tensor")
    if value is not None and not isinstance(value, torch.Tensor):
        raise TypeError(f"{called} is {described(value)}; it must be a torch tensor")
    if value is not None and not wanted:
        raise ValueError(f"{called} is a tensor; kind {kind} has no {name}: pass None")


def check_plain(value: torch.Tensor | None, called: str) -> None:
    """Check that a tensor has memory of its own that kernels can read; else TypeError."""
    if value is not None and not is_plain(value):
        raise TypeError(
            f"{called} is {described(value)} of layout {value.layout}; only a strided torch.Tensor or Parameter "
            "has memory that kernels can read: pass the plain tensor behind it"
        )


def dtype_name(tensor: torch.Tensor) -> str:
    """torch's name of a tensor's dtype, without `torch.`."""
    return str(tensor.dtype).removeprefix("torch.")


def check_dtypes_and_devices(
    given: Mapping[str, torch.Tensor], allowed: Sequence[str], others: Mapping[str, str]
) -> None:
    """Check that tensors have one allowed dtype, or their own, and one device; else ValueError or TypeError."""
    first, leading = next(iter(given.items()))
    if first not in others and dtype_name(leading) not in allowed:
        raise TypeError(f"{first} is {dtype_name(leading)}; allowed are {', '.join(allowed)}")
    for name, tensor in given.items():
        if name in others:
            if dtype_name(tensor) != others[name]:
                raise TypeError(f"{name} is {dtype_name(tensor)}; it must be {others[name]}")
        elif tensor.dtype != leading.dtype:
            raise TypeError(
                f"{name} is {dtype_name(tensor)} and {first} is {dtype_name(leading)}; "
                "all tensors must have one dtype"
            )
        if tensor.device != leading.device:
            raise ValueError(
                f"{name} is on {tensor.device} and {first} is on {leading.device}; "
                "all tensors must be on one device"
            )


def layout_problems(tensors: Mapping[str, torch.Tensor], alignment: int) -> tuple[str, ...]:
    """Tensors that kernels can't take as they lie in memory, a sentence each; torch takes them all."""
    found = []
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            strides, shape = tuple(tensor.stride()), tuple(tensor.shape)
            found.append(f"{name} is not contiguous: strides {strides} of shape {shape}")
        elif tensor.data_ptr() % alignment:
            found.append(f"{name} starts at an address that is not a multiple of {alignment} bytes")
    return tuple(found)


def check_out(
    tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, like: torch.Tensor, called: str
) -> None:
    """Check that a result can be written into a tensor: ValueError where shape, dtype or device differ."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or tensor.device != like.device:
        raise ValueError(
            f"{called} is {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}; it must be "
            f"{dtype} of shape {tuple(shape)} on {like.device}"
        )


def checked_out(
    signature: Signature, given: Mapping[str, torch.Tensor], kind: str, out: Any, called: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """The caller's output tensors by name.

    Raises:
        ValueError, TypeError: they aren't what the kind gives, or share memory with an input or each other.
    """
    import torch

    if not isinstance(out, (tuple, list)) or len(out) != len(called):
        raise ValueError(f"out is {described(out)}; it must be a tuple ({', '.join(called)})")
    named = dict(zip(called, out, strict=True))
    wanted = {buffer.name for buffer in signature.outputs}
    for name, tensor in named.items():
        check_presence(name, tensor, name in wanted, kind, called[name])
        check_plain(tensor, called[name])
    first = next(iter(given.values()))
    for buffer in signature.outputs:
        check_out(named[buffer.name], buffer.shape, getattr(torch, buffer.dtype), first, called[buffer.name])
    tensors = {buffer.name: named[buffer.name] for buffer in signature.outputs}
    check_overlap(tensors, given, called)
    return tensors


def check_overlap(
    outputs: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor],
    called: Mapping[str, str],
    in_place: Collection[str] = (),
) -> None:
    """Check that no output shares memory with another tensor of the call; else ValueError.

    An output may be one of the inputs `in_place`, whole and laid out alike. A tensor that isn't contiguous takes the
    memory from its first element to its last, so two that interleave are refused too.
    """
    for output, tensor in outputs.items():
        for name, other in (*given.items(), *outputs.items()):
            if name == output or (tensor is other and name in in_place) or not _meet(tensor, other):
                continue
            if name not in in_place:
                raise ValueError(f"{called[output]} shares memory with {name}; give it memory of its own")
            if tensor.data_ptr() != other.data_ptr() or not _laid_out_alike(tensor, other):
                raise ValueError(
                    f"{called[output]} shares memory with {name} and isn't the same tensor; give it memory of its "
                    f"own, or {name} itself"
                )


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory of two tensors, each from its first element to its last, has a byte in common."""
    first, second = one.data_ptr(), other.data_ptr()  # 0 where there are no elements, which meets nothing
    return first < second + _extent(other) and second < first + _extent(one)


def _extent(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or first == second for size, first, second in strides)


def check_device(tensor: torch.Tensor, comm: object, called: str) -> None:
    """Check that a tensor is where the ranks of a communicator, if it says, work; else ValueError."""
    device: torch.device | None = getattr(comm, "device", None)
    if device is None or device == tensor.device:
        return
    if device.type == tensor.device.type and (device.type == "cpu" or device.index is None):
        return
    raise ValueError(
        f"{called} is on {tensor.device}, and the ranks of comm work on {device}; pass tensors on {device}, or a "
        "communicator that was made for the other device"
    )


def refuse_grad(named: Iterable[tuple[str, torch.Tensor | None]], family: str) -> None:
    """Raise RuntimeError where gradients are enabled and a tensor of a call requires one."""
    import torch

    if not torch.is_grad_enabled():
        return
    for name, tensor in named:
        if tensor is not None and tensor.requires_grad:
            raise RuntimeError(
                f"{name} requires grad, and {family} has no gradient; call it under "
                "torch.no_grad() or torch.inference_mode()"
            )
