"""The base of all ops: a family declares its tensors, kinds and options, and gets everything else.

The module `op` of a family's package binds its class to `OP`; dispatch modules make the op of it. A call is
`dispatch.scale(source)`; see `Op.__call__`. How large it is, the op looks at on every call: a caller that baked it in
at prefill would never decode fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..table import FieldValue, Table
from . import policy as policies
from .arguments import check_overlap, check_presence, refuse_grad
from .call_options import LAST, option_defaults
from .call_reader import CallReader, by_name
from .device import current
from .dispatch import Dispatch, chosen_policy
from .errors import Misaligned
from .explanation import Explanation
from .known_call import KnownCall, facts_of
from .plain import is_traced
from .resolved import Resolved
from .statistics import Tally
from .traced import graph_name

if TYPE_CHECKING:
    import torch

    from .communicator import Communicator
    from .device import Device
    from .operators import TorchOperator
    from .request import Request, Runner
    from .selection import Choice

    Maybe = torch.Tensor | None

MAX_RESOLVED = 4096
"""Calls of different shape that are remembered; a prefill of ever new lengths must not grow without bound."""
POLICY = LAST.index("policy") - len(LAST)
"""Place of the policy among the values of a call's options, from the end."""


class Op(CallReader):
    """An op, bound to a dispatch table; a family derives from it, and states what `Declaration` asks for."""

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind, and make the op known to `dispatch`."""
        self._dispatch = dispatch
        self._resolved: dict[tuple[object, ...], Resolved] = {}
        self._known: dict[tuple[object, ...], KnownCall] = {}
        self._defaults = option_defaults(self.options)
        self._default_values = tuple(self._defaults.values())
        self._single = len(self.results) == 1
        dispatch.register(self)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """The op's results for its tensors, for inference.

        Args:
            tensors: the op's `arguments` in order; None for those that the kind doesn't have. The last may be given
                by name.
            options: `kind`; `out`, tensors to write into; and the fields of the op's `options`, such as `exact` and
                `policy`.

        Returns:
            A tuple of the op's `results`, None for those that the kind doesn't have; of an op with one result, the
            tensor. Fresh tensors unless `out` is given, which has the form of what is returned.

        Raises:
            ValueError, TypeError: the arguments contradict each other or aren't allowed.
            RuntimeError: an input requires grad.
            NotExact, Unsupported, NotWarm: as `Dispatch.resolve` says.
        """
        import torch

        out = options.pop("out", None) if options else None
        arguments, kind, values = self.bound(tensors, options)
        if torch.compiler.is_compiling():
            return self.traced(arguments, kind, values, out)
        return self.call(arguments, kind, values, out)

    def bound(
        self, tensors: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], str, tuple[Any, ...]]:
        """A call's tensors in order, its kind, and its options' values; TypeError for unknown or too many."""
        kind = next(iter(self.kinds))
        if not named and len(tensors) == len(self.arguments):
            return tensors, kind, self._default_values
        if len(tensors) > len(self.arguments):
            raise TypeError(
                f"{self.family} takes {len(self.arguments)} tensors ({', '.join(self.arguments)}); "
                f"{len(tensors)} were given"
            )
        kind = named.get("kind", kind)
        rest = self.arguments[len(tensors) :]
        for name in named:
            if name not in rest and name not in self._defaults and name != "kind":
                raise TypeError(
                    f"{self.family} has no option {name!r} here; it has kind, {', '.join(self._defaults)}"
                )
        values = tuple([named.get(name, default) for name, default in self._defaults.items()])
        return (*tensors, *[named.get(name) for name in rest]), kind, values

    def call(self, arguments: tuple[Maybe, ...], kind: str, values: tuple[Any, ...], out: Any) -> Any:
        """The op itself, for calls that aren't traced; `values` are the options in the order of `option_defaults`."""
        listed = out if out is None or not self._single else (out,)
        key: tuple[object, ...] | None
        try:
            key = (kind, arguments[0].shape, values, policies.override())  # type: ignore[union-attr]
            known = self._known.get(key)
            if known is not None and not known.fits(arguments, listed):
                known = None
        except (AttributeError, TypeError):  # what has no key: reading the call says why
            key = known = None
        if known is not None:
            try:
                return known.resolved(*arguments, out=out)
            except Misaligned:  # kernels can't take it, torch can
                pass
        if any(is_traced(tensor) for tensor in arguments):
            return self.traced(arguments, kind, values, out)
        resolved = self._decided(arguments, kind, values, listed)
        if key is not None and resolved.plan is not None:
            self._known[key] = KnownCall(self, resolved, arguments)
        return resolved(*arguments, out=out)

    def _decided(
        self, arguments: tuple[Maybe, ...], kind: str, values: tuple[Any, ...], out: Sequence[Maybe] | None
    ) -> Resolved:
        """What serves a call, decided once for all calls whose tensors lie alike."""
        policy = values[POLICY]
        try:
            in_force = policies.current() if policy is None else policy
            given = tuple([facts_of(tensor, self.alignment) for tensor in arguments])
            written = None if out is None else tuple([facts_of(tensor, self.alignment) for tensor in out])
            key = (kind, values, in_force, given, written)
            resolved = self._resolved.get(key)
        except (AttributeError, TypeError, RuntimeError):  # what has no key: reading the call says why
            self.requested(arguments, kind, self._options(values), out)
            chosen_policy(policy)
            raise
        refuse_grad(zip(self.arguments, arguments, strict=True), self.family)
        if resolved is None:
            resolved = self._resolve(arguments, kind, self._options(values), out)
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
                self._known.clear()
            self._resolved[key] = resolved
        elif out is not None:  # addresses aren't in the key
            check_overlap(
                by_name(self.results, out), by_name(self.arguments, arguments), self.called_results()
            )
        return resolved

    def traced(self, arguments: tuple[Maybe, ...], kind: str, values: tuple[Any, ...], out: Any) -> Any:
        """The call as a call of its operator of torch; ValueError also where the communicator has no name yet."""
        import torch

        from .op_operators import operator_name
        from .operators import namespace_of

        if kind not in self.kinds:  # checked_kind() would name the nearest, by code that can't be traced
            raise ValueError(f"kind is {kind!r}; allowed are {', '.join(self.kinds)}")
        declared = self.kinds[kind]
        for name, value in zip(self.arguments, arguments, strict=True):
            check_presence(name, value, name in declared.inputs, kind, name)
        given = [value for value in arguments if value is not None]
        options = dict(zip(self._defaults, values, strict=True))
        if options["comm"] is not None:
            options["comm"] = graph_name(options["comm"])
        namespace = getattr(torch.ops, namespace_of(self._dispatch.traced.key))
        operator = getattr(namespace, operator_name(self.family, kind, declared))
        if out is not None:
            if self._single:
                operator.out(*given, **options, out=out)
                return out
            written = {name: out[self.results.index(name)] for name in declared.outputs}
            operator.out(*given, **options, **written)
            return tuple(out)
        found = operator.default(*given, **options)
        if self._single:
            return found
        results = dict(zip(declared.outputs, (found,) if len(declared.outputs) == 1 else found, strict=True))
        return tuple([results.get(name) for name in self.results])

    def plan(self, *tensors: Any, **options: Any) -> Resolved:
        """Decide and load once; the result is called with tensors alone, and checks nothing again.

        Arguments and errors are those of a call without `out`.
        """
        arguments, kind, values = self.bound(tensors, options)
        return self._resolve(arguments, kind, self._options(values), None)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Which candidate a call with these arguments takes, and the reason for every candidate; computes nothing."""
        out = kwargs.pop("out", None)
        arguments, kind, values = self.bound(args, kwargs)
        told, listed = self._options(values), out if out is None or not self._single else (out,)
        request, device = self.requested(arguments, kind, told, listed)
        selection = self._dispatch.select(
            request, current(device), chosen_policy(told.policy), told.comm, told.exact
        )
        return Explanation.of(selection)

    def load(self, choice: Choice, request: Request, device: Device, comm: Communicator | None) -> Any:
        """Load what was chosen for a request: a plan; LoadError, NotWarm as `Dispatch.resolve`."""
        return self._dispatch.load_plan(choice, request, device, comm)

    def forget(self) -> None:
        """Decide the next calls anew: what may be dispatched has changed."""
        self._resolved.clear()
        self._known.clear()

    def reference_for(self, fields: Mapping[str, FieldValue], kind: str) -> Runner:
        """The torch reference of a kind, as a function of the signature's inputs; ValueError as `request_for`."""
        return runner(self.reference(self.one_call(fields, kind), kind))

    def results_like(self, arguments: Sequence[Maybe], kind: str, options: Any) -> list[torch.Tensor]:
        """What a kind gives, without values, for tensors that may have no memory; errors as a call."""
        import torch

        refuse_grad(zip(self.arguments, arguments, strict=True), self.family)
        given, fields = self.read(arguments, kind, options, real=False)
        first = next(iter(given.values()))
        outputs = self.signature(fields, kind).outputs
        return [first.new_empty(buffer.shape, dtype=getattr(torch, buffer.dtype)) for buffer in outputs]

    @property
    def table(self) -> Table:
        """The dispatch table that the op is bound to."""
        return self._dispatch.table

    def communicator(self, name: str | None) -> Any:
        """The communicator that graphs know by `name`; errors as `traced.Namespace.communicator`."""
        return self._dispatch.traced.communicator(name)

    def torch_operators(self) -> tuple[TorchOperator, ...]:
        """The op's `torch.library` operators: two for each kind, of which one writes into given tensors."""
        from .op_operators import operators_of

        return operators_of(self)

    def values(self, options: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of options in order, as an operator of torch has them: with the name of a communicator."""
        named = {**self._defaults, **options}
        named["comm"] = self.communicator(named["comm"])
        return tuple(named.values())

    def told(self, options: Mapping[str, Any]) -> Any:
        """Options of an operator of torch as `options` has them."""
        return self._options(self.values(options))

    def _options(self, values: tuple[Any, ...]) -> Any:
        return self.options(**dict(zip(self._defaults, values, strict=True)))

    def _resolve(
        self, arguments: Sequence[Maybe], kind: str, options: Any, out: Sequence[Maybe] | None
    ) -> Resolved:
        request, device = self.requested(arguments, kind, options, out)
        chosen = chosen_policy(options.policy)
        selection = plan = None
        tally = Tally()
        if any(buffer.nbytes for buffer in request.signature.outputs):  # else nothing has to serve it
            where = current(device)
            selection, plan = self._dispatch.resolve(request, where, chosen, options.comm, options.exact)
            tally = self._dispatch.statistics.tally(selection)
        reference = runner(self.reference(request.fields, kind))
        inputs = results = None
        if self.kinds[kind].inputs != self.arguments:
            inputs = tuple([self.arguments.index(name) for name in self.kinds[kind].inputs])
        outputs = self.kinds[kind].outputs
        if outputs != self.results:
            results = tuple([outputs.index(name) if name in outputs else None for name in self.results])
        return Resolved(request, inputs, results, reference, tally, selection, plan, single=self._single)


def runner(reference: Callable[..., torch.Tensor | Sequence[torch.Tensor]]) -> Runner:
    """A function of tensors with a plan's face."""

    def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None) -> Any:
        found = reference(*inputs)
        results = found if isinstance(found, (tuple, list)) else (found,)
        if outputs is None:
            return results
        for output, result in zip(outputs, results, strict=True):
            output.copy_(result)
        return outputs

    return run
