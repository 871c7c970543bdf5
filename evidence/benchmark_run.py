"""A cell's entries: each is verified, captured into a graph, checked for doing its work, and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ledger import Group, HeadToHead, Record, RecordedDevice, Rule, Timing, make_record
from ..ledger.blocks import median
from ..runtime.device import Device as Here
from ..runtime.device import current, serves
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..table import Candidate, Workload
from .cells import Cell
from .executable import Executable, executable
from .family_evidence import FamilyEvidence
from .gate import differing, poison
from .graphs import Graph, capture, placed_anew, replay_ms
from .health import Monitor, UnderPowerCap
from .outcome import Bench
from .provenance import exactness_of, loaded_code, toolkit
from .ranks import agreed
from .timing import Pace, alone, flat, paired
from .tolerance import under_tolerance
from .verify import Verification, verify_one

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Options:
    pace: Pace = field(default_factory=Pace)
    """Of one block."""
    blocks: int = 5
    """How often all that is timed is allocated and captured anew."""
    rule: Rule = field(default_factory=Rule)
    seed: int = 500
    peers: Sequence[str] | None = None
    """Names; None takes all that are installed, an empty tuple none."""
    failures: Path | None = None
    """Where a failed comparison leaves its artefact."""
    against: str = ""
    """An external control, as `external.parse` reads it."""


@dataclass(frozen=True)
class GpuBackend:
    """The parts of a benchmark that touch the GPU; everything else runs anywhere."""

    device: Callable[[torch.device], Here] = current
    verify: Callable[..., Verification] = verify_one
    """The exactness gate; arguments as `verify_one`."""
    capture: Callable[[Callable[[], Any]], Graph[Any]] = capture
    sample: Callable[[Graph[Any], int], float] = replay_ms
    """Milliseconds a replay of a captured run, over so many replays."""
    anew: Callable[[int], object] = placed_anew
    """Moves what the block of that number allocates; the result is held as long as the block."""


GPU = GpuBackend()

COMPUTE_BOUND = 200
"""Floating-point operations a byte: about what an H200 does in BF16 while it moves one (990 TFLOP/s, 4.8 TB/s)."""


class GraphEmpty(Exception):
    """A captured graph doesn't do the work: it left the poison, or wrote something else than the eager run."""


