"""Reading a hyper-connection call: its shape from its tensors, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...runtime.communicator import Communicator
from ...runtime.plain import described, is_plain
from ...runtime.request import Signature
from ...table import Table
from .shape import ALIGNMENT, DTYPE_SHORT, FAMILY, INPUTS, OUTPUTS, BoundaryShape

if TYPE_CHECKING:
    import torch

RESULTS = ("x", "block_input", "injection_out")
"""The op's results, in order."""

ARGUMENTS = INPUTS["boundary"]
"""The op's tensors, in order."""

FP32_MAX = 3.4028234663852886e38


def checked_kind(kind: str) -> str:
    """`kind`, if the op has it.

    Raises:
        ValueError: it hasn't.
    """
    if isinstance(kind, str) and kind in INPUTS:
        return kind
    import difflib  # only a mistake needs it, and every import of the package would pay for it

    nearest = difflib.get_close_matches(str(kind), INPUTS, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ValueError(f"kind is {kind!r}; allowed are {', '.join(INPUTS)}{hint}")


def read(
    table: Table,
    arguments: Sequence[object],
    kind: str,
    eps: float,
    branches: int | None,
    comm: Communicator | None,
    *,
    real: bool = True,
) -> BoundaryShape:
    """The shape of a call (docs/hyper_connection.md).

    Args:
        table: decides the number of branches where the tensors don't.
        arguments: the op's six tensors in order; None where the kind has none.
        kind: one of `INPUTS`.
        eps: added to the mean square; rounded to FP32.
        branches: HC, if the caller states it.
        comm: the caller's communicator.
        real: whether the tensors must have memory; those of a compiler that only traces haven't, and there the
            number of tokens may be a symbol.

    Raises:
        ValueError, TypeError: the call isn't valid; the sentence says what was found and what is allowed.
    """
    checked_kind(kind)
    given = _tensors(arguments, kind, real)
    residual = given["residual"]
    _check_dtypes_and_devices(given)
    if real and residual.is_meta:
        raise ValueError("residual is on meta, where tensors have no values; pass tensors on cuda or cpu")
    _check_options(eps, branches, comm)
    if residual.ndim != 2:
        raise ValueError(
            f"residual has shape {tuple(residual.shape)}; it must be [tokens, branches * hidden]"
        )
    # Tokens may stay a symbol of the tracer; int() makes numbers of all other sizes.
    tokens, state = residual.shape[0], int(residual.shape[1])
    up_weight, norm = given.get("up_weight"), given.get("norm_weight")
    if up_weight is not None and up_weight.ndim != 2:
        raise ValueError(
            f"up_weight has shape {tuple(up_weight.shape)}; it must be [branches * hidden, low_rank]"
        )
    low_rank = 0 if up_weight is None else int(up_weight.shape[1])
    hc = _branches(table, given, state, low_rank, branches)
    shape = BoundaryShape(
        dtype=_dtype(residual),
        branches=hc,
        hidden=state // hc,
        low_rank=low_rank,
        tokens=tokens,
        norm_weight="" if norm is None else "per_branch" if norm.numel() == state else "shared",
        eps=float(eps),
        world_size=1 if comm is None else comm.world_size,
    )
    _check_shapes(shape, kind, given)
    return shape


def layout_problems(tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Tensors that kernels can't take as they lie in memory, a sentence each; torch takes them all."""
    return tuple(_layout_problems(tensors))


def _layout_problems(tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            yield f"{name} is not contiguous: strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)}"
        elif tensor.data_ptr() % ALIGNMENT:
            yield f"{name} starts at an address that is not a multiple of {ALIGNMENT} bytes"


def checked_out(
    signature: Signature, given: Sequence[torch.Tensor], kind: str, out: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """The caller's output tensors by name.

    Raises:
        ValueError, TypeError: they aren't what the kind gives, or share memory with an input or each other.
    """
    if not isinstance(out, (tuple, list)) or len(out) != len(RESULTS):
        raise ValueError(f"out is {described(out)}; it must be a tuple ({', '.join(RESULTS)})")
    named = dict(zip(RESULTS, out, strict=True))
    for name, tensor in named.items():
        check_presence(name, tensor, name in OUTPUTS[kind], kind, f"out's {name}")
        _check_plain(tensor, f"out's {name}")
    tensors = {name: named[name] for name in OUTPUTS[kind]}
    residual = given[0]
    for buffer in signature.outputs:
        tensor = tensors[buffer.name]
        if (
            tuple(tensor.shape) != buffer.shape
            or tensor.dtype != residual.dtype
            or tensor.device != residual.device
        ):
            raise ValueError(
                f"out's {buffer.name} is {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}; "
                f"it must be {residual.dtype} of shape {buffer.shape} on {residual.device}"
            )
    check_overlap(tensors, {**dict(zip(INPUTS[kind], given, strict=True)), **tensors})
    return tensors


def check_overlap(outputs: Iterable[str], everything: Mapping[str, torch.Tensor]) -> None:
    """Check that no output shares memory with another tensor of the call.

    Raises:
        ValueError: one does.
    """
    spans = [(name, *_span(tensor)) for name, tensor in everything.items()]
    for output in outputs:
        first, last = _span(everything[output])
        for name, start, end in spans:
            if start < last and first < end and name != output:
                raise ValueError(f"out's {output} shares memory with {name}; give it memory of its own")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _tensors(arguments: Sequence[Any], kind: str, real: bool) -> dict[str, torch.Tensor]:
    for name, argument in zip(ARGUMENTS, arguments, strict=True):
        check_presence(name, argument, name in INPUTS[kind], kind, name)
        if real:
            _check_plain(argument, name)
    return {name: value for name, value in zip(ARGUMENTS, arguments, strict=True) if value is not None}


def check_presence(name: str, value: object, wanted: bool, kind: str, called: str) -> None:
    """Check that a tensor is there exactly where the kind has one.

    Raises:
        ValueError, TypeError: it isn't.
    """
    import torch

    if value is None and wanted:
        raise ValueError(f"{called} is None; kind {kind} needs a tensor")
    if value is not None and not isinstance(value, torch.Tensor):
        raise TypeError(f"{called} is {described(value)}; it must be a torch tensor")
    if value is not None and not wanted:
        raise ValueError(f"{called} is a tensor; kind {kind} has no {name}: pass None")


def _check_plain(value: torch.Tensor | None, called: str) -> None:
    if value is not None and not is_plain(value):
        raise TypeError(
            f"{called} is {described(value)} of layout {value.layout}; only a strided torch.Tensor or Parameter "
            "has memory that kernels can read: pass the plain tensor behind it"
        )


def _check_options(eps: object, branches: object, comm: object) -> None:
    if not (isinstance(eps, (int, float)) and 0 <= eps <= FP32_MAX):
        raise ValueError(f"eps is {eps!r}; it must be a finite FP32 number of at least 0")
    if branches is not None and (not isinstance(branches, int) or isinstance(branches, bool)):
        raise TypeError(f"branches is {branches!r}; it must be an integer of at least 2, or None")
    if comm is not None and not (isinstance(comm, Communicator) and isinstance(comm, Hashable)):
        raise TypeError(
            f"comm is {described(comm)}; it must be None or a communicator: hashable, with rank, world_size, "
            "layout_version, capabilities and owns()"
        )
    if getattr(comm, "local_ranks", 1) > 1:
        raise ValueError(
            "comm has several ranks in this process, and hyper_connection takes the tensors of one; call it in a "
            "process a rank, with communicator() of the dispatch module"
        )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_dtypes_and_devices(given: Mapping[str, torch.Tensor]) -> None:
    residual = given["residual"]
    if _dtype(residual) not in DTYPE_SHORT:
        raise TypeError(f"residual is {_dtype(residual)}; allowed are {', '.join(DTYPE_SHORT)}")
    for name, tensor in given.items():
        if tensor.dtype != residual.dtype:
            raise TypeError(
                f"{name} is {_dtype(tensor)} and residual is {_dtype(residual)}; "
                "all tensors must have one dtype"
            )
        if tensor.device != residual.device:
            raise ValueError(
                f"{name} is on {tensor.device} and residual is on {residual.device}; "
                "all tensors must be on one device"
            )


def _branches(
    table: Table, given: Mapping[str, torch.Tensor], state: int, low_rank: int, stated: int | None
) -> int:
    """HC: from block, injection or a shared norm weight; else as stated; else by the table."""
    found: dict[str, int] = {}
    hidden: dict[str, int] = {}
    if "block" in given and given["block"].ndim == 2:
        hidden["block"] = int(given["block"].shape[1])
    if "norm_weight" in given and given["norm_weight"].numel() != state:
        hidden["norm_weight"] = int(given["norm_weight"].numel())
    for name, size in hidden.items():
        if size == 0 or state % size:
            raise ValueError(
                f"{name} has {size} elements a branch, which doesn't divide the {state} of a residual row"
            )
        found[name] = state // size
    if "injection" in given and given["injection"].ndim == 2:
        found["injection"] = int(given["injection"].shape[1])
    if stated is not None:
        found["branches="] = stated
    if not found:
        found["the dispatch table"] = _branches_of_table(table, state, low_rank)
    if len(set(found.values())) > 1:
        raise ValueError(
            "the number of branches is contradictory: "
            + ", ".join(f"{value} by {name}" for name, value in found.items())
        )
    (branches,) = set(found.values())
    if branches < 2 or state % branches:
        raise ValueError(
            f"branches is {branches} by {next(iter(found))}; it must be at least 2 and divide "
            f"the {state} elements of a residual row"
        )
    return branches


def _branches_of_table(table: Table, state: int, low_rank: int) -> int:
    fitting = {
        int(str(work.fields["branches"]))
        for work in table.workloads
        if work.family == FAMILY
        and int(str(work.fields["branches"])) * int(str(work.fields["hidden"])) == state
        and (work.fields["low_rank"], work.fields["norm_weight"]) == (low_rank, "per_branch")
    }
    if len(fitting) == 1:
        return fitting.pop()
    which = f"several ({', '.join(map(str, sorted(fitting)))})" if fitting else "none"
    raise ValueError(
        f"the tensors don't determine the number of branches of a residual row of {state} elements, and the "
        f"dispatch table has {which} for low_rank {low_rank}; pass branches="
    )


def _check_shapes(shape: BoundaryShape, kind: str, given: Mapping[str, torch.Tensor]) -> None:
    # norm_weight is told apart by its element count, so [HC, H] is as good as [HC * H].
    for buffer in shape.signature(kind).inputs:
        tensor = given[buffer.name]
        fits = (
            tensor.numel() == buffer.shape[0]
            if buffer.name == "norm_weight"
            else tuple(tensor.shape) == buffer.shape
        )
        if not fits:
            raise ValueError(
                f"{buffer.name} has shape {tuple(tensor.shape)}; with {shape.tokens} tokens, "
                f"{shape.branches} branches, hidden {shape.hidden} and low_rank {shape.low_rank}, "
                f"kind {kind} needs {buffer.shape}"
            )
    if kind != "combine" and shape.low_rank == 0:
        raise ValueError("up_weight has low_rank 0; it must be at least 1")


Places = tuple[tuple[int, ...] | None, tuple[int | None, ...] | None]


def positions(kind: str) -> Places:
    """Where a kind's inputs are among the arguments, and its outputs among the results; see `Resolved`."""
    inputs, outputs = INPUTS[kind], OUTPUTS[kind]
    places = tuple(ARGUMENTS.index(name) for name in inputs)
    results = tuple(outputs.index(name) if name in outputs else None for name in RESULTS)
    return None if inputs == ARGUMENTS else places, None if outputs == RESULTS else results


def refuse_grad(arguments: Sequence[torch.Tensor | None]) -> None:
    """Check that no tensor of a call made with gradients enabled requires one.

    Raises:
        RuntimeError: one does.
    """
    for name, tensor in zip(ARGUMENTS, arguments, strict=True):
        if tensor is not None and tensor.requires_grad:
            raise RuntimeError(
                f"{name} requires grad, and hyper_connection has no gradient; call it under "
                "torch.no_grad() or torch.inference_mode()"
            )
