"""What a family's schedule module answers: the kernels of a candidate and how to launch them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..specs import CandidateSpec, WorkloadSpec
from ..table import DISAGREEMENT, OVERLAP, CtaRecord, FamilyEntry, Launch


class NotGenerated(Exception):
    """The spec is valid, but this toolkit has no templates for what it asks for (exit status 3)."""


class ScheduleError(Exception):
    """The schedule can't be built as asked, whatever the templates (exit status 2)."""


@dataclass(frozen=True)
class Lowering:
    """A candidate turned into template, numbers and launches."""

    template: str
    constants: Mapping[str, Any]
    """Numbers for the template, all computed here: templates do no arithmetic."""
    kernels: Mapping[str, Launch]
    steps: Mapping[str, tuple[str, ...]]
    """Kernels to launch, in order, for each kind of the op."""
    scratch: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Buffers of one call."""
    scratch_by: str = ""
    """The argument whose value is the first dimension of all of `scratch` in a call; empty: it is always the same."""
    state: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Buffers that the kernels keep between calls, all zeros before the first."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a family's op needs of the schedule, as plain values, if it does more than launch kernels."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments that aren't one tensor: `uint32`, `uint64`, or `pointers[4]`, a struct of so many."""
    capabilities: tuple[str, ...] = ()
    channel: Mapping[str, int] = field(default_factory=dict)
    """Layout of the memory in which ranks talk; the same for all candidates of a workload."""


class LoweringModule(Protocol):
    """A family's module `lowering`.

    What the dispatch table states of the family beside its kernels comes from here too. Each of these may be missing:

    - `UNIT: str`: what the workload's interval counts, in the plural, as messages say it: `bytes`.
    - `multiple(workload) -> int`: what every value of the interval is a multiple of; by default 1.
    - `parts(spec, workload) -> tuple[Part, ...]`: how the spec's thresholds split the interval.
    - `ROUTES: tuple[str, ...]`: the routes that thresholds choose between, in the order in which they serve growing
      values of the interval.
    - `WAITS: Mapping[int, str]`: what a rank may wait for, by the number that kernels put into the channel's error
      record: `a packet`. `table.OVERLAP` and `table.DISAGREEMENT` are taken.
    - `CTA_RECORD: CtaRecord`: what CTAs that waited for each other in vain leave in the state `record`.
    - `FUNCTIONS: Mapping[str, str]`: more functions of the dispatch module, by the op's methods.

    The kinds of the op are those of the candidates' `steps`, in that order; the first is the default.
    """

    def lower(self, workload: WorkloadSpec, candidate: CandidateSpec) -> Lowering:
        """Kernels and launches, the same on every architecture that the candidate lists.

        Raises:
            NotGenerated, ScheduleError: where there is nothing to launch.
        """


def family_entry(name: str, module: object, lowerings: Iterable[Lowering]) -> FamilyEntry:
    """What the table states of a family.

    Args:
        name: the family's.
        module: its module `lowering`.
        lowerings: of all candidates of all its workloads.

    Raises:
        ScheduleError: a wait has the number of an overlap.
    """
    waits: Mapping[int, str] = getattr(module, "WAITS", {})
    taken = {OVERLAP: "two calls met on the channel", DISAGREEMENT: "a peer has made another call"}
    for number in taken.keys() & waits.keys():
        raise ScheduleError(
            f'family {name} calls wait {number} "{waits[number]}", but in an error record this number says that '
            f"{taken[number]}; take another number"
        )
    return FamilyEntry(
        name,
        kinds=tuple(dict.fromkeys(kind for lowering in lowerings for kind in lowering.steps)),
        unit=getattr(module, "UNIT", ""),
        routes=getattr(module, "ROUTES", ()),
        waits=waits,
        cta_record=getattr(module, "CTA_RECORD", CtaRecord()),
    )
