"""`kernwright bench`: control, candidates and peers in one run; every candidate ends as a record of the ledger.

A candidate is timed only after the exactness gate, its captured graph is checked for doing the work at all
(poisoned results, then a replay), and its results are compared once more after it was timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ledger import Device, Exactness, Group, Record, Rule, Timing, judge, make_record
from ..ledger.verdict import median
from ..runtime.device import Device as Here
from ..runtime.device import current, serves
from ..runtime.dispatch import Dispatch
from ..runtime.errors import LoadError
from ..runtime.loader import machine_code
from ..runtime.plan import Plan
from ..runtime.table import Candidate, Workload
from .external import ExternalUnusable, load
from .gate import differing, poison
from .graphs import Graph, capture, replay_ms
from .health import Monitor
from .outcome import Bench
from .provenance import exactness_of, toolkit
from .subject import Chain, Subject
from .timing import Pace, alone, flat, paired
from .verify import NothingToVerify, Verification, Wanted, chosen_builds, verify_one

if TYPE_CHECKING:
    import torch

    from .subject import Call

KIND = "boundary"
"""Kind of the op whose plan the chain calls."""

PEER_DISTANCE = 0.05
"""Relative L2 within which a peer must be of the control: it computes the same function, if not the same bits."""


@dataclass(frozen=True)
class Options:
    """What to measure."""

    pace: Pace = field(default_factory=Pace)
    rule: Rule = field(default_factory=Rule)
    seed: int = 500
    peers: Sequence[str] | None = None
    """Names; None takes all that are installed, an empty tuple none."""
    failures: Path | None = None
    """Where a failed comparison leaves its artefact."""
    against: str = ""
    """An external control, as `external.parse` reads it."""


@dataclass(frozen=True)
class Instruments:
    """What of a bench touches the GPU; all else runs anywhere."""

    device: Callable[[torch.device], Here] = current
    verify: Callable[..., Verification] = verify_one
    """The exactness gate; arguments as `verify_one`."""
    capture: Callable[[Callable[[], Any]], Graph[Any]] = capture
    sample: Callable[[Graph[Any], int], float] = replay_ms
    """Milliseconds a replay of a captured run, over so many replays."""


GPU = Instruments()


class GraphEmpty(Exception):
    """A captured graph doesn't do the work: it left the poison, or wrote something else than the eager run."""


def bench(
    dispatch: Dispatch,
    subject: Subject,
    workload: Workload,
    identities: dict[tuple[str, str], str],
    device: torch.device,
    watch: Monitor,
    candidates: Sequence[str],
    options: Options,
    on_done: Callable[[str], None] = lambda _name: None,
    instruments: Instruments = GPU,
    keep: Callable[[Record], None] = lambda _record: None,
) -> Bench:
    """Verify and time candidates of a workload against its control, with peers and the read floor.

    Args:
        dispatch, subject, workload: what is measured.
        identities: digest of canonical workload, candidate and target, by (candidate, arch).
        device: the GPU.
        watch: its health.
        candidates: names; empty for all. The control is always there.
        options: how much, by which rule.
        on_done: told the name of every contestant that is finished.
        instruments: what touches the GPU.
        keep: given each record as soon as it is made, so that a later crash loses none.

    Raises:
        NothingToVerify: no candidate that has a build for the GPU has such a name.
        ExternalUnusable: see `external.load`.
        GraphEmpty: the control's graph doesn't do its work.
    """
    run = _Run(dispatch, subject, workload, identities, device, watch, options, instruments)
    control = workload.control
    chosen = chosen_builds(workload, Wanted(candidates), run.own)
    verified = run.verify(control)
    if not verified.passed:  # nothing that is compared with a wrong control could be called exact
        records = [run.record(control, verified, None, {}, ())]
        keep(records[0])
        return run.outcome(records)
    graph = run.graph(control)
    external = run.external(options.against) if options.against else None
    peers, floor = run.peers(on_done), run.alone(run.capture(run.chain.read()))
    control_times = run.alone(graph)
    records = [run.record(control, verified, None, peers, floor)]
    keep(records[0])
    compared = {control.name: run.compare(external, graph)} if external else {}
    on_done(control.name)
    for candidate in (entry for entry, _arch in chosen if entry is not control):
        try:
            verified = run.verify(candidate)
            groups = run.time(graph, candidate) if verified.passed else None
        except LoadError as error:
            run.notes.append(f"{candidate.name} can't be loaded here: {error}")
            continue
        records.append(run.record(candidate, verified, groups, peers, floor))
        keep(records[-1])
        if external and isinstance(groups, tuple):
            compared[candidate.name] = run.compare(external, run.graph(candidate))
        on_done(candidate.name)
    return run.outcome(records, peers, floor, control_times, compared)


