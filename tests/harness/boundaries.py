"""Boundaries of a dispatch module on the emulator, with the oracle's answer for what they store."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernwright.emulator import DeviceBuffer, Program, candidate_program
from kernwright.evidence.explain import load_dispatch
from kernwright.families.hyper_connection.inputs import tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.specs import find_workspace
from kernwright.table import Candidate, Workload


@dataclass(frozen=True)
class Boundaries:
    """A dispatch module, and the boundaries that its candidates compute."""

    dispatch: ModuleType

    @property
    def workloads(self) -> Mapping[str, Workload]:
        return {workload.label: workload for workload in self.dispatch.TABLE.workloads}

    def candidate(self, label: str, name: str) -> Candidate:
        return next(c for c in self.workloads[label].candidates if c.name == name)

    def shape(self, label: str) -> OracleShape:
        workload = self.workloads[label]
        f: Any = workload.fields
        sizes = (f["branches"], f["hidden"], f["low_rank"], 1)
        return OracleShape(f["dtype"], *sizes, f["norm_weight"], f["eps"], trees=workload.trees)

    def program(
        self, label: str, name: str, kind: str, inputs: str = "normal", seed: int = 3, arch: str | None = None
    ) -> tuple[Program, dict[DeviceBuffer, Any]]:
        """A candidate's launches on seeded inputs, and the oracle's answer for all that they store."""
        candidate = self.candidate(label, name)
        request = self.dispatch.hyper_connection.request_for(
            {**self.workloads[label].fields, "tokens": 1}, kind
        )
        given, answer = self.answer(label, kind, inputs, seed)
        program = candidate_program(
            self.dispatch.TABLE.root,
            candidate,
            arch or next(iter(candidate.builds)),
            kind,
            request.signature,
            given,
        )
        return program, program.expect(answer)

    @functools.cache  # noqa: B019  (one object a session)
    def answer(self, label: str, kind: Any, inputs: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        shape = self.shape(label)
        given = tensors(shape, inputs, seed) | weights(shape, seed, kind)
        return given, boundary(shape, given, kind)


@pytest.fixture(scope="session")
def library() -> Boundaries:
    """The shipped library."""
    from kernwright.generated import dispatch

    return Boundaries(dispatch)


@pytest.fixture(scope="session")
def odd(odd_root: Path) -> Boundaries:
    """Small workloads that take the templates' rarer branches."""
    return Boundaries(load_dispatch(find_workspace(odd_root)))
