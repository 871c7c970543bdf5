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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...runtime import policy as policies
from ...runtime.arguments import check_device, checked_kind, dtype_name, refuse_grad
from ...runtime.call_options import CallOptions, options_schema
from ...runtime.communicator.owner import ChannelOwner
from ...runtime.communicator.single_channel import SingleChannel
from ...runtime.current import current_stream
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.explanation import Explanation
from ...runtime.op import MAX_RESOLVED, Op, runner
from ...runtime.plain import is_traced
from ...runtime.request import Request
from ...runtime.resolved import Resolved
from ...runtime.traced import graph_name
from ...table import ITEM_BYTES, Contract, FieldValue
from .distance import stated
from .inputs import Acquired, Inputs, split_like
from .request import FAMILY, KINDS, check_alike, check_comm, check_tensors

if TYPE_CHECKING:
    import torch

    from ...runtime.operators import TorchOperator


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
    short_form: ClassVar[Mapping[str, str]] = {"b": "payload_bytes", "tp": "world_size"}
    alignment = 1

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
            out: contiguous, of the same shape and dtype; `tensor` itself, or memory that none of it lies in.
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
        return self._called("staged", (tensor, None), (channel, exact, policy, comm), out)

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
        """The sum over the ranks of `a + b`, which a rank rounds to the storage dtype first; else as `all_reduce`.

        `out` may be `a` or `b`.
        """
        return self._called("sum2", (a, b), (channel, exact, policy, comm), out)

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
            shapes: of the tensors. The first begins at a multiple of 16 bytes, and so does one behind others that
                have a multiple of 16 bytes together; else it begins inside a word, where producers may be slower.
            dtype: of all of them.
            comm: the ranks.
            channel: the spec whose channel is used; by default the first open one that holds the payload.

        Raises:
            ValueError: no or empty tensors, an unknown channel, or more than the channel holds.
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
            flat = self._fallback(kind, comm, exact)(found.joint)
        else:
            values = (found.channel, exact, policy, comm)
            resolved = self._resolved_for(kind, found.numel, first, values, found.slot)
            if resolved.plan is None:
                flat = resolved(found.joint)
            else:
                flat = first.new_empty(ranks * found.numel)
                resolved(out=flat)
        return split_like(flat.view(ranks, -1), found.tensors, ranks)

    def _called(
        self, kind: str, arguments: tuple[Any, ...], values: tuple[Any, ...], out: torch.Tensor | None
    ) -> torch.Tensor:
        import torch

        first, comm = arguments[0], values[-1]
        if not (torch.compiler.is_compiling() or is_traced(first)):
            return self.call(arguments, kind, values, out)
        check_comm(comm)
        if out is not first or kind != "staged":
            return self.traced(arguments, kind, values, out)  # type: ignore[no-any-return]
        from ...runtime.operators import namespace_of

        options = {**dict(zip(self._defaults, values, strict=True)), "comm": graph_name(comm)}
        getattr(torch.ops, namespace_of(self._dispatch.traced.key)).all_reduce_.default(out, **options)
        return out  # type: ignore[no-any-return]

    def call(self, arguments: tuple[Any, ...], kind: str, values: tuple[Any, ...], out: Any) -> torch.Tensor:
        """The op itself, as operators of torch call it, and calls that aren't traced; see `__call__`."""
        given, comm = arguments[: len(self.kinds[kind].inputs)], values[-1]
        tensor, numel = given[0], given[0].numel()
        check_comm(comm)
        refuse_grad([("the tensor", part) for part in given], FAMILY)
        check_alike(given)
        check_tensors(given, comm, out)
        if numel == 0:
            check_device(tensor, comm, "the tensor")
            return tensor.clone() if out is None else out  # type: ignore[no-any-return]
        resolved = self._resolved_for(kind, numel // comm.local_ranks, tensor, values)
        if resolved.plan is None:
            return resolved(*given, out=out)  # type: ignore[no-any-return]
        # A tensor that isn't dense is copied, and the copy is what is reduced: never the caller's own.
        dense = [part if part.is_contiguous() else part.contiguous() for part in given]
        return resolved(*dense, out=tensor.new_empty(tensor.shape) if out is None else out)  # type: ignore[no-any-return]

    def torch_operators(self) -> tuple[TorchOperator, ...]:
        """The operators of the kinds, and `all_reduce_`, which reduces in place.

        Acquired tensors have none: they are memory of a channel that lives outside of any graph, and their sums are
        parts of one tensor.
        """
        from ...runtime.operators import TorchOperator

        def run(tensor: torch.Tensor, **options: Any) -> None:
            self.call((tensor, None), "staged", self.values(options), tensor)

        def fake(tensor: torch.Tensor, **options: Any) -> None:
            del options  # nothing is given back
            refuse_grad([("the tensor", tensor)], FAMILY)

        schema = f"(Tensor(a!) input, {options_schema(self.options)}) -> ()"
        return (*super().torch_operators(), TorchOperator("all_reduce_", schema, run, fake))

    def results_like(self, arguments: Sequence[Any], kind: str, options: Any) -> list[torch.Tensor]:  # noqa: ARG002
        """Sizes follow from the tensors alone."""
        given = [tensor for tensor in arguments if tensor is not None]
        refuse_grad([("the tensor", tensor) for tensor in given], FAMILY)
        check_alike(given)
        return [given[0].new_empty(given[0].shape)]

    def forget(self) -> None:
        """Decide the next calls of all communicators anew; acquired inputs stay."""
        super().forget()
        for reference in self._of.keyrefs():  # a list: other threads may be adding communicators
            comm = reference()
            if comm is not None:
                self._of[comm].resolved.clear()

    def _resolved_for(
        self, kind: str, numel: int, tensor: torch.Tensor, values: tuple[Any, ...], slot: int = 0
    ) -> Resolved:
        """What serves calls of one size, decided once for a communicator."""
        known = self._of_comm(values[-1]).resolved
        key = (kind, numel, tensor.dtype, tensor.device, slot, values[:-1], policies.current())
        found = known.get(key)
        if found is None:
            check_device(tensor, values[-1], "the tensor")
            options: AllReduceOptions = self._options(values)
            request = self._of_size(kind, numel, dtype_name(tensor), options, slot)
            chosen, device = chosen_policy(options.policy), options.comm.device_of(tensor)
            selection, plan = self._dispatch.resolve(request, device, chosen, options.view, options.exact)
            tally = self._dispatch.statistics.tally(selection)
            served = runner(self._fallback(kind, options.comm, options.exact))
            found = Resolved(request, None, None, served, tally, selection, plan, single=True)
            if len(known) >= MAX_RESOLVED:
                known.clear()
            known[key] = found
        return found

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
        check_device(tensor, comm, "the tensor")
        checked_kind(kind, self.kinds)
        options = AllReduceOptions(comm, exact, policy, channel)
        request = self._of_size(kind, tensor.numel() // comm.local_ranks, dtype_name(tensor), options)
        device, chosen = comm.device_of(tensor), chosen_policy(policy)
        return Explanation.of(self._dispatch.select(request, device, chosen, options.view, exact))

    def shapes(self, fields: Mapping[str, Any], kind: str) -> Mapping[str, tuple[int, ...]]:  # noqa: ARG002
        """Flat tensors of ranks that share a process, one after the other."""
        return dict.fromkeys(("inputs", "addends", "outputs"), (fields["world_size"] * elements(fields),))

    def promise(self, fields: Mapping[str, Any], kind: str) -> tuple[Contract, str]:  # noqa: ARG002
        """Of ranks that share a process."""
        return "exact", "torch, in rank order"

    def constants(self, fields: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Elements that a rank contributes, and the first of the channel's inputs."""
        return {"numel": (elements(fields) % 2**32).to_bytes(4, "little"), "input_slot": bytes(4)}

    def reference(self, fields: Mapping[str, Any], kind: str) -> Callable[..., torch.Tensor]:
        """Of ranks that share a process."""
        from .reference import fallback

        ranks = fields["world_size"]
        total = fallback(kind, ranks, None, exact=True)
        return lambda *parts: total(*[part.view(ranks, -1) for part in parts]).view(-1)

    def _of_size(
        self, kind: str, numel: int, dtype: str, options: AllReduceOptions, slot: int = 0
    ) -> Request:
        comm, size = options.comm, numel * ITEM_BYTES.get(dtype, 8)
        fields: dict[str, FieldValue] = {"dtype": dtype, "world_size": comm.world_size, "payload_bytes": size}
        request = self.request(fields, kind)
        request = replace(
            request,
            signature=self.signature({**fields, "world_size": comm.local_ranks}, kind),
            constants={**request.constants, "input_slot": slot.to_bytes(4, "little")},
        )
        if comm.local_ranks > 1:
            return request
        if options.exact:
            note = "all contributions gathered by torch.distributed and added in rank order"
            return replace(request, reference_note=note)
        distance = stated(dtype, comm.world_size)
        note = f"torch.distributed.all_reduce, whose order of adding isn't specified: {distance}"
        return replace(request, reference_contract="tolerance", reference_note=note)

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


def elements(fields: Mapping[str, Any]) -> int:
    """Elements that a rank contributes to a call.

    Raises:
        ValueError: `payload_bytes` aren't whole elements.
    """
    size, item = fields["payload_bytes"], ITEM_BYTES.get(fields["dtype"], 8)
    if size % item:
        raise ValueError(
            f"{size} bytes aren't whole elements of {fields['dtype']}; take another payload_bytes"
        )
    return int(size // item)


OP = AllReduce
