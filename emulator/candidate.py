"""A candidate of the dispatch table as launches: its kernels for one kind of the op, on given tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..runtime.loader import source_text
from ..runtime.plan import TIMEOUT_NS
from ..runtime.request import ITEM_BYTES, Signature
from ..runtime.request import Buffer as Tensor
from ..runtime.table import Candidate, Kernel
from .build import Variant, compile_text
from .launch import Argument, Array, Buffer, Launch, run
from .report import Fault
from .schedule import Schedule


@dataclass(frozen=True)
class Program:
    """Launches, with the buffers that they use by name."""

    launches: tuple[Launch, ...]
    buffers: Mapping[str, Buffer]
    outputs: tuple[str, ...]
    """What the op returns; everything else that the launches write is intermediate."""
    peers: tuple[Mapping[str, Buffer], ...] = ()
    """The buffers of the other ranks, by name; `buffers` are those of rank 0."""

    def expect(self, tensors: Mapping[str, Array]) -> dict[Buffer, Array]:
        """Those of `tensors` that the launches write, on every rank, as `check` and `fuzz` take them."""
        return {
            buffer: tensors[name]
            for buffers in (self.buffers, *self.peers)
            for name, buffer in buffers.items()
            if buffer.access != "in" and name in tensors
        }


@dataclass(frozen=True)
class CandidateRun:
    """What a candidate stored, as bits of its dtypes."""

    outputs: Mapping[str, Array]
    intermediates: Mapping[str, Array]
    fault: Fault | None


def candidate_program(
    root: Path,
    candidate: Candidate,
    arch: str,
    kind: str,
    signature: Signature,
    tensors: Mapping[str, Array],
    variant: Variant = "plain",
    constants: Mapping[str, bytes] | None = None,
    channel_bytes: int = 0,
) -> Program:
    """The launches of `candidate` for one kind of its op, on every rank if its kernels talk to peers.

    Args:
        root: folder of the dispatch module (`Table.root`).
        signature: the op's tensors for that kind (`Operator.request_for(fields, kind).signature`).
        tensors: the inputs by name, as arrays of bits (uint16 for float16 and bfloat16); the same on every rank.
        constants: arguments that aren't tensors (`Request.constants`).
        channel_bytes: size of a rank's channel (`Workload.channel["size"]`).

    Raises:
        ValueError: a tensor is missing or has the wrong size.
        LoadError: the source can't be read; `StaleSource` if it isn't the one the table was made for.
        CompilerMissing, CompileFailed, TextUnsupported: as `compile_text`.
    """
    build = candidate.builds[arch]
    kernel = compile_text(source_text(root, build), Path(build.source).name, variant)
    kernels = [candidate.kernels[name] for name in candidate.steps[kind]]
    given = {name: np.void(value) for name, value in (constants or {}).items()}
    given["timeout_ns"] = np.void(TIMEOUT_NS.to_bytes(8, "little"))
    channels = tuple(
        Buffer.inout("channel", np.zeros(channel_bytes, np.uint8), rank) for rank in range(_ranks(candidate))
    )
    launches: list[Launch] = []
    ranks = []
    for rank in range(max(1, len(channels))):
        buffers = _buffers(candidate, kernels, signature, tensors, rank)
        arguments: dict[str, Argument] = {
            **given,
            "channels": channels,
            "rank_base": np.uint32(rank),
            **buffers,
        }
        launches += [
            Launch(
                kernel,
                step.symbol,
                step.grid,
                step.block,
                tuple(arguments[name] for name in step.args),
                step.shared_bytes,
                rank,
                programmatic=step.programmatic,
            )
            for step in kernels
        ]
        ranks.append(buffers)
    return Program(
        tuple(launches), ranks[0], tuple(tensor.name for tensor in signature.outputs), tuple(ranks[1:])
    )


def _ranks(candidate: Candidate) -> int:
    """Ranks whose channels the kernels take; 0 where they talk to nobody."""
    kind = candidate.arguments.get("channels", "pointers[0]")
    return int(kind.removeprefix("pointers[").removesuffix("]"))


def _buffers(
    candidate: Candidate,
    kernels: Sequence[Kernel],
    signature: Signature,
    tensors: Mapping[str, Array],
    rank: int,
) -> dict[str, Buffer]:
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    scratch = {name: Tensor(name, *what) for name, what in candidate.scratch.items()}
    if "tokens" in candidate.arguments:  # room for those that there are: a store behind them is then found
        tokens = signature.inputs[0].shape[0]
        scratch = {
            name: replace(tensor, shape=(tokens, *tensor.shape[1:])) for name, tensor in scratch.items()
        }
    buffers = {tensor.name: _given(tensor, tensors.get(tensor.name), rank) for tensor in signature.inputs}
    buffers |= {name: _kept(Tensor(name, *what), rank) for name, what in candidate.state.items()}
    for name in dict.fromkeys(name for kernel in kernels for name in kernel.args):
        if name not in buffers and name not in candidate.arguments:
            tensor = outputs.get(name) or scratch[name]
            bits = np.empty(tensor.shape, _bits(tensor.dtype))
            buffers[name] = Buffer(name, bits, "out", rank, (), tensor.dtype)
    return buffers


def run_candidate(
    root: Path,
    candidate: Candidate,
    arch: str,
    kind: str,
    signature: Signature,
    tensors: Mapping[str, Array],
    schedule: Schedule = Schedule(),  # noqa: B008
) -> CandidateRun:
    """Run a candidate once; arguments and errors as `candidate_program`."""
    program = candidate_program(root, candidate, arch, kind, signature, tensors)
    outcome = run(program.launches, schedule)
    stored = {name: outcome.arrays[b] for name, b in program.buffers.items() if b in outcome.arrays}
    outputs = {name: stored.pop(name) for name in program.outputs}
    return CandidateRun(outputs, stored, outcome.fault)


def _given(tensor: Tensor, array: Array | None, rank: int) -> Buffer:
    if array is None:
        raise ValueError(
            f"{tensor.name} is missing; the op takes it as {tensor.dtype} of shape {tensor.shape}."
        )
    if array.nbytes != tensor.nbytes:
        raise ValueError(
            f"{tensor.name} has {array.nbytes} bytes; {tensor.dtype} of shape {tensor.shape} has {tensor.nbytes}."
        )
    bits = np.ascontiguousarray(array).view(_bits(tensor.dtype))
    return Buffer(tensor.name, bits, "in", rank, (), tensor.dtype)


def _kept(tensor: Tensor, rank: int) -> Buffer:
    """What kernels keep between calls, as it is before the first."""
    return Buffer(tensor.name, np.zeros(tensor.shape, _bits(tensor.dtype)), "inout", rank, (), tensor.dtype)


def _bits(dtype: str) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"u{ITEM_BYTES[dtype]}")
