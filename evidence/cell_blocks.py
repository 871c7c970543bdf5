"""The blocks of a cell: in each, all that is timed is allocated and captured anew.

Groups of one graph repeat where its memory lies, how it was captured and what state it found. Only a new
block repeats the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ledger import Group
from ..runtime.errors import LoadError
from ..table import Candidate
from .baselines import capture_external
from .benchmark_run import BenchmarkRun, GraphEmpty, Options
from .graphs import Graph


@dataclass
class Sampled:
    """What the blocks gave of one candidate."""

    groups: list[list[Group]]
    """By value of the interval."""
    against: list[Group] = field(default_factory=list)
    """Against the external control, at the first value."""
    refused: dict[int, str] = field(default_factory=dict)
    """What was wrong with its results, by value; it isn't timed any more."""
    unloadable: str = ""

    @property
    def by_value(self) -> list[tuple[Group, ...] | str]:
        """Groups, or what was wrong, at each value."""
        return [self.refused.get(index) or tuple(groups) for index, groups in enumerate(self.groups)]


class CellBlocks:
    """A cell's blocks, one after the other; the first one stays, and later ones lie beside it."""

    def __init__(self, placed: Callable[[int], list[BenchmarkRun]], options: Options) -> None:
        """`placed` makes the runs of a block by its number, one for each value of the interval."""
        self._placed, self._options = placed, options
        self.first = placed(0)
        self.graphs: list[Graph[Any]] = []
        """Of the control, in the first block."""
        self._external: Graph[Any] | None = None

    def capture_controls(self) -> None:
        """Capture the control in the first block; errors as `BenchmarkRun.graph` and `capture_external`."""
        self.graphs = [run.graph(run.control) for run in self.first]
        if self._options.against:
            self._external = capture_external(self.first[0], self._options.against)

    def time(self, candidates: Sequence[Candidate]) -> dict[str, Sampled]:
        """Time candidates against the control, all of them in a block before the next one begins."""
        names = [self.first[0].control.name, *(candidate.name for candidate in candidates)]
        found = {name: Sampled([[] for _ in self.first]) for name in names}
        for block in range(self._options.blocks):
            self._time_block(block, candidates, found)
        return found

    def time_both(self, standing: Candidate, challenger: Candidate, value: int) -> tuple[Group, ...] | str:
        """Time a challenger against the candidate in front, in blocks of their own; a sentence if that failed."""
        groups: list[Group] = []
        try:
            for block in range(self._options.blocks):
                taken = self._block_of_both(block, standing, challenger, value)
                if isinstance(taken, str):
                    return taken
                groups += taken
        except (GraphEmpty, LoadError) as error:
            return str(error)
        return tuple(groups)

    # A block's runs and graphs are locals of one call each, so that they are gone before the next block is allocated.

    def _time_block(self, block: int, candidates: Sequence[Candidate], found: Mapping[str, Sampled]) -> None:
        runs, graphs, external = self.first, self.graphs, self._external
        if block:
            runs = self._placed(block)
            graphs = [run.graph(run.control) for run in runs]
            if self._options.against:
                external = capture_external(runs[0], self._options.against)
        if external is not None:
            found[runs[0].control.name].against += runs[0].paired(external, graphs[0])
        for candidate in candidates:
            sampled = found[candidate.name]
            if not sampled.refused and not sampled.unloadable:
                _sample(sampled, candidate, runs, graphs, external)

    def _block_of_both(
        self, block: int, standing: Candidate, challenger: Candidate, value: int
    ) -> tuple[Group, ...] | str:
        run = self._placed(block)[value]
        run.graph(run.control)  # what the control stores is what others are compared with
        return run.time(run.graph(standing), challenger)


def _sample(
    sampled: Sampled,
    candidate: Candidate,
    runs: Sequence[BenchmarkRun],
    graphs: Sequence[Graph[Any]],
    external: Graph[Any] | None,
) -> None:
    """One block of one candidate, at every value."""
    try:
        for index, (run, graph) in enumerate(zip(runs, graphs, strict=True)):
            taken = run.time(graph, candidate)
            if isinstance(taken, str):
                sampled.refused[index] = taken
            else:
                sampled.groups[index] += taken
        if external is not None and not sampled.refused:
            sampled.against += runs[0].paired(external, runs[0].graph(candidate))
    except LoadError as error:
        sampled.unloadable = str(error)
