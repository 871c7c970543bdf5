"""From a workspace and the words of a command line to what is to be measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..generator import Generation, plan_generation
from ..generator.build import builds
from ..runtime.dispatch import Dispatch
from ..runtime.errors import StaleSource
from ..runtime.loader import source_text
from ..runtime.table import Workload
from ..specs import Family, Workspace, select
from .explain import load_dispatch

if TYPE_CHECKING:
    import torch


class Drifted(Exception):
    """The generated dispatch module isn't what the spec files ask for."""


class NoGpu(Exception):
    """Something must run on a GPU, and there is none here."""


@dataclass(frozen=True)
class Session:
    """A workspace whose generated dispatch module is up to date."""

    generation: Generation
    dispatch: Dispatch

    @classmethod
    def open(cls, workspace: Workspace) -> Session:
        """Load specs and dispatch module, and hold them against each other.

        Raises:
            Drifted: a source that the dispatch module names isn't what the spec files give, or not on disk.
            QuestionError: nothing was generated yet.
            SpecError, NotGenerated, ScheduleError: as the generator says.
        """
        generation = plan_generation(workspace)
        dispatch: Dispatch = load_dispatch(workspace).DISPATCH
        wanted = {build.source.sha256 for build in builds(generation)}
        named = [
            build
            for workload in dispatch.table.workloads
            for candidate in workload.candidates
            for build in candidate.builds.values()
        ]
        found = {build.sha256 for build in named}
        if wanted != found:
            raise Drifted(
                f"the dispatch module of {workspace.generated} isn't what the spec files ask for "
                f"({len(wanted - found)} sources are new, {len(found - wanted)} gone); run `kernwright generate`"
            )
        for build in named:
            try:
                source_text(dispatch.table.root, build)
            except StaleSource as error:
                raise Drifted(str(error)) from error
        return cls(generation, dispatch)

    def workloads(self, texts: Sequence[str]) -> list[Workload]:
        """The workloads that spec names and short forms select; all without any.

        Raises:
            ShortFormError: a text selects none, or several.
        """
        table = self.dispatch.table.workloads
        if not texts:
            return list(table)
        selections = [select(text, self.generation.specs) for text in texts]
        wanted = {
            (selection.spec.name, workload.label())
            for selection in selections
            for workload in selection.workloads
        }
        return [workload for workload in table if (workload.spec, workload.label) in wanted]

    def identities(self, workload: Workload) -> dict[tuple[str, str], str]:
        """Digest of canonical workload, candidate and target, by candidate and architecture."""
        return {
            (build.candidate.candidate.name, build.source.arch): build.source.identity
            for build in builds(self.generation)
            if (build.workload.spec, build.workload.workload.label()) == (workload.spec, workload.label)
        }

    def family(self, workload: Workload) -> Family:
        """The family of a workload."""
        return next(entry.family for entry in self.generation.workloads if entry.spec == workload.spec)


def gpu() -> torch.device:
    """torch's current CUDA device; under `torchrun` that of the local rank.

    Raises:
        NoGpu: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise NoGpu("no CUDA GPU here; verify with --on emulator, or run this on a machine with a GPU")
    index = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
    if index >= torch.cuda.device_count():
        raise NoGpu(
            f"LOCAL_RANK is {index}, but there are {torch.cuda.device_count()} GPUs here; start fewer ranks"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