class BenchmarkRun:
    """One cell on one GPU, or on a GPU a rank, with its chain: a block of it, where several are timed."""

    def __init__(
        self,
        dispatch: Dispatch,
        evidence: FamilyEvidence,
        workload: Workload,
        cell: Cell,
        watch: Monitor,
        options: Options,
        backend: GpuBackend,
        block: int = 0,
    ) -> None:
        self.block = block
        self._ballast = backend.anew(block) if block else None
        self.here = backend.device(cell.place.device)
        self.chain = cell.chain(evidence, workload, options.seed + block)
        self.control = cell.control(workload)
        self.workload, self.evidence, self.options = workload, evidence, options
        self.expected: list[torch.Tensor] = []
        """What the control's chain stored, once it ran."""
        self._own_results: dict[str, list[torch.Tensor]] = {}
        """What the chain of a candidate under a tolerance stored when it was launched eagerly."""
        self.notes: list[str] = []
        self._dispatch, self._cell = dispatch, cell
        self._watch = UnderPowerCap(watch) if self.chain.flops > COMPUTE_BOUND * self.chain.bytes else watch
        self.capture, self._verify, self._sample = backend.capture, backend.verify, backend.sample

    def own(self, candidate: Candidate) -> str | None:
        """The build that the GPU takes of a candidate of the cell, if there is one."""
        return serves(candidate.builds, self.here.arch) if self._cell.admits(candidate) else None

    def arch(self, candidate: Candidate) -> str:
        """The build that the GPU takes.

        Raises:
            LoadError: there is none.
        """
        found = self.own(candidate)
        if found is None:
            raise LoadError(
                f"candidate {candidate.name} of {self.workload.label} has no build for {self.here}"
            )
        return found

    @property
    def title(self) -> str:
        """Which part of the interval is timed, in words."""
        return self._cell.title(self.workload)

    def alone(self, graph: Graph[Any]) -> tuple[float, ...]:
        return alone(graph, self._watch, self.options.pace, self._sample)

    def paired(self, control: Graph[Any], candidate: Graph[Any]) -> tuple[Group, ...]:
        return paired(control, candidate, self._watch, self.options.pace, self._sample, self.block)

    def verify(self, candidate: Candidate) -> Verification:
        return self._verify(
            self._dispatch,
            self.evidence,
            self.workload,
            candidate,
            self.arch(candidate),
            self._cell.place,
            list(self.evidence.cases(self.workload)),
            self.options.failures,
        )

    def call(self, candidate: Candidate) -> Executable:
        return executable(
            self._dispatch,
            self.evidence,
            self.workload,
            candidate,
            self.arch(candidate),
            self.chain.kind,
            self._cell.at,
            self.here,
            self._cell.place,
        )

    def graph(self, candidate: Candidate) -> Graph[list[Sequence[torch.Tensor]]]:
        """The chain, captured and checked for doing its work.

        Raises:
            GraphEmpty: it doesn't.
        """
        call = self.call(candidate)
        eager = [tensor.clone() for tensor in flat(self.chain.run(call))]
        self.expected = self.expected or eager
        if under_tolerance(candidate):
            self._own_results[candidate.name] = eager
        graph = self.capture(lambda: self.chain.run(call))
        self.check(graph, candidate.name)
        return graph

    def check(self, graph: Graph[list[Sequence[torch.Tensor]]], name: str) -> None:
        """Poison what the graph writes, replay it, compare all of it with the control's eager run.

        A candidate under a tolerance is compared with its own: its bits, too, follow from its inputs alone.

        Raises:
            GraphEmpty: something differs, on whatever rank; every rank raises it.
        """
        results = flat(graph.result)
        for tensor in results:
            poison(tensor)
        graph.replay()
        wrong = sum(
            int(differing(found, expected).sum())
            for found, expected in zip(results, self._own_results.get(name, self.expected), strict=True)
        )
        whose = "those of its eager run" if name in self._own_results else "the control's"
        found = f"a replay of {name}'s captured graph left {wrong} values that aren't {whose}; it isn't timed"
        problem = agreed(found if wrong else None)
        if problem is not None:
            raise GraphEmpty(problem)

    def time(self, control: Graph[Any], candidate: Candidate) -> tuple[Group, ...] | str:
        """Paired groups, with the candidate's results checked before and after; a sentence if they are wrong."""
        try:
            graph = self.graph(candidate)
            groups = self.paired(control, graph)
            self.check(graph, candidate.name)
        except GraphEmpty as error:
            return str(error)
        return groups

    def outcome(self, records: Sequence[Record]) -> Bench:
        chain = self.chain
        return Bench(
            self.workload.label,
            str(self.here),
            chain.scope,
            chain.calls,
            chain.bytes,
            chain.flops,
            tuple(records),
            notes=tuple(self.notes),
            part=self.title,
        )

    def record(
        self,
        candidate: Candidate,
        verified: Verification,
        groups: tuple[Group, ...] | str | None,
        peers: dict[str, tuple[float, ...]],
        floor: tuple[float, ...],
        head_to_head: HeadToHead | None = None,
    ) -> Record:
        """The evidence; the ledger's rule makes the verdict of it."""
        arch, control = self.arch(candidate), self.control
        build = candidate.builds[arch]
        beside = control.builds[self.arch(control)]
        loaded = loaded_code(self._dispatch.table.root, build, arch)
        refused = groups if isinstance(groups, str) else None
        if verified.gate.exact and verified.problem:  # wrong on another rank, or the channel broke
            refused = verified.problem
        timing = None
        if isinstance(groups, tuple):
            floor_ms = median(floor) if floor else None
            timing = self.timing(groups, floor_ms=floor_ms, baselines=peers)
        assert self.here.arch is not None
        return make_record(
            measured_at=datetime.now(UTC).replace(microsecond=0).isoformat(),
            family=self.workload.family,
            spec=self.workload.spec,
            workload=self.workload.label,
            part=self._cell.measured(self.workload),
            candidate=candidate.name,
            control=control.name,
            device=RecordedDevice(arch=self.here.arch, sm_count=self.here.sm_count, name=self.here.name),
            toolkit=toolkit(self._watch.driver, loaded.nvrtc),
            code_sha256=build.code,
            control_code_sha256=beside.code,
            source_sha256=build.sha256 or None,
            control_source_sha256=beside.sha256 or None,
            cubin_sha256=loaded.sha256,
            machine_code_sha256=loaded.machine_code_sha256,
            exactness=exactness_of(verified.gate, verified.against, refused, verified.closeness),
            timing=timing,
            rule=self.options.rule,
            head_to_head=head_to_head,
        )

    def timing(self, groups: tuple[Group, ...], **more: Any) -> Timing:
        """Groups with what a replay of this chain is."""
        chain, replays = self.chain, self.options.pace.replays
        facts = {"scope": chain.scope, "calls": chain.calls, "bytes": chain.bytes, "flops": chain.flops}
        return Timing(**facts, replays=replays, groups=groups, **more)
