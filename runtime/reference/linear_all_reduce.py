"""The op `linear_all_reduce`: a row-parallel linear with its all-reduce, on any device.

    y = linear_all_reduce(x, weight, comm=comm)            # [..., K], [N, K] -> [..., N], summed over the ranks
    installation = linear_all_reduce.install(model, comm)  # every row-parallel layer that it speeds up here

What isn't admitted by a record for this shape, these rows and this device takes the plain path: the plain linear,
then the plain all-reduce. The bias is added once, by rank 0, in its GEMM: a pass over the result would cost more,
and engines do it there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import policy as policies
from ..device import Device, current
from ..dispatch import Dispatch, chosen_policy
from ..errors import LoadError, NotExact
from ..explanation import Explanation
from ..policy import Policy
from ..selection import Choice, Selection
from ..statistics import Tally, refuse
from ..table import Candidate, FieldValue, Workload
from .linear_all_reduce_shape import FAMILY, KIND, Shape

if TYPE_CHECKING:
    import torch

    from ..linear.group import Decision, LayerGroup
    from ..linear.install import Installation
    from ..linear.rows import Schedule
    from ..request import Request, Runner

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
    force: Schedule | str | None = None
    """A schedule of torch's own, or a candidate by name, whatever the records say: for benchmarks and tests."""


@dataclass
class Installed:
    """What `state` tells of an installation."""

    world_size: int
    layers: tuple[str, ...]
    forced: str | None
    decisions: dict[str, str] = field(default_factory=dict)


