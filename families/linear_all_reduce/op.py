"""The op `linear_all_reduce`: a row-parallel linear with its all-reduce, on any device.

    y = linear_all_reduce(x, weight, comm=comm)            # [..., K], [N, K] -> [..., N], summed over the ranks
    installation = linear_all_reduce.install(model, comm)  # every row-parallel layer that it speeds up here

What isn't admitted by a record for this shape, these rows and this device takes the plain path: the plain linear,
then the plain all-reduce. The bias is added once, by rank 0, in its GEMM: a pass over the result would cost more,
and engines do it there too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...runtime import policy as policies
from ...runtime.arguments import check_device
from ...runtime.device import current
from ...runtime.dispatch import Dispatch, chosen_policy
from ...runtime.errors import LoadError, first_line
from ...runtime.explanation import Explanation
from ...runtime.selection import Choice
from ...runtime.traced import graph_name
from .decisions import Deciding, Terms, fewest_rows, in_words

if TYPE_CHECKING:
    import torch

    from .overlap.group import LayerGroup
    from .overlap.install import Installation, Served
    from .overlap.rows import SliceSchedule


class LinearAllReduce(Deciding):
    """`linear_all_reduce`, bound to a dispatch table."""

    def __init__(self, dispatch: Dispatch) -> None:
        """Bind, and register the op with `dispatch`."""
        super().__init__(dispatch)
        self._groups: dict[Terms, tuple[str, LayerGroup]] = {}
        self._installed: list[tuple[Installation, dict[str, Any]]] = []

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
        force: SliceSchedule | str | None = None,
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
        import torch

        from .overlap.operator import linear_all_reduce, traced_group

        quantisation = "none" if weight_scale is None else "fp8_per_token"
        if torch.compiler.is_compiling():
            key, known_as = self._dispatch.traced.key, graph_name(comm)
            name = traced_group(key, known_as, quantisation, nonfinite, exact, policy, traceable(force))
        else:
            name, _ = self.group(Terms(comm, exact, policy, quantisation, nonfinite, force))
        result: torch.Tensor = linear_all_reduce(x, weight, weight_scale, bias, name)
        return result

    def group(self, terms: Terms) -> tuple[str, LayerGroup]:
        """The layer group of these terms, and its name in graphs; made on the first call."""
        found = self._groups.get(terms)
        if found is None:
            from .overlap.group import LayerGroup
            from .overlap.operator import groups, name_of

            _check_terms(terms)
            group = LayerGroup(
                terms.comm,
                self._decider(terms),
                self.plain_all_reduce(terms.comm),
                terms.quantisation,
                terms.nonfinite,  # type: ignore[arg-type]
            )
            name = name_of(self._dispatch.traced.expected_name, terms)
            groups[name] = group
            found = self._groups[terms] = (name, group)
        return found

    def install(
        self,
        model: torch.nn.Module,
        comm: Any,
        *,
        policy: str | None = None,
        force: SliceSchedule | str | None = None,
        check: bool = True,
    ) -> Installation:
        """Route the model's row-parallel layers through the op where some schedule is admitted for them.

        Collective: call it on every rank, with the same model, before the model is compiled or captured. A layer is
        routed on all ranks or on none. Only layers that are recognised exactly are (`overlap.recognise`); no
        attribute of theirs changes but `forward`.

        Args:
            model: whose layers.
            comm: a communicator, one rank a process.
            policy, force: as in a call; rows that a forced candidate doesn't serve take the plain path.
            check: call every layer once, routed and not, and leave it alone where the results differ.

        Returns:
            Which layers were routed and which weren't, with reasons; it can `uninstall`.
        """
        from .overlap.install import install

        choices: dict[tuple[object, str], list[Choice]] = {}

        def terms(quantisation: str) -> Terms:
            named = isinstance(force, str)
            return Terms(comm, policy=policy, quantisation=quantisation, force=force, plain_elsewhere=named)

        def serving(weight: torch.Tensor, quantisation: str) -> Served:
            served = self._serving(weight, terms(quantisation), choices)
            # Loads what it takes, so that what doesn't load is known before the ranks decide.
            group = self.group(terms(quantisation))[1]
            try:
                decision = group.decide(
                    weight.new_empty((served.rows, weight.shape[1]), dtype=served.dtype), weight
                )
            except LoadError as error:
                raise ValueError(f"{served.words} doesn't load: {first_line(error)}") from None
            return replace(served, loaded=str(decision.schedule))

        done = install(model, comm, serving, lambda quantisation: self.group(terms(quantisation))[0], check)
        state = {
            "world_size": comm.world_size,
            "layers": list(done.routed),
            "forced": None if force is None else str(force),
            "decisions": dict(in_words(choice) for key in done.kinds for choice in choices.get(key, ())),
        }
        self._installed.append((done, state))
        return done

    def _serving(
        self, weight: torch.Tensor, terms: Terms, choices: dict[tuple[object, str], list[Choice]]
    ) -> Served:
        """What serves a layer's weight; ValueError with the reason where nothing does."""
        import torch

        from .overlap.install import Served

        dtype = torch.bfloat16 if terms.quantisation != "none" else weight.dtype
        force, kind = terms.force, terms.quantisation
        if force is None:
            found, words = self._admitted(weight, kind, terms.comm, terms.policy)
            if not found:
                raise ValueError(words)
            choices[tuple(weight.shape), str(weight.dtype)] = found
        elif isinstance(force, str):
            works = self._workloads(self._layer_fields(weight, kind, terms.comm))
            device = current(weight.device)
            found, words = self._named(works, force, device), f"forced: {force}"
            if not found:
                names = dict.fromkeys(one.name for work in works for one in work.candidates)
                raise ValueError(
                    f"no candidate {force!r} serves its shape on {device}; the table has {', '.join(names) or 'none'}"
                )
        else:
            return Served(f"forced: {force}", max(force.min_m, len(force.weights)), dtype)
        if terms.quantisation != "none":
            dtype = getattr(torch, str(found[0].workload.fields["dtype"]))
        return Served(words, fewest_rows(found[0]), dtype)

    def state(self) -> dict[str, Any]:
        """What is installed, as JSON-able data for the key of a compile cache: traced graphs differ by it."""
        return {"installed": [state for done, state in self._installed if done.groups]}

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
        from .overlap.group import check

        quantisation = "none" if weight_scale is None else "fp8_per_token"
        check(x, weight, weight_scale, bias, quantisation)
        check_device(x, comm, "x")
        terms = Terms(comm, exact, policy, quantisation, nonfinite)
        request = self.request_of(x.reshape(-1, x.shape[-1]), weight, terms)
        chosen = chosen_policy(policy)
        return Explanation.of(self._dispatch.select(request, current(x.device), chosen, comm, exact))


def traceable(force: SliceSchedule | str | None) -> str | None:
    """What is forced, if a graph can hold it.

    Raises:
        ValueError: a schedule is given as an object.
    """
    if not isinstance(force, str | None):
        raise ValueError(
            f"force is {force}, and a graph holds no schedule; force a candidate by its name, or install() the model "
            "before it is compiled"
        )
    return force


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


OP = LinearAllReduce
