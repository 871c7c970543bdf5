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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...runtime import policy as policies
from ...runtime.communicator.owner import ChannelOwner
from ...runtime.communicator.single_channel import SingleChannel
from ...runtime.current import current_stream
from ...runtime.device import serves
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.errors import LoadError
from ...runtime.explanation import Explanation
from ...runtime.plain import is_traced
from ...runtime.plan import Plan
from ...runtime.request import Request
from ...runtime.selection import Choice
from ...runtime.statistics import Tally
from ...table import Contract, FieldValue
from .inputs import Acquired, Inputs, split_like
from .request import FAMILY, check_comm, check_tensors, dtype_of, local_request, request_of

if TYPE_CHECKING:
    import torch

    from ...runtime.operators import TorchOperator
    from ...runtime.request import Runner

MAX_RESOLVED = 4096
"""Calls of different size that are remembered."""


@dataclass(frozen=True, slots=True)
class ResolvedSum:
    """What serves calls of one size."""

    tally: Tally
    plan: Plan | None


@dataclass(slots=True)
class Known:
    """What the op remembers of a communicator."""

    generation: int
    resolved: dict[object, ResolvedSum] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)


class Op:
    """`all_reduce`, bound to a dispatch table."""

    family = FAMILY

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind, and register the op with `dispatch`."""
        self._dispatch = dispatch
        self._known: weakref.WeakKeyDictionary[ChannelOwner, Known] = weakref.WeakKeyDictionary()
        dispatch.register(self)

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
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            raise ValueError(
                f"a is {a.dtype} of shape {tuple(a.shape)} on {a.device}, b {b.dtype} of shape {tuple(b.shape)} on "
                f"{b.device}; both must be alike"
            )
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
            from . import reference as reference

            return [self._fallback(kind, (t,), comm, exact, reference) for t in found.tensors]
        key = (kind, found.numel, first.dtype, found.slot, found.channel, exact, policy, policies.current())
        resolved = self._resolve(
            key, kind, found.numel, first, comm, found.channel, exact, policy, found.slot
        )
        flat = first.new_empty(ranks * found.numel)
        if resolved.plan is None:
            from . import reference as reference

            return [self._fallback(kind, (t,), comm, exact, reference) for t in found.tensors]
        self._launch(resolved, (), flat)
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
            from .operators import traced

            check_comm(comm)
            return traced(self._dispatch.traced.key, kind, given, comm, out, channel, exact, policy)
        return self.reduce(kind, given, comm, out, channel, exact, policy)

    def communicator(self, name: str) -> Any:
        """The communicator that has `name` in graphs.

        Raises:
            ValueError: it isn't known here.
        """
        return self._dispatch.traced.communicator(name)

    def torch_operators(self) -> tuple[TorchOperator, ...]:
        """The `torch.library` operators of `all_reduce` and `all_reduce_sum2`."""
        from .operators import operators

        return operators(self)

    def refuse_grad(self, given: Sequence[torch.Tensor]) -> None:
        """Check that no tensor of a call made with gradients enabled requires one.

        Raises:
            RuntimeError: one does.
        """
        import torch

        if torch.is_grad_enabled() and any(part.requires_grad for part in given):
            raise RuntimeError(
                "the tensor requires grad, and all_reduce has no gradient; call it under torch.no_grad() or "
                "torch.inference_mode()"
            )

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
        resolved = self._resolve(key, kind, each, tensor, comm, channel, exact, policy)
        if resolved.plan is None:
            from . import reference as reference

            result = self._fallback(kind, given, comm, exact, reference)
            return result if out is None else out.copy_(result)
        # A tensor that isn't dense is copied, and the copy is what is reduced: never the caller's own.
        dense = [part if part.is_contiguous() else part.contiguous() for part in given]
        result = tensor.new_empty(tensor.shape) if out is None else out
        self._launch(resolved, dense, result)
        return result

    def _launch(self, resolved: ResolvedSum, given: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        plan = resolved.plan
        assert plan is not None
        resolved.tally.calls += 1
        plan(given, (out,))

    def _fallback(
        self, kind: str, given: Sequence[torch.Tensor], comm: ChannelOwner, exact: bool, reference: Any
    ) -> torch.Tensor:
        mine = reference.local_sum(*given) if kind == "sum2" else given[0]
        if comm.local_ranks > 1:
            result: torch.Tensor = reference.stacked(mine)
        else:
            result = reference.over_group(mine, comm.group, exact)
        return result

    def _resolve(
        self,
        key: object,
        kind: str,
        numel: int,
        tensor: torch.Tensor,
        comm: ChannelOwner,
        channel: str | None,
        exact: bool,
        policy: str | None,
        slot: int = 0,
    ) -> ResolvedSum:
        known = self._known_of(comm).resolved
        found = known.get(key)
        if found is None:
            view: Any = comm if channel is None else SingleChannel(comm, channel)
            request = self._request(kind, numel, dtype_of(tensor), comm, exact, slot)
            chosen = chosen_policy(policy)
            selection, plan = self._dispatch.resolve(request, comm.device_of(tensor), chosen, view, exact)
            found = ResolvedSum(self._dispatch.statistics.tally(selection), plan)
            if len(known) >= MAX_RESOLVED:
                known.clear()
            known[key] = found
        if found.plan is None:
            found.tally.calls += 1
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
        request = self._request(kind, numel, str(dtype).removeprefix("torch."), comm, False)
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
        view: Any = comm if channel is None else SingleChannel(comm, channel)
        numel = tensor.numel() // comm.local_ranks
        request = self._request(kind, numel, dtype_of(tensor), comm, exact)
        device = comm.device_of(tensor)
        return Explanation.of(self._dispatch.select(request, device, chosen_policy(policy), view, exact))

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
        from . import reference as reference

        local_request(fields, kind)
        ranks = int(str(fields["world_size"]))

        def run(
            inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None
        ) -> Sequence[torch.Tensor]:
            parts = [part.view(ranks, -1) for part in inputs]
            mine = reference.local_sum(*parts) if kind == "sum2" else parts[0]
            result = reference.stacked(mine).view(-1)
            return [result] if outputs is None else [outputs[0].copy_(result)]

        return run

    def _request(
        self, kind: str, numel: int, dtype: str, comm: ChannelOwner, exact: bool, slot: int = 0
    ) -> Request:
        contract: Contract
        if comm.local_ranks > 1:
            contract, note = "exact", "torch, in rank order"
        elif exact:
            contract, note = (
                "exact",
                "all contributions gathered by torch.distributed and added in rank order",
            )
        else:
            contract, note = (
                "tolerance",
                "torch.distributed.all_reduce, whose order of adding isn't specified",
            )
        return request_of(kind, numel, dtype, comm.world_size, comm.local_ranks, contract, note, slot)

    def _inputs_of(self, comm: ChannelOwner) -> Inputs:
        check_comm(comm)
        return self._known_of(comm).inputs

    def _known_of(self, comm: ChannelOwner) -> Known:
        """What is remembered of a communicator, since its channels were made anew or closed."""
        known = self._known.get(comm)
        if known is None or known.generation != comm.generation:
            known = self._known[comm] = Known(comm.generation)
        return known
