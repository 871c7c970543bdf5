"""What is timed although it is no candidate: common implementations (baselines), and a team's own kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..ledger import Exactness, Group, judge
from .benchmark_run import BenchmarkRun
from .external import ExternalUnusable, load
from .family_evidence import Chain
from .gate import poison
from .graphs import Graph
from .oracle.closeness import relative_l2
from .ranks import agreed
from .timing import flat
from .verify import NothingToVerify

if TYPE_CHECKING:
    import torch

    from .family_evidence import Call

BASELINE_DISTANCE = 0.05
"""Largest relative L2 of a baseline from the control: it must compute the same function, not the same bits."""


def time_baselines(run: BenchmarkRun, on_done: Callable[[str], None]) -> dict[str, tuple[float, ...]]:
    """Times of the baselines; one that computes something else isn't timed.

    Raises:
        NothingToVerify: a baseline that was named isn't installed.
    """
    wanted = run.options.peers
    known = run.evidence.baselines(run.workload)
    for name in wanted or ():
        if name not in known:
            raise NothingToVerify(f'there is no baseline "{name}" here; installed are {", ".join(known)}')
    found: dict[str, tuple[float, ...]] = {}
    for name, prepare in known.items():
        if wanted is not None and name not in wanted:
            continue
        graph: Graph[Any] | None = None
        problem = None
        try:
            graph, problem = _captured(run, prepare)
        except Exception as error:  # foreign code: it may lack a compiler, or fail on this GPU
            problem = f"didn't run: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        problem = agreed(problem)  # a rank that went on alone would wait for the others for ever
        if problem is None and graph is not None:
            found[name] = run.alone(graph)
        else:
            run.notes.append(f"peer {name} {problem}")
        on_done(name)
    return found


def _captured(run: BenchmarkRun, prepare: Callable[[Chain], Call]) -> tuple[Graph[Any], str | None]:
    """A baseline's graph, and what is wrong with its results."""
    call = prepare(run.chain)
    graph = run.capture(partial(run.chain.run, call))
    distance = _replayed(run, graph, call)
    if distance < BASELINE_DISTANCE:
        return graph, None
    return graph, f"isn't timed: its results are {distance:.3g} (relative L2) from the control's"


def _replayed(run: BenchmarkRun, graph: Graph[Any], call: Call) -> float:
    """Poison the results, replay, and compare; a call that works in place gets its inputs again instead."""
    import torch

    restore: Callable[[], None] | None = getattr(call, "restore", None)
    for tensor in flat(graph.result):
        poison(tensor)
    if restore is not None:
        restore()
    graph.replay()
    found, expected = (
        torch.cat([tensor.double().flatten() for tensor in side])
        for side in (flat(graph.result), run.expected)
    )
    return relative_l2(found, expected)


def capture_external(run: BenchmarkRun, text: str) -> Graph[list[Sequence[torch.Tensor]]]:
    """The chain through a team's own kernel, captured, if it computes the same function.

    Raises:
        ExternalUnusable: it could not be loaded, or its results are far from the control's.
    """
    plan = run.call(run.control)
    call = load(text, plan.signature, run.here)
    graph = run.capture(lambda: run.chain.run(call))
    distance = _replayed(run, graph, call)
    if not distance < BASELINE_DISTANCE:
        raise ExternalUnusable(
            f"{text} doesn't compute {run.workload.family}: its results are {distance:.3g} (relative L2) from "
            f"the control's, where {BASELINE_DISTANCE} is allowed"
        )
    return graph


def compare_external(run: BenchmarkRun, groups: tuple[Group, ...]) -> str:
    """A candidate's time against the external control's, in words: the groups of all blocks."""
    options = run.options
    exactness = Exactness(cases=1, values=1, mismatches=0, against="nothing: time alone", first=None)
    judged = judge(exactness, run.timing(groups), options.rule, is_control=False)
    return f"{options.against}: {judged.reason}"
