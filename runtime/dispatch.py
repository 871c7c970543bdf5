"""A bound dispatch table: selection, plans, explanations, statistics and warm-up of one dispatch module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..table import FORMAT, FieldValue, Table, Workload, low_end
from . import graph_launch, loader, ranges, traced, warm
from . import policy as policies
from .communicator import Communicator, objection
from .device import Device, fake
from .eligibility import LoadKey, unknown_compiler
from .errors import FormatMismatch, LoadError, NotExact
from .explanation import Explanation
from .fingerprint import fingerprint
from .loader import bundles, load
from .plan import Plan
from .policy import Policy
from .rank_loading import WarmCall, load_channels, load_together, warm_calls
from .request import Operator, Request, Signature
from .selection import Choice, Selection, select
from .statistics import Statistics, Stats, refuse
from .watch import note

if TYPE_CHECKING:
    import torch

    from .communicator.group import GroupCommunicator
    from .communicator.local import LocalCommunicator
    from .communicator.owner import ChannelOwner

T = TypeVar("T")


def bind(table: Table) -> Dispatch:
    """Make a table callable.

    Raises:
        FormatMismatch: the table was generated for another version of this runtime.
        InvalidSetting: an environment variable of the runtime has a value that isn't allowed.
    """
    if table.format != FORMAT:
        raise FormatMismatch(
            f"the dispatch module has format version {table.format}; this runtime reads version {FORMAT}: "
            "run `kernwright generate` with the installed version, or install the version that generated it"
        )
    # A setting with a mistake in it stops the program here, instead of changing who serves a later call.
    policies.default()
    policies.strict()
    ranges.enabled()
    graph_launch.enabled()
    bundles()
    return Dispatch(table)


class Dispatch:
    """What a generated dispatch module offers besides its ops."""

    def __init__(self, table: Table) -> None:
        """Hold the table; nothing is loaded or compiled before it is needed."""
        self.table = table
        self.statistics = Statistics()
        self.operators: dict[str, Operator] = {}
        self._unusable: dict[LoadKey, str] = {}
        self.traced = traced.Namespace(self)

    def register(self, operator: Operator) -> None:
        """Register an op, so that `explain`, `plan_named` and `warm_up` find it by name."""
        self.operators[operator.family] = operator

    def operator(self, family: str) -> Operator | None:
        """The op of a family, where the dispatch module has it."""
        return self.operators.get(family)

    def forget(self) -> None:
        """Let all ops decide their next calls anew."""
        for operator in self.operators.values():
            operator.forget()

    def policy(self, name: str) -> AbstractContextManager[None]:
        """Dispatch under policy `name` inside a `with` block; see the module `runtime.policy`."""
        return policies.under(name)

    def torch_ops(self, namespace: str | None = None) -> Any:
        """The ops as operators of torch, `torch.ops.<namespace>`; loads torch, and registers them once.

        Args:
            namespace: a name for them, where the default (`kernwright` for the library, `kernwright_<folder>` for a
                workspace) is taken; only before the first use.

        Raises:
            ValueError: the namespace is taken by another table, isn't a name, or was chosen already.
        """
        return self.traced.torch_ops(namespace)

    def publish(self, comm: Communicator, name: str | None = None) -> str:
        """Give a communicator a name for use in graphs; see `traced.Namespace.publish`."""
        return self.traced.publish(comm, name)

    def fingerprint(self) -> str:
        """64 hexadecimal digits that change with anything that decides what a call runs; see `fingerprint`."""
        installed = {
            family: operator.state()
            for family, operator in self.operators.items()
            if hasattr(operator, "state")
        }
        return fingerprint(self.table, policies.current(), policies.strict(), installed, loader.compilers())

    def stats(self) -> Stats:
        """Counts of dispatches and fallbacks since the module was loaded."""
        return self.statistics.snapshot()

    def select(
        self, request: Request, device: Device, policy: Policy, comm: Communicator | None, exact: bool
    ) -> Selection:
        """Decide on a request, knowing which builds don't load: here, or on some rank of the communicator."""
        shared = getattr(comm, "shared", False)
        unusable = cast("ChannelOwner", comm).unusable if shared else self._unusable
        compiler_of = unknown_compiler if device.index is None else loader.compiler_of
        return select(self.table, request, device, policy, comm, exact, unusable, compiler_of)

    def resolve(
        self, request: Request, device: Device, policy: Policy, comm: Communicator | None, exact: bool
    ) -> tuple[Selection, Plan | None]:
        """Decide on a call and load what was chosen; None means that the torch reference serves it.

        Raises:
            Unsupported: no kernel serves it, and `KERNWRIGHT_STRICT=1`.
            NotExact: `exact` was asked for, and only a tolerance is on offer.
            NotWarm: a kernel would have to be loaded inside a graph capture.
            LoadError: what was chosen with the ranks of other processes doesn't load on this one.
        """
        note(f"{request.family} {request.label} (kind {request.kind}) was decided")
        selection, plan = self.settle(request, device, policy, comm, exact)
        if selection.fallback is not None and policies.strict():
            raise refuse(selection)
        if exact and plan is None and selection.contract != "exact":
            raise NotExact(
                f"exact=True was asked for, and {request.family} {request.label} (kind {request.kind}) is "
                f"served by {request.reference_note}, under contract {selection.contract}; "
                "pass exact=False to allow that, or ask explain() why no kernel serves it"
            )
        return selection, plan

    def settle(
        self, request: Request, device: Device, policy: Policy, comm: Communicator | None, exact: bool
    ) -> tuple[Selection, Any]:
        """Decide, and let the op load; a build that doesn't load is remembered with its reason, and it decides again.

        Raises:
            LoadError: with ranks in other processes, which would not decide again.
            NotWarm: as `resolve`.
        """
        while True:
            selection = self.select(request, device, policy, comm, exact)
            chosen = selection.chosen
            if chosen is None:
                return selection, None
            try:
                return selection, self._operator(request.family).load(chosen, request, device, comm)
            except LoadError as error:
                if getattr(comm, "shared", False):
                    raise LoadError(
                        f"rank {cast('ChannelOwner', comm).rank} could not load {chosen.candidate.name} of "
                        f"{chosen.workload.name}, which its peers may be running now: {error}; let all ranks call "
                        "warm_up(comm=comm), which decides together, then comm.reset()"
                    ) from error
                self._unusable[chosen.build.code, chosen.arch, device.index] = str(error)

    def load_plan(self, chosen: Choice, request: Request, device: Device, comm: Communicator | None) -> Plan:
        """Load a choice for a request, however it was made; LoadError and NotWarm as in `plan_named`."""
        candidate, root = chosen.candidate, self.table.root
        if not candidate.capabilities:  # it exchanges nothing
            module = load(root, chosen.build, chosen.arch, device)
            constants, ranks, channel = request.constants, 1, None
        else:
            owner = cast("ChannelOwner", comm)
            module = owner.load(root, chosen.build, chosen.arch, device)
            channel = owner.channel(chosen.workload.spec)
            constants = {**request.constants, **channel.constants(owner.timeout_ns)}
            ranks = owner.local_ranks
        record = self.table.family(request.family).cta_record
        kind, signature = request.kind, request.signature
        return Plan(
            candidate, chosen.arch, kind, signature, device, module, constants, ranks, channel, record
        )

    def communicator(
        self,
        group: torch.distributed.ProcessGroup | None = None,
        *,
        specs: Iterable[str] | None = None,
        backend: str | None = None,
        device: torch.device | None = None,
        timeout_s: float = 30.0,
    ) -> GroupCommunicator:
        """The communicator of a process group, with what the policy in force dispatches on it loaded; collective.

        A candidate that one rank can't load is off on all, and `explain` says so. Arguments and errors:
        `GroupCommunicator`; and `Disagreement` where ranks would choose differently.
        """
        from .communicator.group import GroupCommunicator

        comm = GroupCommunicator(
            self.table, group, specs=specs, backend=backend, device=device, timeout_s=timeout_s
        )
        load_channels(self, self._operator, comm)
        self.publish(comm)
        return comm

    def local_communicator(
        self,
        world_size: int,
        device: torch.device | str,
        *,
        specs: Iterable[str] | None = None,
        timeout_s: float = 30.0,
    ) -> LocalCommunicator:
        """The communicator of ranks that share this process and a GPU: tensors have the rank as first dimension."""
        import torch

        from .communicator.local import LocalCommunicator

        comm = LocalCommunicator(
            self.table, world_size, torch.device(device), specs=specs, timeout_s=timeout_s
        )
        self.publish(comm)
        return comm

    def explain(self, op: str, *args: Any, **kwargs: Any) -> Explanation:
        """Say which candidate a call `op(*args, **kwargs)` takes, and the reason for every candidate.

        Raises:
            ValueError, TypeError: there is no such op, or the call isn't valid.
        """
        return self._operator(op).explain(*args, **kwargs)

    def explain_request(
        self,
        family: str,
        fields: dict[str, FieldValue],
        device: Device | str | None,
        *,
        kind: str | None = None,
        policy: str | None = None,
        comm: Communicator | None = None,
        exact: bool = False,
    ) -> Explanation:
        """As `explain`, for a shape without tensors, on a device that may be imagined (`"sm_70"`).

        `fields` are those of a workload, each with one value; `kind` is by default the first that the table states.

        Raises:
            ValueError: an unknown family, kind, policy or architecture, or a field that isn't one value.
        """
        where = device if isinstance(device, Device) else fake(device)
        operator, kinds = self._operator(family), self.table.family(family).kinds
        if kind is None and not kinds:
            raise ValueError(
                f"the table states no kinds of {family}; name the kind, or generate the table again"
            )
        request = operator.request_for(fields, kinds[0] if kind is None else kind)
        return Explanation.of(self.select(request, where, chosen_policy(policy), comm, exact))

    def plan_named(
        self,
        workload: str,
        candidate: str,
        arch: str,
        kind: str,
        device: Device,
        *,
        comm: Communicator | None = None,
        at: int | None = None,
    ) -> Plan:
        """The plan of a named candidate, whatever the policy and the records say: for verification.

        Args:
            workload: a label, or a spec's name where the table holds one workload of it.
            candidate: the candidate's name.
            arch: the build; one of another architecture than the device's is loaded as PTX.
            kind: kind of the op.
            device: a CUDA device that is here.
            comm: the ranks, for a candidate that talks to peers; it must own the channel.
            at: value of the workload's interval; by default its low end.

        Raises:
            ValueError: there is no such workload, candidate, build or kind, or no communicator where one is needed.
            LoadError: the build doesn't load.
            NotWarm: inside a graph capture.
        """
        work = self._workload(workload)
        named = {entry.name: entry for entry in work.candidates}
        found = _member(named, candidate, "candidate", work.label)
        build = _member(found.builds, arch, "architecture", found.name)
        _member(found.steps, kind, "kind", found.name)
        reason = objection(found.capabilities, work.spec, comm)
        if reason is not None:
            raise ValueError(f"candidate {candidate} of {work.label} could not be loaded: {reason}")
        request = self._operator(work.family).request_for(_fields_at(work, at), kind)
        owner = cast("ChannelOwner | None", comm)
        alone = owner is not None and owner.local_ranks == 1
        ranks = int(str(work.fields.get("world_size", 1))) if alone else 1
        request = replace(request, signature=request.signature.of_one_rank(found.arguments, ranks))
        return self.load_plan(Choice(work, found, arch, build), request, device, comm)

    def request(self, workload: Workload, kind: str, at: int | None = None) -> Request:
        """The request of a workload's shape at `at`, by default its low end; ValueError for a wrong kind or value."""
        return self._operator(workload.family).request_for(_fields_at(workload, at), kind)

    def signature(self, workload: Workload, kind: str, at: int | None = None) -> Signature:
        """The tensors of a kind of a workload's op; arguments and errors as `request`."""
        return self.request(workload, kind, at).signature

    def reference(
        self, workload: Workload, kind: str, given: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The torch reference's answer for a workload's shape and a kind's inputs, by name; errors as `request`."""
        signature = self.signature(workload, kind)
        run = self._operator(workload.family).reference_for(_fields_at(workload, None), kind)
        results = run([given[buffer.name] for buffer in signature.inputs], None)
        return {buffer.name: result for buffer, result in zip(signature.outputs, results, strict=True)}

    def warm_up(
        self,
        devices: Iterable[Device] | None = None,
        workloads: Iterable[str] | None = None,
        *,
        policy: str | None = None,
        comm: Communicator | None = None,
        **sizes: Iterable[int] | None,
    ) -> tuple[Explanation, ...]:
        """Compile and load what would be dispatched, so that serving and graph capture never wait for it.

        With a communicator of a process group it is collective: a candidate that one rank can't load is off on all.

        Args:
            devices: by default the communicator's, or torch's current CUDA device; nothing is loaded where there
                is none.
            workloads: labels or spec names; by default all of the table.
            policy: as in a call.
            comm: the communicator that calls will be given.
            sizes: values of the interval that is called so, such as an engine's capture sizes; each workload that has
                the interval takes those that it serves. By default every workload's smallest.

        Returns:
            What each kind of each workload takes on each device.

        Raises:
            ValueError: a device isn't here, or there is no such workload, policy or interval.
            Disagreement: ranks of a process group warm up different calls, or would choose differently.
            PeerFailed: another rank of the group has raised one of these errors, or another one.
        """

        def calls() -> list[WarmCall]:
            works = warm.named(self.table, workloads)
            asked = warm.sizes_by_interval(self.table, sizes)
            where = warm.current_devices(comm) if devices is None else warm.checked_here(devices)
            return [
                call
                for device in where
                for call in warm_calls(
                    self._operator, works, lambda work: asked.get(work.interval or ""), device
                )
            ]

        if getattr(comm, "shared", False):
            owner = cast("ChannelOwner", comm)
            return load_together(self, calls, lambda: chosen_policy(policy), owner, _prepare)
        chosen, explanations = chosen_policy(policy), []
        for call in calls():
            selection, loaded = self.settle(call.request, call.device, chosen, comm, exact=False)
            _prepare(loaded)
            explanations.append(Explanation.of(selection))
        return tuple(explanations)

    def _operator(self, family: str) -> Operator:
        return _member(self.operators, family, "op", "this dispatch module")

    def _workload(self, name: str) -> Workload:
        found = [work for work in self.table.workloads if name in (work.name, work.label, work.spec)]
        if len(found) == 1:
            return found[0]
        labels = ", ".join(work.label for work in (found or self.table.workloads))
        problem = "several workloads are" if found else "no workload is"
        raise ValueError(f"{problem} called {name!r}; name one of {labels}")


def _prepare(loaded: Any) -> None:
    """Let a plan make what it keeps for the current stream."""
    if isinstance(loaded, Plan):
        loaded.prepare()


def chosen_policy(name: str | None) -> Policy:
    """The policy of a call: its argument, else the one in force; ValueError where there is no such policy."""
    return policies.current() if name is None else policies.checked(name)


def _fields_at(work: Workload, at: int | None) -> dict[str, FieldValue]:
    """The fields of one call, whose interval has the value `at`."""
    return {
        name: at if at is not None and name == work.interval else low_end(value)
        for name, value in work.fields.items()
    }


def _member(members: Mapping[str, T], name: str, what: str, where: str) -> T:
    if name not in members:
        raise ValueError(f"{where} has no {what} {name!r}; it has {', '.join(members) or 'none'}")
    return members[name]
