"""How calls of `linear_all_reduce` are decided: by the table and its records, or by a forced schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...runtime import policy as policies
from ...runtime.arguments import dtype_name
from ...runtime.call_options import CallOptions
from ...runtime.declaration import Kind
from ...runtime.device import Device, current, serves
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.errors import NotExact
from ...runtime.op import Op
from ...runtime.selection import Choice, Selection
from ...runtime.statistics import Tally, refuse
from ...runtime.watch import note
from ...table import Contract, FieldValue, Workload
from ..all_reduce.distance import stated

if TYPE_CHECKING:
    import torch

    from ...runtime.request import Request
    from .overlap.group import GroupDecision
    from .overlap.rows import SliceSchedule

FAMILY = "linear_all_reduce"
KIND = "linear"

MAX_DECIDED = 4096
"""Calls of different shape that a layer group remembers."""


@dataclass(frozen=True)
class Terms(CallOptions):
    """What a layer group was asked for; groups of equal terms are one."""

    quantisation: str = "none"
    nonfinite: str = "nan"
    force: SliceSchedule | str | None = None
    """A schedule of torch's own, or a candidate by name, whatever the records say: for benchmarks and tests."""
    plain_elsewhere: bool = False
    """Rows that the forced candidate doesn't serve take the plain path: an installed layer is called with any."""


