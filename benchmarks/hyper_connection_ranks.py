"""The tensor-parallel boundary with one rank a GPU: every route's bits against the control's, and its time.

All ranks have all weights and the same inputs, so that each can compare its own outputs with the control that it
runs alone. Wrong values are counted on the device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import all_reduce_checks
import torch
import torch.distributed as distributed
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.graphs import capture, replay_ms
from kernwright.evidence.ranks import slowest
from kernwright.families.hyper_connection.evidence import EVIDENCE, BoundaryChain
from kernwright.families.hyper_connection.inputs import INPUT_KINDS
from kernwright.generated import dispatch
from kernwright.runtime import LoadError, Plan
from kernwright.runtime.communicator.group import GroupCommunicator
from kernwright.runtime.device import current, serves
from kernwright.table import Workload

SEED = 700
GENERATIONS = 146_000
"""Calls after which a 16-bit tag has wrapped twice."""
AUXILIARY = 512
"""Replays beside an all-reduce on another stream."""


def workloads(comm: GroupCommunicator) -> list[Workload]:
    """Those of the communicator's world size whose channel is open."""
    return [
        work
        for work in dispatch.DISPATCH.table.workloads
        if work.family == "hyper_connection"
        and work.fields["world_size"] == comm.world_size
        and comm.owns(work.spec)
    ]


def plans(work: Workload, comm: GroupCommunicator, kind: str) -> tuple[dict[str, Plan], dict[str, str]]:
    """A plan of every candidate that this GPU can run, the control first; and why others can't."""
    here = current(comm.device)
    found: dict[str, Plan] = {}
    left_out: dict[str, str] = {}
    for candidate in work.candidates:
        arch = serves(candidate.builds, here.arch)
        if arch is None:
            left_out[candidate.name] = f"no build for {here.arch}"
            continue
        try:
            found[candidate.name] = dispatch.DISPATCH.plan_named(
                work.name, candidate.name, arch, kind, here, comm=comm if candidate.capabilities else None
            )
        except LoadError as error:
            left_out[candidate.name] = str(error)
    return found, left_out


def different(found: Any, expected: Any) -> torch.Tensor:
    """Wrong values among all outputs, on the device."""
    pairs = zip(found, expected, strict=True)
    return sum(all_reduce_checks.different(a, b) for a, b in pairs)  # type: ignore[return-value]


def every_route(work: Workload, comm: GroupCommunicator) -> dict[str, Any]:
    """96 distinct weight pairs, each on all kinds of inputs, and the other kinds of the op."""
    wrong: dict[str, torch.Tensor] = {}
    calls, left_out = 0, {}
    chain = BoundaryChain.make(work, comm.device, SEED)
    states = []
    for seed in (1, 2):
        for inputs in INPUT_KINDS:
            given = EVIDENCE.tensors(work, Case("boundary", inputs, seed), comm.device)
            states.append([given[name] for name in ("residual", "block", "injection")])
    for kind in ("boundary", "first", "combine", "final"):
        made, left_out = plans(work, comm, kind)
        control = made.pop(work.control.name)
        if kind == "boundary":
            cases = [[*state, *weights] for weights in chain.weights for state in states]
        else:
            given = [EVIDENCE.tensors(work, Case(kind, inputs, 5), comm.device) for inputs in INPUT_KINDS]
            cases = [[case[buffer.name] for buffer in control.signature.inputs] for case in given]
        for name, plan in made.items():
            wrong.setdefault(name, torch.zeros((), dtype=torch.int64, device=comm.device))
            for case in cases:
                wrong[name] += different(plan(case), control(case))
                calls += 1
    counts = {name: int(count) for name, count in wrong.items()}
    return {"calls": calls, "wrong": sum(counts.values()), "by_candidate": counts, "left_out": left_out}


