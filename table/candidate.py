"""A candidate: a named schedule for a workload, as kernels and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .kernel import Build, Kernel

Contract = Literal["exact", "tolerance"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A named schedule for a workload, with its builds by architecture."""

    name: str
    route: str
    contract: Contract
    builds: Mapping[str, Build]
    kernels: Mapping[str, Kernel]
    steps: Mapping[str, tuple[str, ...]]
    """Kernels to launch, in order, for each kind of the op."""
    scratch: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of the buffers that only this candidate's kernels see, and only during a call."""
    scratch_by: str = ""
    """The argument whose value is the first dimension of all scratch that a call uses; `scratch` has room for the
    largest. Empty: calls use all of it."""
    state: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of the buffers that kernels keep between calls; all zeros before the first one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the family's op needs of the schedule besides its kernels, as plain values."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments that aren't one tensor, by name: `uint32`, `uint64`, or `pointers[4]`, a struct of so many."""
    tolerance: Mapping[str, float] = field(default_factory=dict)
    """Bounds of a candidate whose contract is `tolerance`: `atol`, `rtol`, `relative_l2`."""
    min_sms: int = 0
    capabilities: tuple[str, ...] = ()
    """What the communicator that owns the channel must be able to do (owner rule)."""
