"""From a workspace and the options of a command to what is to be measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..generator import Generation, plan_generation
from ..generator.build import builds
from ..runtime.dispatch import Dispatch
from ..runtime.errors import StaleSource
from ..runtime.loader import source_text
from ..specs import Family, Workspace, select
from ..table import Table, Workload
from .explain import load_dispatch

if TYPE_CHECKING:
    import torch


class Drifted(Exception):
    """The generated dispatch module isn't what the spec files ask for."""


class NoGpu(Exception):
    """A GPU is needed, and there is none here."""


class NotHere(Exception):
    """Nothing that was selected can be measured here."""


@dataclass(frozen=True)
class Session:
    """A workspace whose generated dispatch module is up to date."""

    generation: Generation
    dispatch: Dispatch

    @classmethod
    def open(cls, workspace: Workspace) -> Session:
        """Load specs and dispatch module, and compare them.

        Raises:
            Drifted: a source that the dispatch module names isn't what the spec files give, or not on disk.
            QuestionError: nothing was generated yet.
            SpecError, NotGenerated, ScheduleError: as the generator says.
        """
        generation = plan_generation(workspace)
        dispatch: Dispatch = load_dispatch(workspace).DISPATCH
        wanted = {(build.source.code, build.source.sha256) for build in builds(generation)}
        named = [
            build
            for workload in dispatch.table.workloads
            for candidate in workload.candidates
            for build in candidate.builds.values()
        ]
        found = {(build.code, build.sha256) for build in named}
        if wanted != found:
            raise Drifted(
                f"the dispatch module of {workspace.generated} isn't what the spec files ask for "
                f"({len(wanted - found)} sources are new, {len(found - wanted)} gone); run `kernwright generate`"
            )
        for build in (build for build in named if build.source):
            try:
                source_text(dispatch.table.root, build)
            except StaleSource as error:
                raise Drifted(str(error)) from error
        if _launches(generation) != _table_launches(dispatch.table):
            raise Drifted(
                f"the launches in {workspace.generated / 'dispatch.py'} aren't what the spec files ask for; run "
                f"`kernwright generate`"
            )
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

    def path_of(self, workload: Workload) -> Path:
        return next(spec.path for spec in self.generation.specs if spec.spec.name == workload.spec)

    def family(self, workload: Workload) -> Family:
        return next(entry.family for entry in self.generation.workloads if entry.spec == workload.spec)


def _launches(generation: Generation) -> dict[tuple[str, str, str], object]:
    """What the generator would launch, by spec, workload and candidate."""
    return {
        (entry.spec, entry.workload.label(), made.candidate.name): (
            {
                name: (made.symbols[name], launch.grid, launch.block, launch.args, launch.shared_bytes)
                for name, launch in made.lowering.kernels.items()
            },
            dict(made.lowering.steps),
            dict(made.lowering.scratch),
        )
        for entry in generation.workloads
        for made in entry.candidates
    }


def _table_launches(table: Table) -> dict[tuple[str, str, str], object]:
    """What a dispatch table launches, in the same form."""
    return {
        (work.spec, work.label, candidate.name): (
            {
                name: (kernel.symbol, kernel.grid, kernel.block, kernel.args, kernel.shared_bytes)
                for name, kernel in candidate.kernels.items()
            },
            dict(candidate.steps),
            dict(candidate.scratch),
        )
        for work in table.workloads
        for candidate in work.candidates
    }


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
