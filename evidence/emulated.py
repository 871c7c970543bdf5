"""A seeded case as the emulator runs it: the candidate's launches, with the oracle's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..emulator import Program, candidate_program
from ..emulator.check import Expected
from ..runtime.dispatch import Dispatch
from ..table import Candidate, Workload
from .executable import ExecutableEvidence
from .family_evidence import Case, ChannelEvidence, FamilyEvidence, in_channel
from .tensors import bits_of
from .tolerance import under_tolerance

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class EmulatedCase:
    program: Program
    expected: Expected
    """The oracle's bits of every buffer that the launches write; nothing where a tolerance decides."""
    inputs: Mapping[str, torch.Tensor]
    """On the CPU."""


def emulated(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    case: Case,
) -> EmulatedCase:
    """Compile a candidate for the CPU (errors as `compile_text`), with a case's inputs; ranks get a channel."""
    import torch

    if isinstance(evidence, ExecutableEvidence):
        return evidence.emulated(dispatch.table.root, workload, candidate, arch, case)
    inputs = evidence.tensors(workload, case, torch.device("cpu"))
    bits = bits_of(inputs)
    request = dispatch.request(workload, case.kind, case.at)
    ranks = int(str(workload.fields.get("world_size", 1))) if candidate.capabilities else 1
    signature = request.signature.of_one_rank(candidate.arguments, ranks)
    placed = in_channel(workload, {buffer.name for buffer in signature.inputs}, bits)
    program = candidate_program(
        dispatch.table.root,
        candidate,
        arch,
        case.kind,
        signature,
        bits,
        channels=_channels(evidence, workload, case, ranks, placed) if candidate.capabilities else (),
        constants=request.constants,
    )
    expected = {} if under_tolerance(candidate) else evidence.expected(workload, case, bits)
    return EmulatedCase(program, program.expect(expected), inputs)


def _channels(
    evidence: FamilyEvidence,
    workload: Workload,
    case: Case,
    ranks: int,
    placed: Mapping[str, NDArray[Any]],
) -> list[NDArray[np.uint8]]:
    """The memory of every rank before the call."""
    memory = np.zeros((ranks, workload.channel["size"]), np.uint8)
    if isinstance(evidence, ChannelEvidence):
        call = evidence.call_before(case)
        if call is not None:
            evidence.after_call(workload, call, memory.view(np.int32))
    for name, values in placed.items():
        begin = workload.channel[name]
        flat = values.reshape(ranks, -1).view(np.uint8)
        memory[:, begin : begin + flat.shape[1]] = flat
    return list(memory)
