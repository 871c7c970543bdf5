"""Small workloads with candidates on tensor cores, generated, and their launches on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.workspaces import generated_workspace
from kernwright.emulator import EmulatedLaunch, candidate_program, compile_text
from kernwright.evidence.explain import load_dispatch
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.tensors import bits_of
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.runtime.dispatch import Dispatch
from kernwright.specs import Workspace, find_workspace
from kernwright.table import Candidate, Workload

HERE = Path(__file__).parent
BY_TOKEN = ("residual", "block", "injection")


@dataclass(frozen=True)
class Called:
    """One call's launches, inputs and what is right."""

    launches: tuple[EmulatedLaunch, ...]
    given: dict[str, torch.Tensor]
    truth: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Boundaries:
    """A dispatch module."""

    dispatch: Dispatch

    def workload(self, label: str) -> Workload:
        return next(work for work in self.dispatch.table.workloads if work.label == label)

    def candidate(self, label: str, name: str) -> Candidate:
        return next(c for c in self.workload(label).candidates if c.name == name)

    def call(
        self,
        label: str,
        name: str,
        case: Case,
        *,
        rows: slice = slice(None),
        edits: Sequence[tuple[str, str]] = (),
    ) -> Called:
        """Launches of a case, or of some of its tokens, by a text that may have been changed."""
        work, candidate = self.workload(label), self.candidate(label, name)
        given = dict(EVIDENCE.tensors(work, case, torch.device("cpu")))
        truth = dict(EVIDENCE.truth(work, case, given))
        given = {n: t[rows].contiguous() if n in BY_TOKEN else t for n, t in given.items()}
        request = self.dispatch.request(work, case.kind, given["residual"].shape[0])
        arch = next(iter(candidate.builds))
        program = candidate_program(
            self.dispatch.table.root,
            candidate,
            arch,
            case.kind,
            request.signature,
            bits_of(given),
            constants=request.constants,
        )
        launches = program.launches
        if edits:
            text = (self.dispatch.table.root / candidate.builds[arch].source).read_text(encoding="utf-8")
            for old, new in edits:
                assert old in text, old
                text = text.replace(old, new)
            kernel = compile_text(text, "changed.cu")
            launches = tuple(
                EmulatedLaunch(kernel, one.symbol, one.grid, one.block, one.args, one.shared_bytes)
                for one in launches
            )
        return Called(launches, given, {n: t[rows] for n, t in truth.items()})


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The small spec files, generated."""
    return find_workspace(generated_workspace(tmp_path_factory.mktemp("tolerance") / "small", HERE / "specs"))


@pytest.fixture(scope="session")
def small(workspace: Workspace) -> Boundaries:
    """Their dispatch module."""
    return Boundaries(load_dispatch(workspace).DISPATCH)


def stored(arrays: Any) -> dict[str, torch.Tensor]:
    """What a run left, as tensors of bits by name."""
    return {
        buffer.name: torch.from_numpy(array.view(f"i{array.itemsize}")) for buffer, array in arrays.items()
    }
