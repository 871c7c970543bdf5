"""Where the ranks of a workload are: none, all in this process on one GPU, or one in each process of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.communicator import objection
from ..runtime.communicator.owner import ChannelOwner
from ..runtime.device import Device, current
from ..runtime.dispatch import Dispatch
from ..runtime.errors import ChannelError
from ..table import Workload
from .executable import ExecutableEvidence
from .family_evidence import Case, ChannelEvidence, FamilyEvidence
from .ranks import RankJob

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RankContext:
    """This process's part in a workload's ranks."""

    device: torch.device
    comm: ChannelOwner | None = None
    """None where nothing is exchanged."""

    @property
    def here(self) -> Device:
        return current(self.device) if self.comm is None else self.comm.target

    @property
    def rank(self) -> int:
        """Of this process, or the first of its ranks."""
        return 0 if self.comm is None else self.comm.rank

    @property
    def is_local(self) -> bool:
        """Whether all ranks share this process."""
        return self.comm is not None and self.comm.local_ranks > 1

    def share(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """What the ranks of this process have of a case's tensor, flat, as a buffer of `count` elements takes it."""
        flat = tensor.reshape(-1)
        size = flat.numel()
        if self.comm is None or size == count:
            return flat
        if size > count:  # of all ranks, and this process is one
            return flat[self.rank * count : (self.rank + 1) * count]
        return flat.repeat(count // size)  # one that all ranks share

    def obstacle(self, workload: Workload) -> str | None:
        """Why the workload's candidates can't talk here, in a sentence."""
        needed = dict.fromkeys(name for entry in workload.candidates for name in entry.capabilities)
        return objection(tuple(needed), workload.spec, self.comm)

    def write(self, workload: Workload, part: str, values: torch.Tensor) -> None:
        """Put `[ranks, ...]` into a part of the channel, on the current stream, as a producer does."""
        import torch

        assert self.comm is not None
        channel, begin = self.comm.channel(workload.spec), workload.channel[part]
        rows = values.reshape(self.comm.world_size, -1).view(torch.uint8)
        own = rows[self.rank : self.rank + self.comm.local_ranks]
        channel.memory[:, begin : begin + own.shape[1]].copy_(own)

    def begin(self, evidence: FamilyEvidence, workload: Workload, case: Case) -> None:
        """Make the channel look as after the call that the case's is to follow; collective where it is one."""
        import torch

        call = evidence.call_before(case) if isinstance(evidence, ChannelEvidence) and self.comm else None
        if call is None:
            return
        assert isinstance(evidence, ChannelEvidence)
        assert self.comm is not None
        self.comm.reset()
        words = self.comm.channel(workload.spec).memory.view(torch.int32)

        def write() -> None:
            evidence.after_call(workload, call, words)
            self._finish()

        self.comm.together("make its channel look as after a call", write).all()

    def settle(self) -> None:
        """Wait until no rank has work on its GPU; an error on one rank is one on all."""
        if self.comm is None:
            self._finish()
        else:
            self.comm.settle()

    def problem(self) -> str | None:
        """What went wrong on the channels since they were made or reset, in a sentence."""
        if self.comm is None:
            return None
        self._finish()
        try:
            self.comm.check()
        except ChannelError as error:
            return str(error)
        return None

    def _finish(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def rank_context_of(
    dispatch: Dispatch, evidence: FamilyEvidence, workload: Workload, device: torch.device, job: RankJob
) -> Iterator[RankContext]:
    """The ranks of a workload: the job's, if they are as many, else local ones; closed at the end of the block.

    Where an error leaves the block on one rank, the others needn't be at its end: then nothing collective is done.
    """
    ranks = int(str(workload.fields.get("world_size", 1)))
    if not workload.channel:
        yield RankContext(device)
        return
    others: Sequence[str] = ()
    if isinstance(evidence, ExecutableEvidence) and job.size == ranks:
        others = evidence.channels(dispatch.table.workloads, workload)
    comm = (
        dispatch.communicator(specs=[workload.spec, *others], device=device)
        if job.size == ranks
        else dispatch.local_communicator(ranks, device, specs=[workload.spec])
    )
    with comm:
        yield RankContext(device, comm)


def absence(workload: Workload, job: RankJob, *, together: bool) -> str | None:
    """Why a workload can't be run by this job (`together`: with a GPU a rank), in a sentence, or None."""
    ranks = int(str(workload.fields.get("world_size", 1)))
    if ranks in (1, job.size) or (job.size == 1 and not together):
        return None
    start = f"start it with `torchrun --nproc-per-node {ranks} -m kernwright ...` on {ranks} GPUs"
    has = "one process" if job.size == 1 else f"{job.size} processes"
    return f"{workload.label} of {workload.spec} has {ranks} ranks, and this job {has}; {start}"
