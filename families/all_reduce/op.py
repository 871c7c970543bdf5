"""The op `all_reduce` and its companions: the sum over ranks, by kernels or by torch.distributed.

    y = all_reduce(x, comm=comm)
    a, b = acquire_outputs([(M, 3584), (M, 7168)], torch.bfloat16, comm=comm)  # a producer writes to them
    a, b = all_reduce_symmetric((a, b), comm=comm)

The sum is in FP32, in rank order, rounded once: the same bits on every rank, by every route. Results are fresh
tensors, or the caller's.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...runtime import policy as policies
from ...runtime.arguments import dtype_name, refuse_grad
from ...runtime.call_options import CallOptions
from ...runtime.communicator.owner import ChannelOwner
from ...runtime.communicator.single_channel import SingleChannel
from ...runtime.current import current_stream
from ...runtime.device import serves
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.errors import LoadError
from ...runtime.explanation import Explanation
from ...runtime.op import MAX_RESOLVED, Op, runner
from ...runtime.plain import is_traced
from ...runtime.plan import Plan
from ...runtime.request import Request
from ...runtime.resolved import Resolved
from ...runtime.selection import Choice
from ...runtime.traced import graph_name
from ...table import Contract, FieldValue
from .inputs import Acquired, Inputs, split_like
from .request import FAMILY, KINDS, check_alike, check_comm, check_tensors, local_request, request_of

if TYPE_CHECKING:
    import torch

    from ...runtime.operators import TorchOperator
    from ...runtime.request import Runner


@dataclass(frozen=True)
class AllReduceOptions(CallOptions):
    """What a sum is told besides its tensors."""

    comm: ChannelOwner = field()
    """The ranks."""
    channel: str | None = None
    """The spec whose channel is used; None: the first that serves the size."""

    @property
    def view(self) -> Any:
        """The communicator, or what of it has the channel alone."""
        return self.comm if self.channel is None else SingleChannel(self.comm, self.channel)


@dataclass(slots=True)
class Known:
    """What the op remembers of a communicator."""

    generation: int
    resolved: dict[object, Resolved] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)


class AllReduce(Op):
    """`all_reduce`, bound to a dispatch table."""

    family = FAMILY
    kinds = KINDS
    options = AllReduceOptions

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind, and make the op known to `dispatch`."""
        super().__init__(dispatch)
        self._of: weakref.WeakKeyDictionary[ChannelOwner, Known] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        tensor: torch.Tensor,
        *,
        comm: ChannelOwner,
        out: torch.Tensor | None = None,
        channel: str | None = None,
        exact: bool = False,
        policy: str | None = None,
    ) -> torch.Tensor:
        """The sum of the ranks' tensors.

        Args:
            tensor: of any shape, the same on every rank; a dense one is read as it is, others are copied first.
                With a communicator of local ranks, the first dimension is the rank.
            comm: the ranks.
            out: contiguous, of the same shape and dtype; may be `tensor` itself.
            channel: the spec whose channel is used; by default the first that serves the size.
            exact: take the sum in rank order even where only torch.distributed serves.
            policy: which candidates may be dispatched.

        Returns:
            A fresh contiguous tensor, or `out`.

        Raises:
            ValueError, TypeError: arguments that aren't allowed.
            PeerTimeout, Overlap: an earlier call on the channel failed.
            Unsupported, NotWarm: as `Dispatch.resolve` says.
        """
        return self._call("staged", (tensor,), comm, out, channel, exact, policy)

    def sum2(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        comm: ChannelOwner,
        out: torch.Tensor | None = None,
        channel: str | None = None,
        exact: bool = False,
        policy: str | None = None,
    ) -> torch.Tensor:
        """The sum over the ranks of `a + b`, which a rank rounds to the storage dtype first; else as `all_reduce`."""
        check_alike((a, b))
        return self._call("sum2", (a, b), comm, out, channel, exact, policy)

    def acquire_outputs(
        self,
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype,
        *,
        comm: ChannelOwner,
        channel: str | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Consecutive tensors in this rank's part of a channel, for a producer to write to; one payload.

        Two payloads may be acquired at once, and lie apart. Where the ranks share no memory the tensors are
        ordinary ones. With a communicator of local ranks every tensor gets the rank as its first dimension.

        Args:
            shapes: of the tensors; all but the last must have a multiple of 16 bytes.
            dtype: of all of them.
            comm: the ranks.
            channel: the spec whose channel is used; by default the first open one that holds the payload.

        Raises:
            ValueError: no or empty tensors, a tensor that would be misaligned, an unknown channel, or more than
                the channel holds.
            RuntimeError: both inputs of the channel are waiting to be reduced.
        """
        check_comm(comm)
        size = sum(math.prod(shape) for shape in shapes) * dtype.itemsize
        capacities = {
            name: offsets["capacity"]
            for name in comm.channels
            if "inputs" in (offsets := comm.channel(name).plan.offsets)
        }
        if channel is not None and channel not in capacities and capacities:
            raise ValueError(
                f"channel is {channel!r}; open ones with inputs to acquire are {', '.join(capacities)}: name one"
            )
        holding = (name for name, capacity in capacities.items() if size <= capacity)
        chosen = channel or next(holding, max(capacities, key=lambda name: capacities[name], default=None))
        if chosen not in capacities:
            chosen = None  # the ranks share no memory
        elif comm.device.type == "cuda":
            # The producer writes on this stream what kernels of another may still be reading.
            comm.channel(chosen).follow(current_stream(comm.target.index or 0))
        return self._inputs_of(comm).acquire(shapes, dtype, comm, chosen)

    def release(self, tensors: Sequence[torch.Tensor], *, comm: ChannelOwner) -> None:
        """Give acquired tensors back without reducing them.

        Raises:
            ValueError: they weren't acquired so, or were reduced already.
        """
        self._inputs_of(comm).release(tensors)

    def symmetric(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        comm: ChannelOwner,
        exact: bool = False,
        policy: str | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The sums of acquired tensors, without a copy in front of the reduction.

        Args:
            tensors: as `acquire_outputs` gave them, all and in that order; afterwards, also after an error, they are
                free for the next producer, and must be acquired anew.
            comm, exact, policy: as in `all_reduce`.

        Returns:
            Fresh tensors of the same shapes, consecutive in memory.

        Raises:
            ValueError: other tensors, another order, or tensors that were reduced already.
            PeerTimeout, Overlap, Unsupported, NotWarm: as `all_reduce`.
        """
        check_comm(comm)
        inputs = self._inputs_of(comm)
        found = inputs.of(tensors)
        try:
            return tuple(self._reduce_acquired(found, comm, exact, policy))
        finally:
            # In an error too: ranks that don't fail at the same call would take different slots ever after.
            inputs.release(tensors)

    def _reduce_acquired(
        self, found: Acquired, comm: ChannelOwner, exact: bool, policy: str | None
    ) -> list[torch.Tensor]:
        first, ranks, kind = found.tensors[0], comm.local_ranks, "symmetric"
        if found.channel is None:
            sum_of = self._fallback(kind, comm, exact)
            return [sum_of(tensor) for tensor in found.tensors]
        options = AllReduceOptions(comm, exact, policy, found.channel)
        key = (kind, found.numel, first.dtype, found.slot, found.channel, exact, policy, policies.current())
        resolved = self._sum(key, kind, found.numel, first, options, found.slot)
        if resolved.plan is None:  # one call, which is counted once
            rest = [resolved.serve((tensor,), None)[0] for tensor in found.tensors[1:]]
            return [resolved(first), *rest]
        flat = first.new_empty(ranks * found.numel)
        resolved(out=flat)
        return split_like(flat.view(ranks, -1), found.tensors, ranks)

    def _call(
        self,
        kind: str,
        given: tuple[torch.Tensor, ...],
        comm: ChannelOwner,
        out: torch.Tensor | None,
        channel: str | None,
        exact: bool,
        policy: str | None,
    ) -> torch.Tensor:
        import torch

        if torch.compiler.is_compiling() or is_traced(given[0]):
            check_comm(comm)
            if out is given[0] and kind == "staged":
                from ...runtime.operators import namespace_of

                options = {"comm": graph_name(comm), "channel": channel, "exact": exact, "policy": policy}
                namespace = getattr(torch.ops, namespace_of(self._dispatch.traced.key))
                namespace.all_reduce_.default(out, **options)
                return out
            both = given if len(given) > 1 else (*given, None)
            return self.traced(both, kind, (channel, exact, policy, comm), out)  # type: ignore[no-any-return]
        return self.reduce(kind, given, comm, out, channel, exact, policy)

    def call(self, arguments: tuple[Any, ...], kind: str, values: tuple[Any, ...], out: Any) -> torch.Tensor:
        """The op itself, as operators of torch call it."""
        channel, exact, policy, comm = values
        given = arguments if arguments[1] is not None else arguments[:1]
        return self.reduce(kind, given, comm, out, channel, exact, policy)

    def torch_operators(self) -> tuple[TorchOperator, ...]:
        """The operators of the kinds, and `all_reduce_`, which reduces in place."""
        from .operators import in_place

        return (*super().torch_operators(), in_place(self))

    def results_like(self, arguments: Sequence[Any], kind: str, options: Any) -> list[torch.Tensor]:  # noqa: ARG002
        """Sizes follow from the tensors alone."""
        given = [tensor for tensor in arguments if tensor is not None]
        self.refuse_grad(given)
        check_alike(given)
        return [given[0].new_empty(given[0].shape)]

    def refuse_grad(self, given: Sequence[torch.Tensor]) -> None:
        """Check that no tensor of a call made with gradients enabled requires one.

        Raises:
            RuntimeError: one does.
        """
        import torch

        if torch.is_grad_enabled():
            refuse_grad([("the tensor", tensor) for tensor in given], FAMILY)

    def reduce(
        self,
        kind: str,
        given: tuple[torch.Tensor, ...],
        comm: ChannelOwner,
        out: torch.Tensor | None,
        channel: str | None = None,
        exact: bool = False,
        policy: str | None = None,
    ) -> torch.Tensor:
        """The op itself, for calls that aren't traced; see `__call__`."""
        tensor, numel = given[0], given[0].numel()
        check_comm(comm)
        self.refuse_grad(given)
        check_tensors(given, comm, out)
        if numel == 0:
            return tensor.clone() if out is None else out
        each = numel // comm.local_ranks
        key = (kind, each, tensor.dtype, tensor.device, channel, exact, policy, policies.current())
        resolved = self._of_comm(comm).resolved.get(key)
        if resolved is None:
            resolved = self._sum(key, kind, each, tensor, AllReduceOptions(comm, exact, policy, channel))
        if resolved.plan is None:
            return resolved(*given, out=out)  # type: ignore[no-any-return]
        # A tensor that isn't dense is copied, and the copy is what is reduced: never the caller's own.
        dense = [part if part.is_contiguous() else part.contiguous() for part in given]
        return resolved(*dense, out=tensor.new_empty(tensor.shape) if out is None else out)  # type: ignore[no-any-return]

    def _sum(
        self,
        key: object,
        kind: str,
        numel: int,
        tensor: torch.Tensor,
        options: AllReduceOptions,
        slot: int = 0,
    ) -> Resolved:
        """What serves calls of one size, decided once for a communicator."""
        comm = options.comm
        known = self._of_comm(comm).resolved
        found = known.get(key)
        if found is None:
            request = self._of_size(kind, numel, dtype_name(tensor), options, slot)
            chosen = chosen_policy(options.policy)
            device = comm.device_of(tensor)
            selection, plan = self._dispatch.resolve(request, device, chosen, options.view, options.exact)
            tally = self._dispatch.statistics.tally(selection)
            served = runner(self._fallback(kind, comm, options.exact))
            found = Resolved(request, None, None, served, tally, selection, plan, single=True)
            if len(known) >= MAX_RESOLVED:
                known.clear()
            known[key] = found
        return found

    def load_plan_of_route(
        self, route: str, numel: int, dtype: torch.dtype, *, comm: ChannelOwner, kind: str = "staged"
    ) -> Plan:
        """The plan of a route whatever the thresholds say, by its first candidate that fits on the device.

        Calling it takes what the kind takes (`staged`: the tensor; `sum2`: two; `symmetric`: nothing, the input
        lies in slot 0 of the channel) and the output, flat.

        Raises:
            ValueError: no candidate of an open channel has the route for this dtype, or the payload is too large.
            LoadError: none of them loads here, or the CTAs of none fit on the GPU at once.
        """
        name = str(dtype).removeprefix("torch.")
        request = self._of_size(kind, numel, name, AllReduceOptions(comm))
        device = comm.target
        size = int(str(request.fields["payload_bytes"]))
        unfit: LoadError | None = None
        for work in self._dispatch.table.workloads:
            fields = work.fields
            if work.family != FAMILY or not comm.owns(work.spec):
                continue
            if any(fields[name] != request.fields[name] for name in ("dtype", "world_size")):
                continue
            most = fields["packet_bytes"] if route == "tagged_words" else work.channel["capacity"]
            for candidate in work.candidates:
                arch = serves(candidate.builds, device.arch)
                if candidate.route == route and arch is not None and size <= int(str(most)):
                    choice = Choice(work, candidate, arch, candidate.builds[arch])
                    try:
                        return self._dispatch.load_plan(choice, request, device, comm)
                    except LoadError as error:  # its CTAs don't fit; those of a smaller grid may
                        unfit = unfit or error
        if unfit is not None:
            raise unfit
        raise ValueError(
            f"no open channel has a candidate of route {route} for {size} bytes of {request.fields['dtype']} on "
            f"{device}; open are {', '.join(comm.channels) or 'none'}"
        )

    def explain(
        self,
        tensor: torch.Tensor,
        *,
        comm: ChannelOwner,
        kind: str = "staged",
        channel: str | None = None,
        exact: bool = False,
        policy: str | None = None,
    ) -> Explanation:
        """Which candidate a call takes, and the reason for every candidate; communicates nothing."""
        check_comm(comm)
        options = AllReduceOptions(comm, exact, policy, channel)
        request = self._of_size(kind, tensor.numel() // comm.local_ranks, dtype_name(tensor), options)
        device, chosen = comm.device_of(tensor), chosen_policy(policy)
        return Explanation.of(self._dispatch.select(request, device, chosen, options.view, exact))

    def request_for(self, fields: Mapping[str, FieldValue], kind: str) -> Request:
        """The request of a call on local ranks whose payload has `payload_bytes`, one number.

        Raises:
            ValueError: an unknown kind or dtype, or payloads that aren't one number of whole elements.
        """
        return local_request(fields, kind)

    def reference_for(self, fields: Mapping[str, FieldValue], kind: str) -> Runner:
        """The torch reference on local ranks, by the signature of `request_for`.

        Raises:
            ValueError: as `request_for`.
        """
        from .reference import fallback

        local_request(fields, kind)
        ranks = int(str(fields["world_size"]))
        total = fallback(kind, ranks, None, exact=True)
        return runner(lambda *parts: total(*[part.view(ranks, -1) for part in parts]).view(-1))

    def _of_size(
        self, kind: str, numel: int, dtype: str, options: AllReduceOptions, slot: int = 0
    ) -> Request:
        comm = options.comm
        contract: Contract = "exact"
        if comm.local_ranks > 1:
            note = "torch, in rank order"
        elif options.exact:
            note = "all contributions gathered by torch.distributed and added in rank order"
        else:
            contract, note = (
                "tolerance",
                "torch.distributed.all_reduce, whose order of adding isn't specified",
            )
        return request_of(kind, numel, dtype, comm.world_size, comm.local_ranks, contract, note, slot)

    def _fallback(self, kind: str, comm: ChannelOwner, exact: bool) -> Callable[..., torch.Tensor]:
        from .reference import fallback

        # What is remembered of a communicator must not keep it alive, so not `comm` itself.
        return fallback(kind, comm.local_ranks, None if comm.local_ranks > 1 else comm.group, exact)

    def _inputs_of(self, comm: ChannelOwner) -> Inputs:
        check_comm(comm)
        return self._of_comm(comm).inputs

    def _of_comm(self, comm: ChannelOwner) -> Known:
        """What is remembered of a communicator, since its channels were made anew or closed."""
        known = self._of.get(comm)
        if known is None or known.generation != comm.generation:
            known = self._of[comm] = Known(comm.generation)
        return known


OP = AllReduce
