"""What isn't a candidate and is timed all the same: what people run today, and a team's own kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..ledger import Exactness, Timing, judge
from .contest import Contest
from .external import ExternalUnusable, load
from .gate import poison
from .graphs import Graph
from .ranks import agreed
from .subject import Chain
from .timing import flat
from .verify import NothingToVerify

if TYPE_CHECKING:
    import torch

    from .subject import Call

PEER_DISTANCE = 0.05
"""Relative L2 within which a peer must be of the control: it computes the same function, if not the same bits."""


def time_peers(contest: Contest, on_done: Callable[[str], None]) -> dict[str, tuple[float, ...]]:
    """Times of what people run today; a peer that computes something else isn't timed.

    Raises:
        NothingToVerify: a peer that was named isn't installed.
    """
    wanted = contest.options.peers
    known = contest.subject.peers(contest.workload)
    for name in wanted or ():
        if name not in known:
            raise NothingToVerify(f'there is no peer "{name}" here; installed are {", ".join(known)}')
    found: dict[str, tuple[float, ...]] = {}
    for name, prepare in known.items():
        if wanted is not None and name not in wanted:
            continue
        graph: Graph[Any] | None = None
        problem = None
        try:
            graph, problem = _captured(contest, prepare)
        except Exception as error:  # somebody else's code: it may lack a compiler, or dislike this GPU
            problem = f"didn't run: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        problem = agreed(problem)  # a rank that went on alone would wait for the others for ever
        if problem is None and graph is not None:
            found[name] = contest.alone(graph)
        else:
            contest.notes.append(f"peer {name} {problem}")
        on_done(name)
    return found


def _captured(contest: Contest, prepare: Callable[[Chain], Call]) -> tuple[Graph[Any], str | None]:
    """A peer's graph, and what is wrong with its results."""
    call = prepare(contest.chain)
    graph = contest.capture(partial(contest.chain.run, call))
    distance = _replayed(contest, graph, call)
    if distance < PEER_DISTANCE:
        return graph, None
    return graph, f"isn't timed: its results are {distance:.3g} (relative L2) from the control's"


def _replayed(contest: Contest, graph: Graph[Any], call: Call) -> float:
    """Poison the results, replay, and compare; a call that works in place gets its inputs again instead."""
    restore: Callable[[], None] | None = getattr(call, "restore", None)
    for tensor in flat(graph.result):
        poison(tensor)
    if restore is not None:
        restore()
    graph.replay()
    return _distance(flat(graph.result), contest.expected)


def capture_external(contest: Contest, text: str) -> Graph[list[Sequence[torch.Tensor]]]:
    """The chain through somebody's own kernel, captured, if it computes the same function.

    Raises:
        ExternalUnusable: it can't be had, or its results are far from the control's.
    """
    plan = contest.call(contest.control)
    call = load(text, plan.signature, contest.here)
    graph = contest.capture(lambda: contest.chain.run(call))
    distance = _replayed(contest, graph, call)
    if not distance < PEER_DISTANCE:
        raise ExternalUnusable(
            f"{text} doesn't compute {contest.workload.family}: its results are {distance:.3g} (relative L2) from "
            f"the control's, where {PEER_DISTANCE} is allowed"
        )
    return graph


def compare_external(contest: Contest, external: Graph[Any], graph: Graph[Any]) -> str:
    """A candidate's time against the external control's, in words."""
    chain, options = contest.chain, contest.options
    groups = contest.paired(external, graph)
    timing = Timing(scope=chain.scope, calls=chain.calls, replays=options.pace.replays, groups=groups)
    exactness = Exactness(cases=1, values=1, mismatches=0, against="nothing: time alone", first=None)
    judged = judge(exactness, timing, options.rule, is_control=False)
    return f"{options.against}: {judged.reason}"


def _distance(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    import torch

    wide = torch.cat([tensor.double().flatten() for tensor in found])
    truth = torch.cat([tensor.double().flatten() for tensor in expected])
    distance = float((wide - truth).norm() / truth.norm())
    return distance if distance == distance else float("inf")