class Deciding(Op):
    """What the op knows of its dispatch table."""

    family = FAMILY
    kinds: ClassVar[Mapping[str, Kind]] = {
        # Without an operator of its own: `overlap.operator` has one for all dispatch modules.
        KIND: Kind(("x", "weight"), ("result",), without=frozenset({"channel_rows"}), operator=None)
    }
    options = Terms
    short_form: ClassVar[Mapping[str, str]] = {"w": "width", "k": "k", "m": "m", "tp": "world_size"}
    alignment = 1

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind."""
        super().__init__(dispatch)
        self._decisions: dict[object, GroupDecision] = {}
        self._remembered: list[dict[Any, Any]] = []
        """What layer groups and the plain path remember of decided calls."""

    def shapes(self, fields: Mapping[str, Any], kind: str) -> Mapping[str, tuple[int, ...]]:  # noqa: ARG002
        """Of one rank."""
        m, k, width = fields["m"], fields["k"], fields["width"]
        return {"x": (m, k), "weight": (width, k), "result": (m, width)}

    def promise(self, fields: Mapping[str, Any], kind: str) -> tuple[Contract, str]:  # noqa: ARG002
        """A library's GEMM adds in an order that isn't specified; so may what reduces its products."""
        distance = stated(str(fields["dtype"]), fields["world_size"])
        return "tolerance", f"torch's GEMM, then the plain all-reduce of its products: {distance}"

    def request(self, fields: Mapping[str, FieldValue], kind: str, problems: tuple[str, ...] = ()) -> Request:
        """As of every op; where nothing is quantised, any `nonfinite` serves."""
        if fields["quantisation"] == "none":
            fields = {name: value for name, value in fields.items() if name != "nonfinite"}
        return super().request(fields, kind, problems)

    def reference(self, fields: Mapping[str, Any], kind: str) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """Over ranks that are stacked: x [ranks, M, K], weight [ranks, N, K] to [M, N]."""
        from .reference import over_stacked_ranks

        return over_stacked_ranks

    def request_of(self, x: torch.Tensor, weight: torch.Tensor, terms: Terms) -> Request:
        """The request of a call of x [M, K] and the weight [N, K]."""
        fields: dict[str, FieldValue] = {
            "dtype": dtype_name(x),
            "width": weight.shape[0],
            "k": x.shape[1],
            "m": x.shape[0],
            "world_size": terms.comm.world_size,  # type: ignore[union-attr]
            "quantisation": terms.quantisation,
            "nonfinite": terms.nonfinite,
        }
        return self.request(fields, KIND)

    def _decider(self, terms: Terms) -> Callable[[torch.Tensor, torch.Tensor], GroupDecision]:
        decided: dict[object, tuple[GroupDecision, Tally]] = {}
        self._remembered.append(decided)

        def decide(x: torch.Tensor, weight: torch.Tensor) -> GroupDecision:
            policy = policies.current() if terms.policy is None else terms.policy
            key = (x.shape, weight.shape[0], x.dtype, x.device, policy)
            found = decided.get(key)
            if found is None:
                if len(decided) >= MAX_DECIDED:
                    decided.clear()
                request = self.request_of(x, weight, terms)
                found = decided[key] = self._decide(request, current(x.device), terms)
            found[1].calls += 1
            return found[0]

        return decide

    def _decide(self, request: Request, device: Device, terms: Terms) -> tuple[GroupDecision, Tally]:
        if terms.force is not None:
            return self._forced(request, device, terms), Tally()
        from .overlap.group import PLAIN

        note(f"{FAMILY} {request.label} was decided")
        chosen = chosen_policy(terms.policy)
        selection, decision = self._dispatch.settle(request, device, chosen, terms.comm, terms.exact)
        if selection.fallback is not None and policies.strict():
            raise refuse(selection)
        if terms.exact:
            raise NotExact(
                f"exact=True was asked for, and {FAMILY} {request.label} is a library's GEMM on every route, whose "
                "order of adding isn't specified; pass exact=False"
            )
        return decision or PLAIN, self._dispatch.statistics.tally(selection)

    def load(self, choice: Choice, request: Request, device: Device, comm: Any) -> GroupDecision:  # noqa: ARG002
        """What a layer group runs; LoadError as in every op."""
        return self._loaded(choice, device, comm)

    def forget(self) -> None:
        """Decide the next calls of all layer groups anew."""
        super().forget()
        for remembered in self._remembered:
            remembered.clear()

    def _loaded(self, choice: Choice, device: Device, comm: Any) -> GroupDecision:
        from .overlap.group import loaded

        channel = comm.channel(choice.workload.spec) if choice.candidate.capabilities else None
        key = (choice.workload.name, choice.candidate.name, choice.arch, device.index, channel)
        if key not in self._decisions:
            self._decisions[key] = loaded(self._dispatch.table.root, choice, device, comm, channel)
        return self._decisions[key]

    def _forced(self, request: Request, device: Device, terms: Terms) -> GroupDecision:
        from .overlap.group import PLAIN, GroupDecision

        if not isinstance(terms.force, str):
            assert terms.force is not None
            if terms.force.route not in ("serial", "sliced_nccl"):
                raise ValueError(
                    f"force is {terms.force}, and a schedule by itself has neither kernels nor a channel; force a "
                    "candidate by its name, or a schedule of route sliced_nccl"
                )
            return GroupDecision(terms.force)
        fields = dict(request.fields)
        m: Any = fields.pop("m")
        cells = [(rows_of(work), work) for work in self._workloads(fields)]
        named = self._named([work for _, work in cells], terms.force, device)
        for choice in named:
            low, high = rows_of(choice.workload)
            if low <= m <= high:
                return self._loaded(choice, device, terms.comm)
        if named and terms.plain_elsewhere:
            return PLAIN
        serving = [one.name for (low, high), work in cells if low <= m <= high for one in work.candidates]
        raise ValueError(
            f"no candidate {terms.force!r} serves {request.label} on {device}; the table has "
            f"{', '.join(serving) or 'none'}"
        )

    def _named(self, works: list[Workload], name: str, device: Device) -> list[Choice]:
        """The candidates of a name that are built for a device, by cells."""
        return [
            Choice(work, candidate, arch, candidate.builds[arch])
            for work in works
            for candidate in work.candidates
            if candidate.name == name and (arch := serves(candidate.builds, device.arch)) is not None
        ]

    def _workloads(self, fields: Mapping[str, FieldValue]) -> list[Workload]:
        """Those of the table that have these fields so."""
        return [
            work
            for work in self._dispatch.table.workloads
            if work.family == FAMILY and all(work.fields[name] == value for name, value in fields.items())
        ]

    def _layer_fields(self, weight: torch.Tensor, quantisation: str, comm: Any) -> dict[str, FieldValue]:
        """What a layer of a model says of a call."""
        width, k = weight.shape
        fields: dict[str, FieldValue] = {"width": width, "k": k, "world_size": comm.world_size}
        fields["quantisation"] = quantisation
        if quantisation == "none":
            fields["dtype"] = dtype_name(weight)
        return fields

    def _admitted(
        self, weight: torch.Tensor, quantisation: str, comm: Any, policy: str | None
    ) -> tuple[list[Choice], str]:
        """What serves each cell that doesn't take the plain path, and that in words; if there is none, why."""
        found: list[Choice] = []
        reason = "the dispatch table has no workload of its shape"
        device = current(weight.device)
        for work in self._workloads(self._layer_fields(weight, quantisation, comm)):
            request = self.request_for({**work.fields, "m": rows_of(work)[0]}, KIND)
            selection = self._dispatch.select(request, device, chosen_policy(policy), comm, False)
            chosen = selection.chosen
            if chosen is not None and chosen.candidate.route != "serial":
                found.append(chosen)
            else:
                reason = (
                    f"nothing is faster than the plain path here as far as records say: {_why(selection)}"
                )
        words = ", ".join(f"{cell}: {candidate}" for cell, candidate in map(in_words, found))
        return found, words or reason

    def plain_all_reduce(self, comm: Any) -> Callable[[torch.Tensor], None]:
        """The plain path's: our all-reduce where it has a kernel for the payload, else the group's, in place."""
        operator: Any = self._dispatch.operator("all_reduce")
        ours: dict[tuple[int, Any, str], bool] = {}
        self._remembered.append(ours)

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


def rows_of(workload: Workload) -> tuple[int, int]:
    """Both ends of a workload's cell of M."""
    m = workload.fields["m"]
    assert isinstance(m, tuple)
    return m


def in_words(choice: Choice) -> tuple[str, str]:
    """A cell, and what serves it."""
    return choice.workload.name, f"{choice.candidate.name} {choice.build.code[:12]}"


def fewest_rows(choice: Choice) -> int:
    """The fewest rows of its cell that don't take the plain path."""
    least: Any = choice.candidate.options.get("min_m", 1)
    return max(rows_of(choice.workload)[0], int(least))


def _why(selection: Selection) -> str:
    if selection.chosen is None:
        fallback = selection.fallback
        return fallback.reason if fallback else f"policy is {selection.policy}"
    reasons = [decision.reason for decision in selection.decisions if not decision.accepted]
    return reasons[-1] if reasons else "it has no other candidate"