class _Run:
    """One workload on one GPU, with its chain."""

    def __init__(
        self,
        dispatch: Dispatch,
        subject: Subject,
        workload: Workload,
        identities: dict[tuple[str, str], str],
        device: torch.device,
        watch: Monitor,
        options: Options,
        instruments: Instruments,
    ) -> None:
        self.here = instruments.device(device)
        self.chain = subject.chain(workload, device, options.seed)
        self._dispatch, self._subject, self._workload = dispatch, subject, workload
        self._identities, self._device, self._watch, self._options = identities, device, watch, options
        self._expected: list[torch.Tensor] = []
        self.notes: list[str] = []
        self.capture, self._verify, self._sample = instruments.capture, instruments.verify, instruments.sample

    def own(self, candidate: Candidate) -> list[str]:
        """The build that the GPU takes, if there is one."""
        found = serves(candidate.builds, self.here.arch)
        return [found] if found else []

    def arch(self, candidate: Candidate) -> str:
        """The build that the GPU takes.

        Raises:
            LoadError: there is none.
        """
        for found in self.own(candidate):
            return found
        raise LoadError(f"candidate {candidate.name} of {self._workload.label} has no build for {self.here}")

    def alone(self, graph: Graph[Any]) -> tuple[float, ...]:
        """Samples of one contestant."""
        return alone(graph, self._watch, self._options.pace, self._sample)

    def paired(self, control: Graph[Any], candidate: Graph[Any]) -> tuple[Group, ...]:
        """Groups of two."""
        return paired(control, candidate, self._watch, self._options.pace, self._sample)

    def verify(self, candidate: Candidate) -> Verification:
        """The exactness gate."""
        return self._verify(
            self._dispatch,
            self._subject,
            self._workload,
            candidate,
            self.arch(candidate),
            self._device,
            list(self._subject.cases(self._workload)),
            self._options.failures,
        )

    def call(self, candidate: Candidate) -> Plan:
        """A candidate as the chain calls it."""
        return self._dispatch.plan_for(
            self._workload.name, candidate.name, self.arch(candidate), KIND, self.here
        )

    def graph(self, candidate: Candidate) -> Graph[list[Sequence[torch.Tensor]]]:
        """The chain, captured and found to do its work.

        Raises:
            GraphEmpty: it doesn't.
        """
        call = self.call(candidate)
        eager = [tensor.clone() for tensor in flat(self.chain.run(call))]
        self._expected = self._expected or eager
        graph = self.capture(lambda: self.chain.run(call))
        self.check(graph, candidate.name)
        return graph

    def check(self, graph: Graph[list[Sequence[torch.Tensor]]], name: str) -> None:
        """Poison what the graph writes, replay it, compare all of it with the control's eager run.

        Raises:
            GraphEmpty: something differs.
        """
        results = flat(graph.result)
        for tensor in results:
            poison(tensor)
        graph.replay()
        wrong = sum(
            int(differing(found, expected).sum())
            for found, expected in zip(results, self._expected, strict=True)
        )
        if wrong:
            raise GraphEmpty(
                f"a replay of {name}'s captured graph left {wrong} values that aren't the control's; it isn't timed"
            )

    def time(self, control: Graph[Any], candidate: Candidate) -> tuple[Group, ...] | str:
        """Paired groups, with the candidate's results checked before and after; a sentence if they are wrong."""
        try:
            graph = self.graph(candidate)
            groups = self.paired(control, graph)
            self.check(graph, candidate.name)
        except GraphEmpty as error:
            return str(error)
        return groups

    def peers(self, on_done: Callable[[str], None]) -> dict[str, tuple[float, ...]]:
        """Times of what people run today; a peer that computes something else isn't timed.

        Raises:
            NothingToVerify: a peer that was named isn't installed.
        """
        wanted = self._options.peers
        known = self._subject.peers(self._workload)
        for name in wanted or ():
            if name not in known:
                raise NothingToVerify(f'there is no peer "{name}" here; installed are {", ".join(known)}')
        found: dict[str, tuple[float, ...]] = {}
        for name, prepare in known.items():
            if wanted is not None and name not in wanted:
                continue
            try:
                found |= self._peer(name, prepare)
            except Exception as error:  # somebody else's code: it may lack a compiler, or dislike this GPU
                self.notes.append(f"peer {name} didn't run: {str(error).strip().splitlines()[:1]}")
            on_done(name)
        return found

    def _peer(self, name: str, prepare: Callable[[Chain], Call]) -> dict[str, tuple[float, ...]]:
        call = prepare(self.chain)
        graph = self.capture(partial(self.chain.run, call))
        for tensor in flat(graph.result):
            poison(tensor)
        graph.replay()
        distance = _distance(flat(graph.result), self._expected)
        if distance < PEER_DISTANCE:
            return {name: self.alone(graph)}
        self.notes.append(
            f"peer {name} isn't timed: its results are {distance:.3g} (relative L2) from the control's"
        )
        return {}

    def external(self, text: str) -> Graph[list[Sequence[torch.Tensor]]]:
        """The chain through somebody's own kernel, captured, if it computes the same function.

        Raises:
            ExternalUnusable: it can't be had, or its results are far from the control's.
        """
        plan = self.call(self._workload.control)
        call = load(text, plan.signature, self.here)
        graph = self.capture(lambda: self.chain.run(call))
        for tensor in flat(graph.result):
            poison(tensor)
        graph.replay()
        distance = _distance(flat(graph.result), self._expected)
        if not distance < PEER_DISTANCE:
            raise ExternalUnusable(
                f"{text} doesn't compute {self._workload.family}: its results are {distance:.3g} (relative L2) from "
                f"the control's, where {PEER_DISTANCE} is allowed"
            )
        return graph

    def compare(self, external: Graph[Any], graph: Graph[Any]) -> str:
        """A candidate's time against the external control's, in words."""
        groups = self.paired(external, graph)
        timing = Timing(
            scope=self.chain.scope, calls=self.chain.calls, replays=self._options.pace.replays, groups=groups
        )
        exactness = Exactness(cases=1, values=1, mismatches=0, against="nothing: time alone", first=None)
        judged = judge(exactness, timing, self._options.rule, is_control=False)
        return f"{self._options.against}: {judged.reason}"

    def outcome(
        self,
        records: Sequence[Record],
        peers: dict[str, tuple[float, ...]] | None = None,
        floor: tuple[float, ...] = (),
        control: tuple[float, ...] = (),
        against: dict[str, str] | None = None,
    ) -> Bench:
        """What was found, with the chain's size."""
        chain = self.chain
        sizes = (chain.scope, chain.calls, chain.bytes, chain.flops)
        label = self._workload.label
        return Bench(
            label,
            str(self.here),
            *sizes,
            tuple(records),
            peers or {},
            floor,
            control,
            against or {},
            tuple(self.notes),
        )

    def record(
        self,
        candidate: Candidate,
        verified: Verification,
        groups: tuple[Group, ...] | str | None,
        peers: dict[str, tuple[float, ...]],
        floor: tuple[float, ...],
    ) -> Record:
        """The evidence; the ledger's rule makes the verdict of it."""
        arch, control = self.arch(candidate), self._workload.control
        build = candidate.builds[arch]
        code = machine_code(self._dispatch.table.root, build, arch, "cubin")
        exactness = exactness_of(verified.gate, verified.against, groups if isinstance(groups, str) else None)
        timing = None
        if isinstance(groups, tuple):
            timing = Timing(
                scope=self.chain.scope,
                calls=self.chain.calls,
                replays=self._options.pace.replays,
                groups=groups,
                bytes=self.chain.bytes,
                flops=self.chain.flops,
                floor_ms=median(floor) if floor else None,
                peers=peers,
            )
        assert self.here.arch is not None
        return make_record(
            measured_at=datetime.now(UTC).replace(microsecond=0).isoformat(),
            family=self._workload.family,
            spec=self._workload.spec,
            workload=self._workload.label,
            candidate=candidate.name,
            control=control.name,
            device=Device(arch=self.here.arch, sm_count=self.here.sm_count, name=self.here.name),
            toolkit=toolkit(self._watch.driver, code.nvrtc),
            source_sha256=build.sha256,
            control_source_sha256=control.builds[self.arch(control)].sha256,
            cubin_sha256=hashlib.sha256(code.data).hexdigest(),
            identity=self._identities[candidate.name, arch],
            exactness=exactness,
            timing=timing,
            rule=self._options.rule,
        )


def _distance(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    import torch

    wide = torch.cat([tensor.double().flatten() for tensor in found])
    truth = torch.cat([tensor.double().flatten() for tensor in expected])
    distance = float((wide - truth).norm() / truth.norm())
    return distance if distance == distance else float("inf")
