"""A candidate of the dispatch table as launches: its kernels for one kind of the op, on given tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..runtime.loader import source_text
from ..runtime.plan import TIMEOUT_NS
from ..runtime.request import ITEM_BYTES, Signature
from ..runtime.request import Buffer as Tensor
from ..runtime.table import Candidate
from .build import Variant, compile_text
from .launch import Array, Buffer, Launch, run
from .report import Fault
from .schedule import Schedule


@dataclass(frozen=True)
class Program:
    """Launches, with the buffers that they use by name."""

    launches: tuple[Launch, ...]
    buffers: Mapping[str, Buffer]
    outputs: tuple[str, ...]
    """What the op returns; everything else that the launches write is intermediate."""

    def expect(self, tensors: Mapping[str, Array]) -> dict[Buffer, Array]:
        """Those of `tensors` that the launches write, as `check` and `fuzz` take them."""
        return {
            buffer: tensors[name]
            for name, buffer in self.buffers.items()
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
) -> Program:
    """The launches of `candidate` for one kind of its op.

    Args:
        root: folder of the dispatch module (`Table.root`).
        signature: the op's tensors for that kind (`Operator.request_for(fields, kind).signature`).
        tensors: the inputs by name, as arrays of bits (uint16 for float16 and bfloat16).

    Raises:
        ValueError: a tensor is missing or has the wrong size.
        LoadError: the source can't be read; `StaleSource` if it isn't the one the table was made for.
        CompilerMissing, CompileFailed, TextUnsupported: as `compile_text`.
    """
    build = candidate.builds[arch]
    kernel = compile_text(source_text(root, build), Path(build.source).name, variant)
    kernels = [candidate.kernels[name] for name in candidate.steps[kind]]
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    scratch = {name: Tensor(name, *what) for name, what in candidate.scratch.items()}
    scalars = {name: np.uint64(TIMEOUT_NS) for name in candidate.arguments if name == "timeout_ns"}
    buffers = {tensor.name: _given(tensor, tensors.get(tensor.name)) for tensor in signature.inputs}
    buffers |= {name: _kept(Tensor(name, *what)) for name, what in candidate.state.items()}
    for name in dict.fromkeys(name for kernel in kernels for name in kernel.args):
        if name not in buffers and name not in scalars:
            tensor = outputs.get(name) or scratch[name]
            buffers[name] = Buffer(
                name, np.empty(tensor.shape, _bits(tensor.dtype)), "out", 0, (), tensor.dtype
            )
    launches = tuple(
        Launch(
            kernel,
            step.symbol,
            step.grid,
            step.block,
            tuple(scalars[a] if a in scalars else buffers[a] for a in step.args),
            step.shared_bytes,
            programmatic=step.programmatic,
        )
        for step in kernels
    )
    return Program(launches, buffers, tuple(outputs))


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
    stored = {buffer.name: array for buffer, array in outcome.arrays.items()}
    outputs = {name: stored.pop(name) for name in program.outputs}
    return CandidateRun(outputs, stored, outcome.fault)


def _given(tensor: Tensor, array: Array | None) -> Buffer:
    if array is None:
        raise ValueError(
            f"{tensor.name} is missing; the op takes it as {tensor.dtype} of shape {tensor.shape}."
        )
    if array.nbytes != tensor.nbytes:
        raise ValueError(
            f"{tensor.name} has {array.nbytes} bytes; {tensor.dtype} of shape {tensor.shape} has {tensor.nbytes}."
        )
    bits = np.ascontiguousarray(array).view(_bits(tensor.dtype))
    return Buffer(tensor.name, bits, "in", 0, (), tensor.dtype)


def _kept(tensor: Tensor) -> Buffer:
    """What kernels keep between calls, as it is before the first."""
    return Buffer(tensor.name, np.zeros(tensor.shape, _bits(tensor.dtype)), "inout", 0, (), tensor.dtype)


def _bits(dtype: str) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"u{ITEM_BYTES[dtype]}")
