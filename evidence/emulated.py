"""A seeded case as the emulator runs it: the candidate's launches, with the oracle's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..emulator import Program, candidate_program
from ..emulator.check import Expected
from ..runtime.dispatch import Dispatch
from ..runtime.table import Candidate, Workload
from .subject import Case, Subject

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class EmulatedCase:
    """What runs, and what must come of it."""

    program: Program
    expected: Expected
    """The oracle's bits of every buffer that the launches write."""
    inputs: Mapping[str, torch.Tensor]
    """On the CPU."""


def emulated(
    dispatch: Dispatch, subject: Subject, workload: Workload, candidate: Candidate, arch: str, case: Case
) -> EmulatedCase:
    """Compile a candidate for the CPU and give it a case's inputs.

    Raises:
        CompilerMissing, CompileFailed, TextUnsupported: as `emulator.compile_text`.
    """
    import torch

    inputs = subject.tensors(workload, case, torch.device("cpu"))
    bits = {
        name: tensor.contiguous().view(torch.int16).numpy().view("uint16") for name, tensor in inputs.items()
    }
    request = dispatch.request(workload, case.kind)
    program = candidate_program(
        dispatch.table.root,
        candidate,
        arch,
        case.kind,
        request.signature,
        bits,
        constants=request.constants,
        channel_bytes=workload.channel.get("size", 0),
    )
    return EmulatedCase(program, program.expect(subject.expected(workload, case, bits)), inputs)
