"""How calls of `linear_all_reduce` are decided: by the table and its records, or by a forced schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...runtime import policy as policies
from ...runtime.device import Device, current, serves
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.errors import LoadError, NotExact
from ...runtime.policy import Policy
from ...runtime.selection import Choice, Selection
from ...runtime.statistics import Tally, refuse
from ...runtime.watch import note
from ...table import Candidate, FieldValue, Workload
from .shape import FAMILY, LinearShape

if TYPE_CHECKING:
    import torch

    from ...runtime.request import Request
    from .overlap.group import GroupDecision
    from .overlap.kernels import Kernels
    from .overlap.rows import SliceSchedule

MAX_DECIDED = 4096
"""Calls of different shape that a layer group remembers."""


@dataclass(frozen=True)
class Terms:
    """What a layer group was asked for; groups of equal terms are one."""

    comm: Any
    quantisation: str = "none"
    nonfinite: str = "nan"
    exact: bool = False
    policy: str | None = None
    force: SliceSchedule | str | None = None
    """A schedule of torch's own, or a candidate by name, whatever the records say: for benchmarks and tests."""


class Deciding:
    """The decisions of the op by its dispatch table."""

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind."""
        self._dispatch = dispatch
        self._kernels: dict[object, Kernels] = {}

    def _decider(self, terms: Terms) -> Callable[[torch.Tensor, torch.Tensor], GroupDecision]:
        decided: dict[object, tuple[GroupDecision, Tally]] = {}

        def decide(x: torch.Tensor, weight: torch.Tensor) -> GroupDecision:
            policy = policies.current() if terms.policy is None else terms.policy
            key = (x.shape, weight.shape[0], x.dtype, x.device, policy)
            found = decided.get(key)
            if found is None:
                if len(decided) >= MAX_DECIDED:
                    decided.clear()
                shape = shape_of(x, weight, terms.comm, terms.quantisation, terms.nonfinite)
                found = decided[key] = self._decide(shape, current(x.device), terms)
            found[1].calls += 1
            return found[0]

        return decide

    def _decide(self, shape: LinearShape, device: Device, terms: Terms) -> tuple[GroupDecision, Tally]:
        if terms.force is not None:
            return self._forced(shape, device, terms), Tally()
        note(f"{FAMILY} {shape.label} was decided")
        chosen = chosen_policy(terms.policy)
        selection, decision = self._settle(shape.request(), device, chosen, terms.comm, terms.exact)
        if selection.fallback is not None and policies.strict():
            raise refuse(selection)
        if terms.exact:
            raise NotExact(
                f"exact=True was asked for, and {FAMILY} {shape.label} is a library's GEMM on every route, whose "
                "order of adding isn't specified; pass exact=False"
            )
        return decision, self._dispatch.statistics.tally(selection)

    def _settle(
        self, request: Request, device: Device, policy: Policy, comm: Any, exact: bool = False
    ) -> tuple[Selection, GroupDecision]:
        """Decide and load; if a build doesn't load, note the reason and decide again without it."""
        while True:
            selection = self._dispatch.select(request, device, policy, comm, exact)
            try:
                return selection, self._loaded(selection.chosen, device, comm)
            except LoadError as error:
                self._dispatch.set_aside(selection, str(error))

    def warm_up(self, request: Request, device: Device, policy: Policy, comm: Any) -> Selection:
        """Load what would be dispatched, as `Dispatch.warm_up` asks for it."""
        return self._settle(request, device, policy, comm)[0]

    def _loaded(self, choice: Choice | None, device: Device, comm: Any) -> GroupDecision:
        from .overlap.group import PLAIN, GroupDecision
        from .overlap.rows import SliceSchedule

        if choice is None:
            return PLAIN
        candidate = choice.candidate
        schedule = SliceSchedule.of(candidate.route, candidate.options)
        channel = comm.channel(choice.workload.spec) if candidate.capabilities else None
        if not candidate.kernels:
            return GroupDecision(schedule)
        from .overlap.kernels import Kernels

        key = (choice.build.code, choice.arch, device.index, channel)
        if key not in self._kernels:
            module = comm.load(self._dispatch.table.root, choice.build, choice.arch, device)
            constants = {} if channel is None else channel.constants(comm.timeout_ns)
            assert device.index is not None
            self._kernels[key] = Kernels(module, candidate, constants, device.index)
        return GroupDecision(schedule, self._kernels[key], channel)

    def _forced(self, shape: LinearShape, device: Device, terms: Terms) -> GroupDecision:
        from .overlap.group import GroupDecision

        if not isinstance(terms.force, str):
            assert terms.force is not None
            return GroupDecision(terms.force)
        for work, candidate in self._of_shape(shape):
            arch = serves(candidate.builds, device.arch)
            if candidate.name == terms.force and arch is not None:
                return self._loaded(Choice(work, candidate, arch, candidate.builds[arch]), device, terms.comm)
        names = ", ".join(candidate.name for _, candidate in self._of_shape(shape))
        raise ValueError(
            f"no candidate {terms.force!r} serves {shape.label} on {device}; the table has {names or 'none'}"
        )

    def _of_shape(self, shape: LinearShape) -> list[tuple[Workload, Candidate]]:
        fields = shape.fields
        m = fields.pop("m")
        assert isinstance(m, int)
        return [
            (work, candidate)
            for work in self._dispatch.table.workloads
            if work.family == FAMILY
            and all(work.fields[name] == value for name, value in fields.items())
            and _holds(work.fields["m"], m)
            for candidate in work.candidates
        ]

    def _admitted(
        self, weight: torch.Tensor, quantisation: str, comm: Any, policy: str | None
    ) -> tuple[dict[str, str], str]:
        """What serves each cell that doesn't take the plain path; if there is none, why."""
        found: dict[str, str] = {}
        reason = "the dispatch table has no workload of its shape"
        width, k = weight.shape
        for work in self._dispatch.table.workloads:
            fields = work.fields
            alike = (fields.get("width"), fields.get("k"), fields.get("world_size")) == (
                width,
                k,
                comm.world_size,
            )
            if work.family != FAMILY or not alike or fields["quantisation"] != quantisation:
                continue
            low = fields["m"][0] if isinstance(fields["m"], tuple) else fields["m"]
            request = LinearShape.of({**fields, "m": low}).request()
            if quantisation == "none" and fields["dtype"] != _dtype(weight):
                continue
            selection = self._dispatch.select(
                request, current(weight.device), chosen_policy(policy), comm, False
            )
            chosen = selection.chosen
            if chosen is not None and chosen.candidate.route != "serial":
                found[work.name] = f"{chosen.candidate.name} {chosen.build.code[:12]}"
            else:
                reason = (
                    f"nothing is faster than the plain path here as far as records say: {_why(selection)}"
                )
        return found, reason

    def _plain_all_reduce(self, comm: Any) -> Callable[[torch.Tensor], None]:
        """The plain path's: our all-reduce where it has a kernel for the payload, else the group's, in place."""
        operator: Any = self._dispatch.operator("all_reduce")
        ours: dict[tuple[int, Any, str], bool] = {}

        def all_reduce(tensor: torch.Tensor) -> None:
            import torch

            if comm.world_size == 1:
                return
            key = (tensor.numel(), tensor.dtype, policies.current())
            if operator is not None and key not in ours:
                ours[key] = operator.explain(tensor, comm=comm).chosen != "reference"
            if operator is not None and ours[key]:
                operator(tensor, comm=comm, out=tensor)
            else:
                torch.distributed.all_reduce(tensor, group=comm.group)

        return all_reduce


def _holds(interval: FieldValue, m: int) -> bool:
    return interval[0] <= m <= interval[1] if isinstance(interval, tuple) else interval == m


def _why(selection: Selection) -> str:
    if selection.chosen is None:
        fallback = selection.fallback
        return fallback.reason if fallback else f"policy is {selection.policy}"
    reasons = [decision.reason for decision in selection.decisions if not decision.accepted]
    return reasons[-1] if reasons else "it has no other candidate"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def shape_of(
    x: torch.Tensor, weight: torch.Tensor, comm: Any, quantisation: str, nonfinite: str
) -> LinearShape:
    m, k = x.shape
    return LinearShape(_dtype(x), weight.shape[0], k, m, comm.world_size, quantisation, nonfinite)
