"""Deciding and loading together with the ranks of other processes.

A rank that takes another route than its peers gives them a wrong sum, so a candidate that one rank can't load is off
on all, and ranks that would choose differently are an error before anything is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..table import Workload
from . import policy as policies
from . import warm
from .communicator.agreement import same
from .device import Device
from .errors import LoadError, first_line
from .explanation import Explanation
from .policy import Policy
from .request import Operator, Request
from .selection import Choice, Selection

if TYPE_CHECKING:
    from .communicator.owner import ChannelOwner
    from .dispatch import Dispatch


@dataclass(frozen=True, slots=True)
class WarmCall:
    """A call that is decided and loaded before it comes."""

    operator: Operator
    request: Request
    device: Device

    def __str__(self) -> str:
        """Family, shape and kind."""
        return f"{self.request.family} {self.request.label} (kind {self.request.kind})"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank has decided on a call, for its peers."""

    call: str
    choice: str
    """Candidate, architecture and code, or `the reference`."""
    build: tuple[str, str] | None
    """Digest of the code, and architecture; None for the reference."""
    problem: str | None
    """Why it could not be loaded."""


def warm_calls(
    operator_of: Callable[[str], Operator],
    works: Sequence[Workload],
    sizes: Callable[[Workload], Iterable[int] | None],
    device: Device,
) -> list[WarmCall]:
    """The calls of workloads on a device; `sizes` gives values of a workload's interval, None: one in each cell."""
    return [
        WarmCall(operator, operator.request_for(fields, kind), device)
        for work in works
        for operator in (operator_of(work.family),)
        for fields in warm.calls(work, sizes(work), device)
        for kind in work.control.steps
    ]


def load_together(
    dispatch: Dispatch,
    calls: Callable[[], Sequence[WarmCall]],
    policy: Callable[[], Policy],
    comm: ChannelOwner,
    prepare: Callable[[Any], None] = lambda _: None,
) -> tuple[Explanation, ...]:
    """Decide and load calls on all ranks alike; collective.

    In rounds: every rank loads what it chooses and says how that went; what failed somewhere is off everywhere
    (`comm.unusable`), and all choose again.

    Args:
        calls: this rank's; evaluated where an error can't leave the peers alone.
        policy: as `calls`.
        prepare: is given what was loaded for each call.

    Raises:
        Disagreement: ranks have other calls, or choose differently.
        PeerFailed: another rank could not decide; that rank raises its own error.
    """
    warmed: list[WarmCall] = []  # once: what sizes and devices come from may be an iterator
    while True:
        decided: list[Selection] = []

        def step(decided: list[Selection] = decided) -> list[Loaded]:
            chosen, found = policy(), []
            if not warmed:
                warmed.extend(calls())
            for call in warmed:
                selection = dispatch.select(call.request, call.device, chosen, comm, exact=False)
                decided.append(selection)
                found.append(_loaded(call, selection.chosen, comm, prepare))
            return found

        ranks = comm.together("decide and load its calls", step).all()
        _compare(ranks)
        failed = _failed(ranks)
        if not failed:
            return tuple(map(Explanation.of, decided))
        for index in {selection.device.index for selection in decided}:
            comm.unusable |= {(code, arch, index): reason for (code, arch), reason in failed.items()}
        dispatch.forget()


def load_channels(dispatch: Dispatch, operator_of: Callable[[str], Operator], comm: ChannelOwner) -> None:
    """Load what the policy in force dispatches on the channels of a new communicator; collective.

    Raises:
        Disagreement, PeerFailed: as `load_together`; the communicator is closed then.
    """

    def calls() -> list[WarmCall]:
        works = [work for work in dispatch.table.workloads if comm.owns(work.spec)]
        works = [work for work in works if work.fields.get("world_size") == comm.world_size]
        return warm_calls(operator_of, works, lambda _: None, comm.target)

    if not comm.channels:
        return
    try:
        load_together(dispatch, calls, policies.current, comm)
    except Exception:
        comm.close()  # all ranks raise, so all are here
        raise


def _loaded(
    call: WarmCall, choice: Choice | None, comm: ChannelOwner, prepare: Callable[[Any], None]
) -> Loaded:
    if choice is None:
        return Loaded(str(call), "the reference", None, None)
    problem = None
    try:
        prepare(call.operator.load(choice, call.request, call.device, comm))
    except LoadError as error:
        problem = first_line(error)
    text = f"{choice.candidate.name} ({choice.arch}, code {choice.build.code[:12]})"
    return Loaded(str(call), text, (choice.build.code, choice.arch), problem)


def _compare(ranks: Sequence[Sequence[Loaded]]) -> None:
    remedy = "Warm up the same on all ranks"
    same("how many calls are warmed up", [str(len(calls)) for calls in ranks], remedy)
    for entries in zip(*ranks, strict=True):
        same("the calls that are warmed up", [entry.call for entry in entries], remedy)
        remedy_of_choice = "Give all ranks the same dispatch module, policy and machine code"
        same(f"what serves {entries[0].call}", [entry.choice for entry in entries], remedy_of_choice)


def _failed(ranks: Sequence[Sequence[Loaded]]) -> dict[tuple[str, str], str]:
    """Builds that some rank could not load, with the first such rank's reason."""
    found: dict[tuple[str, str], str] = {}
    for rank, calls in enumerate(ranks):
        for entry in calls:
            if entry.problem is not None and entry.build is not None:
                found.setdefault(
                    entry.build,
                    f"rank {rank} could not load it, so it is off on all ranks of this communicator: {entry.problem}",
                )
    return found
