"""The op `hyper_connection`: one call for kernels and reference, on any device.

    (x, block_input, injection_out) = hyper_connection(
        residual, block, injection, norm_weight, down_weight, up_weight, kind="boundary", eps=1e-6)

Shapes, kinds and arithmetic: docs/hyper_connection.md. The number of tokens is
read here, inside the op, on every call: a caller that fixed it at prefill would never decode fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ...runtime import policy as policies
from ...runtime.communicator import Communicator
from ...runtime.device import current
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.errors import Misaligned
from ...runtime.explanation import Explanation
from ...runtime.plain import is_traced
from ...runtime.request import Request
from ...runtime.resolved import Resolved
from ...runtime.statistics import Tally
from ...table import FieldValue, Table
from .arguments import (
    ARGUMENTS,
    RESULTS,
    check_overlap,
    checked_kind,
    checked_out,
    layout_problems,
    positions,
    read,
    refuse_grad,
)
from .known import KnownCall, facts_of
from .shape import FAMILY, INPUTS, OUTPUTS, BoundaryShape, ChosenTrees, trees_for

if TYPE_CHECKING:
    import torch

    from ...runtime.operators import TorchOperator
    from ...runtime.request import Runner
    from .chain import HyperConnectionChain, Weights

    Maybe = torch.Tensor | None
    Result = tuple[Maybe, Maybe, Maybe]

MAX_RESOLVED = 4096
"""Calls of different shape that are remembered; a prefill of ever new lengths must not grow without bound."""


class Op:
    """`hyper_connection`, bound to a dispatch table."""

    family = FAMILY

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind, and register the op with `dispatch`."""
        self._dispatch = dispatch
        self._resolved: dict[tuple[object, ...], Resolved] = {}
        self._known: dict[tuple[object, ...], KnownCall] = {}
        dispatch.register(self)

    def __call__(
        self,
        residual: torch.Tensor,
        block: Maybe,
        injection: Maybe,
        norm_weight: Maybe,
        down_weight: Maybe,
        up_weight: Maybe,
        *,
        kind: str = "boundary",
        eps: float = 1e-6,
        branches: int | None = None,
        comm: Communicator | None = None,
        exact: bool = False,
        policy: str | None = None,
        out: Sequence[Maybe] | None = None,
    ) -> Result:
        """One hyper-connection boundary, or a part of it, for inference.

        Args:
            residual: `[N, HC * H]`, the state; float16, bfloat16 or float32, as all tensors.
            block: `[N, H]`, output of the attention or MLP block; None for kind `first`.
            injection: `[N, HC]`, logits of the previous boundary; None for kind `first`.
            norm_weight: HC * H elements, or H that all branches share; None for kind `combine`.
            down_weight: `[R + HC, HC * H]` with rows padded to a multiple of 16; `[R, HC * H]` for kind
                `final`; None for kind `combine`.
            up_weight: `[HC * H, R]`; None for kind `combine`.
            kind: `boundary`, `first` (no pending combine), `combine` (gives only x) or `final` (gives only
                block_input).
            eps: added to the mean square, rounded to FP32.
            branches: HC, where the tensors don't determine it and the table doesn't either.
            comm: the communicator of a tensor-parallel call.
            exact: raise where only a tolerance is on offer.
            policy: which candidates may be dispatched; by default the policy in force.
            out: a tuple (x, block_input, injection_out) to write into, None for what the kind doesn't have.

        Returns:
            `(x, block_input, injection_out)` of shapes `[N, HC * H]`, `[N, H]`, `[N, HC]`; fresh tensors
            unless `out` is given; None for what the kind doesn't have.

        Raises:
            ValueError, TypeError: the arguments contradict each other or aren't allowed.
            RuntimeError: an input requires grad.
            NotExact, Unsupported, NotWarm: as `Dispatch.resolve` says.
        """
        import torch

        arguments = (residual, block, injection, norm_weight, down_weight, up_weight)
        if torch.compiler.is_compiling():
            from .operators import traced

            return traced(self._dispatch.traced.key, arguments, kind, eps, branches, comm, exact, policy, out)
        return self.call(arguments, kind, eps, branches, comm, exact, policy, out)

    def call(
        self,
        arguments: tuple[Maybe, ...],
        kind: str,
        eps: float,
        branches: int | None,
        comm: Communicator | None,
        exact: bool,
        policy: str | None,
        out: Sequence[Maybe] | None,
    ) -> Result:
        """The op itself, for calls that aren't traced; see `__call__`."""
        in_force = policies.override() if policy is None else policy
        key: tuple[object, ...] | None
        try:
            key = (kind, arguments[0].shape, eps, branches, comm, exact, in_force)  # type: ignore[union-attr]
            known = self._known.get(key)
            if known is not None and not known.fits(arguments, out):
                known = None
        except (AttributeError, TypeError):  # what has no key: reading the call says why
            key = known = None
        if known is not None:
            try:
                return known.resolved(*arguments, out=out)  # type: ignore[return-value]
            except Misaligned:  # kernels can't take it, torch can
                pass
        if any(is_traced(tensor) for tensor in arguments):
            from .operators import traced

            return traced(self._dispatch.traced.key, arguments, kind, eps, branches, comm, exact, policy, out)
        resolved = self._decided(arguments, kind, eps, branches, comm, exact, policy, out)
        if key is not None and resolved.plan is not None:
            self._known[key] = KnownCall(resolved, arguments)
        return cast("Result", resolved(*arguments, out=out))

    def _decided(
        self,
        arguments: tuple[Maybe, ...],
        kind: str,
        eps: float,
        branches: int | None,
        comm: Communicator | None,
        exact: bool,
        policy: str | None,
        out: Sequence[Maybe] | None,
    ) -> Resolved:
        """What serves a call, decided once for all calls whose tensors have the same layout."""
        import torch

        try:
            key = (
                kind,
                eps,
                branches,
                comm,
                exact,
                policies.current() if policy is None else policy,
                *[None if tensor is None else facts_of(tensor) for tensor in arguments],
                None
                if out is None
                else tuple([None if tensor is None else facts_of(tensor) for tensor in out]),
            )
            resolved = self._resolved.get(key)
        except (AttributeError, TypeError, RuntimeError):  # what has no key: reading the call says why
            self._request(arguments, kind, eps, branches, comm, out)
            chosen_policy(policy)
            raise
        if torch.is_grad_enabled():
            refuse_grad(arguments)
        if resolved is None:
            resolved = self._resolve(arguments, kind, eps, branches, comm, exact, policy, out)
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
                self._known.clear()
            self._resolved[key] = resolved
        elif out is not None:  # addresses aren't in the key
            named = zip((*ARGUMENTS, *RESULTS), (*arguments, *out), strict=True)
            check_overlap(OUTPUTS[kind], {name: tensor for name, tensor in named if tensor is not None})
        return resolved

    @property
    def table(self) -> Table:
        """The dispatch table that the op is bound to."""
        return self._dispatch.table

    def communicator(self, name: str | None) -> Communicator | None:
        """The communicator that has `name` in graphs; None for None.

        Raises:
            ValueError: it isn't known here.
        """
        return None if name is None else self._dispatch.traced.communicator(name)

    def torch_operators(self) -> tuple[TorchOperator, ...]:
        """The op's `torch.library` operators: two for each kind, of which one writes into given tensors."""
        from .operators import operators

        return operators(self)

    def plan(
        self,
        residual: torch.Tensor,
        block: Maybe,
        injection: Maybe,
        norm_weight: Maybe,
        down_weight: Maybe,
        up_weight: Maybe,
        *,
        kind: str = "boundary",
        eps: float = 1e-6,
        branches: int | None = None,
        comm: Communicator | None = None,
        exact: bool = False,
        policy: str | None = None,
    ) -> Resolved:
        """Decide and load once; the result is called with tensors alone, and checks nothing again."""
        arguments = (residual, block, injection, norm_weight, down_weight, up_weight)
        return self._resolve(arguments, kind, eps, branches, comm, exact, policy, None)

    def chain(
        self, layers: Sequence[Weights], final: Weights | None = None, **options: Any
    ) -> HyperConnectionChain:
        """All boundaries of a decoder in order; see `HyperConnectionChain`."""
        from .chain import HyperConnectionChain

        return HyperConnectionChain(self, layers, final, **options)

    def explain(
        self,
        residual: torch.Tensor,
        block: Maybe,
        injection: Maybe,
        norm_weight: Maybe,
        down_weight: Maybe,
        up_weight: Maybe,
        *,
        kind: str = "boundary",
        eps: float = 1e-6,
        branches: int | None = None,
        comm: Communicator | None = None,
        exact: bool = False,
        policy: str | None = None,
        out: Sequence[Maybe] | None = None,
    ) -> Explanation:
        """Which candidate such a call takes, and the reason for every candidate; computes nothing."""
        arguments = (residual, block, injection, norm_weight, down_weight, up_weight)
        _, _, request = self._request(arguments, kind, eps, branches, comm, out)
        chosen = chosen_policy(policy)
        return Explanation.of(self._dispatch.select(request, current(residual.device), chosen, comm, exact))

    def request_for(self, fields: Mapping[str, FieldValue], kind: str) -> Request:
        """The request of a well laid out call of a workload's shape; `tokens` must be one number.

        Raises:
            ValueError: an unknown kind, or an interval where a number is needed.
        """
        shape = self._shape(fields, kind)
        return shape.request(kind, trees_for(self._dispatch.table, shape, kind))

    def reference_for(self, fields: Mapping[str, FieldValue], kind: str) -> Runner:
        """The torch reference of a kind, as a function of the signature's inputs.

        Raises:
            ValueError: as `request_for`.
        """
        from .reference import Reference

        shape = self._shape(fields, kind)
        return Reference(shape, kind, trees_for(self._dispatch.table, shape, kind).trees)

    def _shape(self, fields: Mapping[str, FieldValue], kind: str) -> BoundaryShape:
        checked_kind(kind)
        plain = {name: _single(name, value) for name, value in fields.items()}
        combine = kind == "combine"
        return BoundaryShape(
            dtype=str(plain["dtype"]),
            branches=int(plain["branches"]),
            hidden=int(plain["hidden"]),
            low_rank=0 if combine else int(plain["low_rank"]),
            tokens=int(plain["tokens"]),
            norm_weight="" if combine else str(plain["norm_weight"]),
            eps=float(plain["eps"]),
            world_size=int(plain["world_size"]),
        )

    def _request(
        self,
        arguments: Sequence[Maybe],
        kind: str,
        eps: float,
        branches: int | None,
        comm: Communicator | None,
        out: Sequence[Maybe] | None,
    ) -> tuple[BoundaryShape, ChosenTrees, Request]:
        table = self._dispatch.table
        shape = read(table, arguments, kind, eps, branches, comm)
        given = [tensor for tensor in arguments if tensor is not None]
        outputs = {} if out is None else checked_out(shape.signature(kind), given, kind, out)
        trees = trees_for(table, shape, kind)
        problems = layout_problems({**dict(zip(INPUTS[kind], given, strict=True)), **outputs})
        return shape, trees, shape.request(kind, trees, problems)

    def _resolve(
        self,
        arguments: Sequence[Maybe],
        kind: str,
        eps: float,
        branches: int | None,
        comm: Communicator | None,
        exact: bool,
        policy: str | None,
        out: Sequence[Maybe] | None,
    ) -> Resolved:
        shape, trees, request = self._request(arguments, kind, eps, branches, comm, out)
        from .reference import Reference

        reference = Reference(shape, kind, trees.trees)
        chosen = chosen_policy(policy)
        if shape.tokens == 0:
            return Resolved(request, *positions(kind), reference, Tally())
        residual = arguments[0]
        assert residual is not None
        device = current(residual.device)
        selection, plan = self._dispatch.resolve(request, device, chosen, comm, exact)
        tally = self._dispatch.statistics.tally(selection)
        return Resolved(request, *positions(kind), reference, tally, selection, plan)


def _single(name: str, value: FieldValue) -> str | int | float:
    if not isinstance(value, tuple):
        return value
    if value[0] != value[1]:
        raise ValueError(f"{name} is an interval, {value[0]} to {value[1]}; name one number of it")
    return value[0]
