"""A candidate of the dispatch table as launches: its kernels for one kind of the op, on given tensors.

Ranks that talk over a channel get launches of their own, one after the other on each rank, as on as many GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..runtime.loader import source_text
from ..runtime.plan import TIMEOUT_NS
from ..runtime.request import Signature, pointers
from ..table import ITEM_BYTES, Candidate
from ..table import Buffer as Tensor
from .build import Variant, compile_text
from .launch import Argument, Array, DeviceBuffer, EmulatedLaunch

CHANNELS, RANK_BASE = "channels", "rank_base"
"""Arguments of kernels that talk: the ranks' memory, and the first rank of a launch."""
KNOWN = (RANK_BASE, "timeout_ns")
"""Numbers that a launch states itself."""
NOBODY = DeviceBuffer("another rank's tensor", np.zeros(1, np.uint8), "in")
"""The target of other ranks' pointers in a launch of one rank."""


@dataclass(frozen=True)
class Program:
    """Launches, with the buffers that they use by name."""

    launches: tuple[EmulatedLaunch, ...]
    buffers: Mapping[str, tuple[DeviceBuffer, ...]]
    """A buffer for each rank."""
    outputs: tuple[str, ...]
    """What the op returns; everything else that the launches write is intermediate."""

    def expect(self, tensors: Mapping[str, Array]) -> dict[DeviceBuffer, Array]:
        """Those of `tensors` that the launches write, as `check` and `fuzz` take them."""
        return {
            buffer: _share(tensors[name], buffer.array.nbytes, rank)
            for name, buffers in self.buffers.items()
            for rank, buffer in enumerate(buffers)
            if buffer.access != "in" and name in tensors
        }


def candidate_program(
    root: Path,
    candidate: Candidate,
    arch: str,
    kind: str,
    signature: Signature,
    tensors: Mapping[str, Array],
    variant: Variant = "plain",
    *,
    channels: Sequence[Array] = (),
    constants: Mapping[str, bytes] | None = None,
) -> Program:
    """The launches of `candidate` for one kind of its op.

    Args:
        root: folder of the dispatch module (`Table.root`).
        signature: the op's tensors for that kind as one rank has them (`Signature.of_one_rank`).
        tensors: the inputs by name, as arrays of bits (uint16 for float16 and bfloat16); those of all ranks one after
            the other, or one that all ranks share.
        channels: what each rank's memory of the channel holds before the call; empty where nothing is exchanged.
        constants: arguments that follow from the call (`Request.constants`).

    Raises:
        ValueError: a tensor or a constant is missing, or a tensor has the wrong size.
        LoadError: the source can't be read; `StaleSource` if it isn't the one the table was made for.
        CompilerMissing, CompileFailed, TextUnsupported: as `compile_text`.
    """
    build = candidate.builds[arch]
    kernel = compile_text(source_text(root, build), Path(build.source).name, variant)
    kernels = [candidate.kernels[name] for name in candidate.steps[kind]]
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    stored = {**_scratch(candidate, constants or {}), **outputs}
    scalars: dict[str, np.generic] = {name: np.void(value) for name, value in (constants or {}).items()}
    scalars |= {name: np.uint64(TIMEOUT_NS) for name in candidate.arguments if name == "timeout_ns"}
    taken = dict.fromkeys(name for kernel in kernels for name in kernel.args)
    missing = [name for name in taken if name in candidate.arguments and name not in {*scalars, *KNOWN}]
    missing = [name for name in missing if not pointers(candidate.arguments[name])]
    if missing:
        raise ValueError(
            f"the kernels of {candidate.name} take {', '.join(missing)}, which follows from the call; pass "
            "constants=request.constants, of dispatch.request(workload, kind, at)"
        )
    ranks = range(max(1, len(channels)))
    buffers: dict[str, tuple[DeviceBuffer, ...]] = {
        tensor.name: tuple(_given(tensor, tensors.get(tensor.name), rank, len(ranks)) for rank in ranks)
        for tensor in signature.inputs
    }
    if channels:
        buffers[CHANNELS] = tuple(
            DeviceBuffer("channel", array, "inout", rank) for rank, array in enumerate(channels)
        )
    for name, (shape, dtype) in candidate.state.items():
        buffers[name] = tuple(
            DeviceBuffer(name, np.zeros(shape, _bits(dtype)), "inout", rank, dtype) for rank in ranks
        )
    for name in taken:
        if name not in buffers and name not in scalars and name != RANK_BASE:
            shape, dtype = stored[name].shape, stored[name].dtype
            buffers[name] = tuple(
                DeviceBuffer(name, np.empty(shape, _bits(dtype)), "out", rank, dtype) for rank in ranks
            )

    def argument(name: str, rank: int) -> Argument:
        if name == RANK_BASE:
            return np.uint32(rank)
        if name in scalars:
            return scalars[name]
        if name == CHANNELS:
            return buffers[CHANNELS]
        length = pointers(candidate.arguments.get(name, ""))
        # A launch of one rank has one pointer; a kernel that follows another of the struct faults.
        return (buffers[name][rank], *[NOBODY] * (length - 1)) if length else buffers[name][rank]

    launches = tuple(
        EmulatedLaunch(
            kernel,
            step.symbol,
            step.grid,
            step.block,
            tuple(argument(name, rank) for name in step.args),
            step.shared_bytes,
            rank=rank,
            programmatic=step.programmatic,
        )
        for rank in ranks
        for step in kernels
    )
    return Program(launches, buffers, tuple(outputs))


def _scratch(candidate: Candidate, constants: Mapping[str, bytes]) -> dict[str, Tensor]:
    """Buffers of a call; where calls differ in size, with room for its own alone: a store behind is found."""
    scratch = {name: Tensor(name, *what) for name, what in candidate.scratch.items()}
    if candidate.scratch_by not in constants:
        return scratch
    size = int.from_bytes(constants[candidate.scratch_by], "little")
    return {name: replace(tensor, shape=(size, *tensor.shape[1:])) for name, tensor in scratch.items()}


def _given(tensor: Tensor, array: Array | None, rank: int, ranks: int) -> DeviceBuffer:
    if array is None:
        raise ValueError(
            f"{tensor.name} is missing; the op takes it as {tensor.dtype} of shape {tensor.shape}."
        )
    if array.nbytes not in (tensor.nbytes, ranks * tensor.nbytes):
        raise ValueError(
            f"{tensor.name} has {array.nbytes} bytes; {tensor.dtype} of shape {tensor.shape} has {tensor.nbytes}."
        )
    bits = np.ascontiguousarray(_share(array, tensor.nbytes, rank)).view(_bits(tensor.dtype))
    return DeviceBuffer(tensor.name, bits, "in", rank, tensor.dtype)


def _share(array: Array, nbytes: int, rank: int) -> Array:
    """A rank's part of the tensors of all ranks; all of it where it has no more than one rank's."""
    if array.nbytes <= nbytes:
        return array
    count = nbytes // array.itemsize
    return array.reshape(-1)[rank * count : (rank + 1) * count]


def _bits(dtype: str) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"u{ITEM_BYTES[dtype]}")