def beside_an_all_reduce(work: Workload, comm: GroupCommunicator) -> dict[str, Any]:
    """A graph of 96 boundaries replayed while the two-input all-reduce runs on a stream and a channel of its own."""
    chain = BoundaryChain.make(work, comm.device, SEED)
    made, _ = plans(work, comm, "boundary")
    expected = chain.run(made.pop(work.control.name))
    ranks = all_reduce_checks.Ranks(comm)
    given = ranks.values(7168, torch.bfloat16, 11)
    total = all_reduce_checks.wanted("sum2", given)
    wrong = torch.zeros((), dtype=torch.int64, device=comm.device)
    auxiliary = torch.cuda.Stream()
    for plan in made.values():
        graph = capture(lambda plan=plan: chain.run(plan))
        for _ in range(AUXILIARY // len(made)):
            auxiliary.wait_stream(torch.cuda.current_stream())
            graph.replay()
            with torch.cuda.stream(auxiliary):
                for _ in range(4):
                    bad = all_reduce_checks.different(all_reduce_checks.call("sum2", given, ranks), total)
            torch.cuda.current_stream().wait_stream(auxiliary)
            wrong += bad
            for found, right in zip(graph.result, expected, strict=True):
                wrong += different(found, right)
    return {"replays": AUXILIARY, "wrong": int(wrong)}


def after_wraps(work: Workload, comm: GroupCommunicator) -> dict[str, Any]:
    """The tag wraps twice, and everything is right still."""
    chain = BoundaryChain.make(work, comm.device, SEED)
    made, _ = plans(work, comm, "boundary")
    expected = chain.run(made.pop(work.control.name))
    wrong = torch.zeros((), dtype=torch.int64, device=comm.device)
    started = time.perf_counter()
    for plan in made.values():
        graph = capture(lambda plan=plan: chain.run(plan))
        for _ in range(GENERATIONS // len(chain.weights)):
            graph.replay()
        for found, right in zip(graph.result, expected, strict=True):
            wrong += different(found, right)
    torch.cuda.synchronize()
    comm.check()
    seconds = round(time.perf_counter() - started, 1)
    return {"generations": GENERATIONS, "candidates": len(made), "wrong": int(wrong), "seconds": seconds}


CHECKS: dict[str, Callable[[Workload, GroupCommunicator], dict[str, Any]]] = {
    "every route": every_route,
    "beside an all-reduce": beside_an_all_reduce,
    "after wraps of the tag": after_wraps,
}


def milliseconds(work: Workload, comm: GroupCommunicator, groups: int, replays: int) -> dict[str, Any]:
    """96 boundaries of every route, and of the baselines on one GPU; the slowest rank, in turns."""
    chain = BoundaryChain.make(work, comm.device, SEED)
    made, left_out = plans(work, comm, "boundary")
    runs: dict[str, Callable[..., Any]] = {
        **made,
        **{name: prepare(chain) for name, prepare in EVIDENCE.baselines(work).items()},
    }
    graphs = {name: capture(lambda run=run: chain.run(run)) for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for index in range(groups + 1):  # the first warms up
        for name in list(graphs) if index % 2 else list(reversed(graphs)):
            distributed.barrier()
            taken = slowest(replay_ms(graphs[name], replays))
            if index:
                samples[name].append(taken)
    times = {name: round(statistics.median(values), 5) for name, values in samples.items()}
    return {"ms": times, "left_out": left_out, "control": work.control.name}


def run(
    comm: GroupCommunicator, say: Callable[[str], None], *, checks: bool, groups: int, replays: int
) -> dict[str, Any]:
    """Checks and times of every workload; the largest count of any rank is what counts."""
    document: dict[str, Any] = {"checks": {}, "times": {}}
    for work in workloads(comm):
        for name, check in CHECKS.items() if checks else ():
            torch.cuda.synchronize()
            distributed.barrier()
            try:
                found = check(work, comm)
            except Exception as error:  # the next check may still tell something
                found = {"wrong": -1, "error": f"{type(error).__name__}: {error}"}
            everyone: list[dict[str, Any]] = [{} for _ in range(comm.world_size)]
            distributed.all_gather_object(everyone, found, group=comm.group)
            worst = [entry for entry in everyone if entry["wrong"]]
            document["checks"][f"{work.label}: {name}"] = {**everyone[0], "wrong_ranks": worst}
            say(f"{work.label}, {name}: {'right' if not worst else f'WRONG {worst[0]}'} {everyone[0]}")
            if any(entry["wrong"] == -1 for entry in everyone):
                comm.reset()
        document["times"][work.label] = found_times = milliseconds(work, comm, groups, replays)
        say(f"{work.label}: ms per 96 boundaries {found_times['ms']}")
    return document
