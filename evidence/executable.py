"""A candidate as this process runs it: a plan, or what the evidence of its family makes of it.

A family whose candidates are more than a plan's launches (streams, copies, a library between kernels) carries them
out itself; the gate and the timing see the same protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..runtime.device import Device
from ..runtime.dispatch import Dispatch
from ..runtime.request import Signature, pointers
from ..table import Buffer, Candidate, Workload
from .family_evidence import Case, FamilyEvidence

if TYPE_CHECKING:
    import torch

    from .emulated import EmulatedCase
    from .rank_context import RankContext


class Executable(Protocol):
    """A candidate for calls of one kind and size; `runtime.plan.Plan` is one."""

    @property
    def signature(self) -> Signature:
        """The op's tensors, as the ranks of this process have them."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """What a call may touch of what the gate allocates: inputs and outputs, and a plan's scratch."""

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Run on the gate's tensors, one for each of `buffers`, on torch's current stream."""

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None
    ) -> Sequence[torch.Tensor]:
        """Compute the outputs, fresh ones unless some are given, on torch's current stream."""


@runtime_checkable
class ExecutableEvidence(Protocol):
    """What the evidence of a family adds that carries its candidates out itself."""

    def channels(self, workloads: Sequence[Workload], workload: Workload) -> Sequence[str]:
        """Specs of the table's `workloads` whose channels a call may use beside the workload's own."""

    def executable(
        self,
        dispatch: Dispatch,
        workload: Workload,
        candidate: Candidate,
        arch: str,
        at: int | None,
        here: Device,
        place: RankContext,
    ) -> Executable:
        """The candidate on the ranks of this process.

        Raises:
            LoadError: it can't run here; in a sentence.
        """

    def emulated(
        self, root: Path, workload: Workload, candidate: Candidate, arch: str, case: Case
    ) -> EmulatedCase:
        """The launches of the candidate's kernels on the emulator, with the right bits of what they store.

        What the candidate leaves to a library isn't emulated; the case gives its result instead.
        """


def splits_tensors(candidate: Candidate) -> bool:
    """Whether its kernels take the tensors of every rank, in a struct of pointers beside that of the channels."""
    return sum(map(bool, map(pointers, candidate.arguments.values()))) > 1


def executable(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    kind: str,
    at: int | None,
    here: Device,
    place: RankContext,
) -> Executable:
    """A candidate of the dispatch table, as this process runs it.

    Raises:
        LoadError: the build doesn't load, or the ranks can't run it here.
        ValueError: as `Dispatch.plan_named`.
    """
    if isinstance(evidence, ExecutableEvidence):
        return evidence.executable(dispatch, workload, candidate, arch, at, here, place)
    return dispatch.plan_named(workload.name, candidate.name, arch, kind, here, comm=place.comm, at=at)