class Op:
    """`linear_all_reduce`, bound to a dispatch table."""

    family = FAMILY

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind, and make the op known to `dispatch`."""
        self._dispatch = dispatch
        self._groups: dict[Terms, tuple[str, LayerGroup]] = {}
        self._installed: list[tuple[Installation, Installed]] = []
        dispatch.register(self)

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        comm: Any,
        weight_scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        nonfinite: str = "nan",
        exact: bool = False,
        policy: str | None = None,
        force: Schedule | str | None = None,
    ) -> torch.Tensor:
        """The sum over all ranks of `x @ weight.T`, for inference.

        Args:
            x: [..., K], this rank's columns of the activations; float16, bfloat16 or float32, in any layout.
            weight: [N, K], this rank's columns of the weight, of x's dtype; or float8_e4m3fn, then x is quantised
                to FP8 with a scale for each row.
            comm: a communicator, one rank a process.
            weight_scale: float32, of one element or N, with an FP8 weight.
            bias: [N], the same on every rank; added once.
            nonfinite: what a quantised row with Inf or NaN becomes: `nan`, or `clean`: such elements count as zero.
            exact: raise, because every route is under a tolerance.
            policy: which candidates may be dispatched; by default the policy in force.
            force: a candidate by name, whatever the records say.

        Returns:
            [..., N], a fresh tensor of x's dtype; the same on every rank.

        Raises:
            ValueError, TypeError: the arguments contradict each other or aren't allowed.
            RuntimeError: an input requires grad.
            NotExact, Unsupported, NotWarm: as `Dispatch.resolve` says.
            PeerTimeout: an earlier call waited in vain for a peer.
        """
        from ..linear.operator import linear_all_reduce

        quantisation = "none" if weight_scale is None else "fp8_per_token"
        name, _ = self.group(Terms(comm, quantisation, nonfinite, exact, policy, force))
        result: torch.Tensor = linear_all_reduce(x, weight, weight_scale, bias, name)
        return result

    def group(self, terms: Terms) -> tuple[str, LayerGroup]:
        """The layer group of these terms, and the name by which graphs know it; made on the first call."""
        found = self._groups.get(terms)
        if found is None:
            from ..linear.group import LayerGroup
            from ..linear.operator import register

            _check_terms(terms)
            group = LayerGroup(
                terms.comm,
                self._decider(terms),
                self._plain_all_reduce(terms.comm),
                terms.quantisation,
                terms.nonfinite,  # type: ignore[arg-type]
            )
            found = self._groups[terms] = (register(group), group)
        return found

    def install(
        self,
        model: torch.nn.Module,
        comm: Any,
        *,
        policy: str | None = None,
        force: Schedule | str | None = None,
    ) -> Installation:
        """Route the model's row-parallel layers through the op where some schedule is admitted for them.

        Layers are known by their attributes (`runtime.linear.install`). Call it on every rank, before the model is
        compiled or captured.

        Returns:
            Which layers were routed and which weren't, with reasons; it can `uninstall`.
        """
        from ..linear.install import install

        installed = Installed(comm.world_size, (), None if force is None else str(force))

        def serves(weight: torch.Tensor, quantisation: str) -> str | None:
            if force is not None:
                return None
            found, reason = self._admitted(weight, quantisation, comm, policy)
            installed.decisions.update(found)
            return None if found else reason

        def group_for(quantisation: str) -> str:
            return self.group(Terms(comm, quantisation, policy=policy, force=force))[0]

        def describe(weight: torch.Tensor, quantisation: str) -> str:
            if force is not None:
                return f"forced: {force}"
            found, _ = self._admitted(weight, quantisation, comm, policy)
            return ", ".join(f"{cell}: {candidate}" for cell, candidate in found.items())

        done = install(model, comm.world_size, serves, group_for, describe)
        installed.layers = done.routed
        self._installed.append((done, installed))
        return done

    def state(self) -> dict[str, Any]:
        """What is installed, as JSON-able data for the key of a compile cache: traced graphs differ by it."""
        return {
            "installed": [
                {
                    "world_size": what.world_size,
                    "layers": list(what.layers),
                    "forced": what.forced,
                    "decisions": dict(what.decisions),
                }
                for done, what in self._installed
                if done.groups
            ]
        }

    def explain(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        comm: Any,
        weight_scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        nonfinite: str = "nan",
        exact: bool = False,
        policy: str | None = None,
    ) -> Explanation:
        """Which candidate such a call takes, and the reason for every candidate; computes nothing."""
        from ..linear.group import check

        quantisation = "none" if weight_scale is None else "fp8_per_token"
        check(x, weight, weight_scale, bias, quantisation)
        rows = x.reshape(-1, x.shape[-1])
        request = _shape(rows, weight, comm, quantisation, nonfinite).request()
        chosen = chosen_policy(policy)
        return Explanation.of(self._dispatch.select(request, current(x.device), chosen, comm, exact))

    def request_for(self, fields: Mapping[str, FieldValue], kind: str) -> Request:
        """The request of a call of a workload's shape; `m` must be one number.

        Raises:
            ValueError: an unknown kind, or an interval where a number is needed.
        """
        if kind != KIND:
            raise ValueError(f"kind is {kind!r}; this family has {KIND} alone")
        return Shape.of(fields).request()

    def reference_for(self, fields: Mapping[str, FieldValue], kind: str) -> Runner:
        """The torch reference over ranks that are stacked: x [ranks, M, K], weight [ranks, N, K] to [M, N].

        Raises:
            ValueError: as `request_for`.
        """
        self.request_for(fields, kind)

        def run(
            inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None
        ) -> Sequence[torch.Tensor]:
            x, weight = inputs
            partials = (x @ weight.transpose(1, 2)).float()
            result = partials[0]
            for partial in partials[1:]:
                result = result + partial
            rounded = result.to(x.dtype)
            return [rounded] if outputs is None else [outputs[0].copy_(rounded)]

        return run

    # ---- deciding ----

    def _decider(self, terms: Terms) -> Callable[[torch.Tensor, torch.Tensor], Decision]:
        decided: dict[object, tuple[Decision, Tally]] = {}

        def decide(x: torch.Tensor, weight: torch.Tensor) -> Decision:
            policy = policies.current() if terms.policy is None else terms.policy
            key = (x.shape, weight.shape[0], x.dtype, x.device, policy)
            found = decided.get(key)
            if found is None:
                if len(decided) >= MAX_DECIDED:
                    decided.clear()
                shape = _shape(x, weight, terms.comm, terms.quantisation, terms.nonfinite)
                found = decided[key] = self._decide(shape, current(x.device), terms)
            found[1].calls += 1
            return found[0]

        return decide

    def _decide(self, shape: Shape, device: Device, terms: Terms) -> tuple[Decision, Tally]:
        if terms.force is not None:
            return self._forced(shape, device, terms), Tally()
        chosen = chosen_policy(terms.policy)
        selection, decision = self._settle(shape.request(), device, chosen, terms.comm, terms.exact)
        if selection.fallback is not None and policies.strict():
            raise refuse(selection)
        if terms.exact:
            raise NotExact(
                f"exact=True was asked for, and {FAMILY} {shape.label} is a library's GEMM on every route, whose "
                "order of adding nobody states; pass exact=False"
            )
        return decision, self._dispatch.statistics.tally(selection)

    def _settle(
        self, request: Request, device: Device, policy: Policy, comm: Any, exact: bool = False
    ) -> tuple[Selection, Decision]:
        """Decide and load; a build that doesn't load is set aside with its reason, and it decides again."""
        while True:
            selection = self._dispatch.select(request, device, policy, comm, exact)
            try:
                return selection, self._loaded(selection.chosen, device, comm)
            except LoadError as error:
                self._dispatch.set_aside(selection, str(error))

    def warm_up(self, request: Request, device: Device, policy: Policy, comm: Any) -> Selection:
        """Load what would be dispatched, as `Dispatch.warm_up` asks for it."""
        return self._settle(request, device, policy, comm)[0]

    def _loaded(self, choice: Choice | None, device: Device, comm: Any) -> Decision:
        from ..linear.group import PLAIN, Decision
        from ..linear.rows import Schedule

        if choice is None:
            return PLAIN
        candidate = choice.candidate
        schedule = Schedule.of(candidate.route, candidate.options)
        channel = comm.channel(choice.workload.spec) if candidate.capabilities else None
        if not candidate.kernels:
            return Decision(schedule)
        from ..linear.kernels import Kernels

        module = comm.load(self._dispatch.table.root, choice.build, choice.arch, device)
        constants = {} if channel is None else channel.constants(comm.timeout_ns)
        assert device.index is not None
        return Decision(schedule, Kernels(module, candidate, constants, device.index), channel)

    def _forced(self, shape: Shape, device: Device, terms: Terms) -> Decision:
        from ..device import serves
        from ..linear.group import Decision

        if not isinstance(terms.force, str):
            assert terms.force is not None
            return Decision(terms.force)
        for work, candidate in self._of_shape(shape):
            arch = serves(candidate.builds, device.arch)
            if candidate.name == terms.force and arch is not None:
                return self._loaded(Choice(work, candidate, arch, candidate.builds[arch]), device, terms.comm)
        names = ", ".join(candidate.name for _, candidate in self._of_shape(shape))
        raise ValueError(
            f"no candidate {terms.force!r} serves {shape.label} on {device}; the table has {names or 'none'}"
        )

    def _of_shape(self, shape: Shape) -> list[tuple[Workload, Candidate]]:
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
        """By cell, what serves it where that isn't the plain path; and why there is nothing, if so."""
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
            request = Shape.of({**fields, "m": low}).request()
            if quantisation == "none" and fields["dtype"] != _dtype(weight):
                continue
            selection = self._dispatch.select(
                request, current(weight.device), chosen_policy(policy), comm, False
            )
            chosen = selection.chosen
            if chosen is not None and chosen.candidate.route != "serial":
                found[work.name] = f"{chosen.candidate.name} {chosen.build.sha256[:12]}"
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


def _shape(x: torch.Tensor, weight: torch.Tensor, comm: Any, quantisation: str, nonfinite: str) -> Shape:
    m, k = x.shape
    return Shape(_dtype(x), weight.shape[0], k, m, comm.world_size, quantisation, nonfinite)


def _check_terms(terms: Terms) -> None:
    if getattr(terms.comm, "local_ranks", None) != 1:
        raise TypeError(
            f"comm is {type(terms.comm).__name__}; it must be what communicator() of the dispatch module gave: one "
            "rank a process"
        )
    if terms.nonfinite not in ("nan", "clean"):
        raise ValueError(f"nonfinite is {terms.nonfinite!r}; allowed are nan and clean")
    if terms.policy is not None:
        policies.checked(terms.policy)
