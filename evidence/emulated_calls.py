"""A candidate's plan on the emulator, called as programs call it: allocation, addresses, state, pointers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..emulator import DeviceBuffer, compile_text
from ..emulator.launch import Array
from ..emulator.module import EmulatedCommunicator, EmulatedModule
from ..runtime.device import Device
from ..runtime.dispatch import Dispatch
from ..runtime.loader import source_text
from ..runtime.plan import Plan
from ..table import Candidate, Workload
from .emulated import EmulatedCase
from .executable import ExecutableEvidence, splits_tensors
from .family_evidence import Case, FamilyEvidence
from .gate import CaseMismatch, Replay, compare
from .rank_context import RankContext
from .tensors import as_torch


def first_wrong_call(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    case: Case,
    run: EmulatedCase,
    stored: Mapping[DeviceBuffer, Array],
) -> CaseMismatch | None:
    """Call the candidate's plan with fresh outputs and with given ones; the first value that isn't as expected.

    Args:
        run: the case as launches.
        stored: what they stored, which is right.

    Raises:
        NoCalls: no plan of one process carries the candidate out.
    """
    import torch

    if isinstance(evidence, ExecutableEvidence) or (candidate.capabilities and not splits_tensors(candidate)):
        raise NoCalls(f"candidate {candidate.name} of {workload.label} isn't a plan of one process")
    place = RankContext(torch.device("cpu"), _communicator(dispatch, workload, candidate, arch))
    replay = Replay(_plan(dispatch, workload, candidate, arch, case, place), place, workload)
    expected = {
        name: [as_torch(stored[buffer], buffer.dtype, place.device) for buffer in run.program.buffers[name]]
        for name in run.program.outputs
    }
    answer = replay.shares(
        {name: torch.cat([part.reshape(-1) for part in parts]) for name, parts in expected.items()}
    )
    place.begin(evidence, workload, case)
    for how, results in replay.calls(run.inputs, remembers=False):
        for found, right in ((results, answer), replay.left_alone(run.inputs)):
            gate = compare(case, how, found, right)
            if gate.first is not None:
                return gate.first
    return None


class NoCalls(ValueError):
    """A candidate has no plan that the emulator could call."""


def _communicator(
    dispatch: Dispatch, workload: Workload, candidate: Candidate, arch: str
) -> EmulatedCommunicator | None:
    if not candidate.capabilities:
        return None
    ranks = int(str(workload.fields["world_size"]))
    return EmulatedCommunicator(dispatch.table, ranks, arch=arch, specs=[workload.spec])


def _plan(
    dispatch: Dispatch, workload: Workload, candidate: Candidate, arch: str, case: Case, place: RankContext
) -> Plan:
    if place.comm is not None:
        return dispatch.plan_named(
            workload.name, candidate.name, arch, case.kind, place.here, comm=place.comm, at=case.at
        )
    build, request = candidate.builds[arch], dispatch.request(workload, case.kind, case.at)
    text = source_text(dispatch.table.root, build)
    return Plan(
        candidate,
        arch,
        case.kind,
        request.signature,
        Device(arch, None, "emulator"),
        EmulatedModule(compile_text(text, Path(build.source).name)),
        request.constants,
        record=dispatch.table.family(workload.family).cta_record,
    )
