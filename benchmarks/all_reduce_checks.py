"""Checks the all-reduce on real GPUs, one process a rank; the cases cover known bugs of other implementations.

Each check gives a dict with what it counted. A wrong value is counted on the device, so that nothing waits for
the host between calls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from _all_reduce_routes import plan_of_route
from kernwright.evidence.graphs import Graph, capture
from kernwright.families.all_reduce.reference import in_rank_order, local_sum
from kernwright.generated import dispatch
from kernwright.runtime import ChannelError, LoadError, PeerTimeout
from kernwright.runtime.communicator.owner import ChannelOwner

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROUTES = ("tagged_words", "one_stage", "two_stage")
KINDS = ("staged", "sum2", "symmetric")
CYCLES_A_MICROSECOND = 1500
"""Of `torch.cuda._sleep`, roughly: delays need no precision."""


@dataclass
class Ranks:
    """This rank among the others, and its communicator."""

    comm: ChannelOwner

    @property
    def rank(self) -> int:
        return self.comm.rank

    def mine(self, given: list[torch.Tensor]) -> torch.Tensor:
        """What this process contributes: its rank's tensor, or all of them, if all ranks are here."""
        return torch.stack(given) if self.comm.local_ranks > 1 else given[self.rank]

    @property
    def size(self) -> int:
        return self.comm.world_size

    def values(self, numel: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
        """What every rank contributes: magnitudes spread, so that the order of adding matters."""
        made = []
        for rank in range(self.size):
            generator = torch.Generator(self.comm.device).manual_seed(1000 * seed + rank)
            scale = (
                torch.randint(-3, 4, (numel,), generator=generator, device=self.comm.device).float().exp2()
            )
            drawn = torch.randn(numel, generator=generator, device=self.comm.device)
            made.append((drawn * scale).to(dtype))
        return made


def different(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How many values differ in their bits; a NaN equals any NaN."""
    integer = torch.int32 if found.dtype == torch.float32 else torch.int16
    expected = expected.expand_as(found)
    unequal = found.reshape(-1).view(integer) != expected.reshape(-1).view(integer)
    both = found.reshape(-1).isnan() & expected.reshape(-1).isnan()
    return (unequal & ~both).sum()


def largest(ranks: Ranks) -> int:
    """Bytes of the largest payload that a channel of all_reduce carries."""
    layouts = [ranks.comm.channel(name).plan.offsets for name in ranks.comm.channels]
    return max(offsets["capacity"] for offsets in layouts if "capacity" in offsets)


def sizes(ranks: Ranks, dtype: torch.dtype) -> Iterator[int]:
    """Elements: small and odd ones, rows, those astride every border of the parts, the largest."""
    element = dtype.itemsize
    bytes_of: set[int] = {element, 7 * element, 8 * element, 9 * element, 1023 * element}
    bytes_of |= {rows * 7168 * element for rows in (1, 2, 8, 16)} | {(7168 * 4 + 1) * element}
    for work in dispatch.DISPATCH.table.workloads:
        if (
            work.family == "all_reduce"
            and work.fields["world_size"] == ranks.size
            and ranks.comm.owns(work.spec)
        ):
            for part in work.parts:
                bytes_of |= {part.high + shift * element for shift in (-1, 0, 1, 2)}
            bytes_of.add(work.channel["capacity"])
    most = largest(ranks)
    return iter(sorted({size // element for size in bytes_of if element <= size <= most}))


def call(kind: str, given: list[torch.Tensor], ranks: Ranks) -> torch.Tensor:
    """One dispatched call; `sum2` adds the reversed tensor."""
    mine = ranks.mine(given)
    if kind == "staged":
        return dispatch.all_reduce(mine, comm=ranks.comm)
    if kind == "sum2":
        return dispatch.all_reduce_sum2(mine, mine.flip(-1), comm=ranks.comm)
    (view,) = dispatch.acquire_outputs([given[0].shape], mine.dtype, comm=ranks.comm)
    view.copy_(mine)
    return dispatch.all_reduce_symmetric((view,), comm=ranks.comm)[0]


def wanted(kind: str, given: list[torch.Tensor]) -> torch.Tensor:
    """The right answer."""
    return in_rank_order([local_sum(t, t.flip(0)) for t in given] if kind == "sum2" else given)


def shapes_and_kinds(ranks: Ranks) -> dict[str, Any]:
    """Every dtype, kind and size as dispatched."""
    wrong, calls = torch.zeros((), dtype=torch.int64, device=ranks.comm.device), 0
    for dtype in DTYPES:
        for index, numel in enumerate(sizes(ranks, dtype)):
            given = ranks.values(numel, dtype, index)
            for kind in KINDS:
                wrong += different(call(kind, given, ranks), wanted(kind, given))
                calls += 1
    return {"calls": calls, "wrong": int(wrong)}


def every_route(ranks: Ranks) -> dict[str, Any]:
    """All three routes give the same bits at sizes that each can carry; odd addresses too."""
    wrong, calls = torch.zeros((), dtype=torch.int64, device=ranks.comm.device), 0
    left_out: set[str] = set()
    for dtype in DTYPES:
        for numel in (ranks.size * 4, 7168, 7168 + 1, 4 * 7168, 6 * 7168 + 13):
            given = ranks.values(numel, dtype, numel)
            for route in ROUTES:
                try:
                    plan = plan_of_route(route, numel, dtype, comm=ranks.comm)
                except LoadError:  # the CTAs of all local ranks together don't fit on the GPU
                    left_out.add(route)
                    continue
                for shift in (0, 1):
                    mine = ranks.mine(given)
                    block = torch.empty(2, mine.numel() + shift, dtype=dtype, device=ranks.comm.device)
                    tensor, out = (part[shift:].view(mine.shape) for part in block)
                    tensor.copy_(mine)
                    plan([tensor], [out])
                    wrong += different(out, in_rank_order(given))
                    calls += 1
    return {"calls": calls, "wrong": int(wrong), "not resident": sorted(left_out)}


def special_values(ranks: Ranks) -> dict[str, Any]:
    """Zeros of both signs, overflow, infinities, NaN."""
    inf, nan = float("inf"), float("nan")
    rows = [
        [0.0],
        [-0.0],
        [60000.0],
        [inf],
        [nan],
        [-inf if ranks.rank else inf],
        [1.0 if ranks.rank else nan],
    ]
    wrong = 0
    for dtype in DTYPES:
        given = []
        for rank in range(ranks.size):
            other = [[-inf if rank else inf], [1.0 if rank else nan]]
            given.append(torch.tensor([*rows[:5], *other], device=ranks.comm.device).to(dtype).view(-1))
        wrong += int(different(call("staged", given, ranks), in_rank_order(given)))
    return {"calls": len(DTYPES), "wrong": wrong}


def changing(ranks: Ranks, counter: torch.Tensor, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Every rank's contribution as a function of a counter on the device."""
    index = torch.arange(numel, device=ranks.comm.device, dtype=torch.int64)
    return [
        (((index * 7 + rank * 13 + counter * (rank + 1)) % 509 - 254).float() / 64).to(dtype)
        for rank in range(ranks.size)
    ]


def captured(ranks: Ranks, numel: int, calls: int, kind: str, state: torch.Tensor) -> Graph[None]:
    """A graph of calls whose values change from replay to replay; `state` is (counter, wrong)."""
    counter, wrong = state[0], state[1]

    def run() -> None:
        for _ in range(calls):
            counter.add_(1)
            given = changing(ranks, counter, numel, torch.bfloat16)
            wrong.add_(different(call(kind, given, ranks), wanted(kind, given)))

    return capture(run)


def replays(ranks: Ranks, count: int) -> dict[str, Any]:
    """Graphs of different M, one with an odd number of calls, replayed in random order with a late rank."""
    state = torch.zeros(2, dtype=torch.int64, device=ranks.comm.device)
    shapes = [(7168, 2, "staged"), (7168, 3, "symmetric"), (16 * 7168, 2, "staged"), (4 * 7168, 1, "sum2")]
    graphs = [captured(ranks, *shape, state) for shape in shapes]
    order, late = random.Random(7), random.Random(ranks.rank)
    started = time.perf_counter()
    for replay in range(count):
        if ranks.rank and replay % 50 == 0:
            torch.cuda._sleep(late.randrange(200) * CYCLES_A_MICROSECOND)
        graphs[order.randrange(len(graphs))].replay()
    torch.cuda.synchronize()
    ranks.comm.check()
    return {"replays": count, "wrong": int(state[1]), "seconds": round(time.perf_counter() - started, 2)}


def skewed_without_waiting(ranks: Ranks) -> dict[str, Any]:
    """Three calls, then 64 large staged ones, without a synchronisation; one rank late by a millisecond."""
    wrong = torch.zeros((), dtype=torch.int64, device=ranks.comm.device)
    most = largest(ranks)
    for numel, depth in ((7168, 3), (most // 2, 64)):
        given = ranks.values(numel, torch.bfloat16, depth)
        expected = in_rank_order(given)
        torch.cuda.synchronize()
        if ranks.rank == 1:
            torch.cuda._sleep(1000 * CYCLES_A_MICROSECOND)
        for index in range(depth):
            factor = float(2 ** (index % 3))
            found = dispatch.all_reduce(ranks.mine(given) * factor, comm=ranks.comm)
            wrong += different(found, expected * factor)
    return {"calls": 67, "wrong": int(wrong)}


def two_streams(ranks: Ranks, count: int) -> dict[str, Any]:
    """Eager calls by turns on two streams are serialised."""
    wrong = torch.zeros((), dtype=torch.int64, device=ranks.comm.device)
    given = ranks.values(7168, torch.bfloat16, 3)
    expected = in_rank_order(given)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for index in range(count):
        with torch.cuda.stream(streams[index % 2]):
            found = dispatch.all_reduce(ranks.mine(given), comm=ranks.comm)
            bad = different(found, expected)
        torch.cuda.current_stream().wait_stream(streams[index % 2])
        wrong += bad
    return {"calls": count, "wrong": int(wrong)}


def overlapping_graphs(ranks: Ranks, timeout_s: float = 2.0) -> dict[str, Any]:
    """Two graphs on two streams at once, one rank late: the result is right, or an error says so."""
    with dispatch.communicator(ranks.comm.group, timeout_s=timeout_s) as comm:
        mine = Ranks(comm)
        state = torch.zeros(2, dtype=torch.int64, device=comm.device)
        graphs = [captured(mine, 7168, 4, "staged", state) for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        started = time.perf_counter()
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                if mine.rank == 1:
                    torch.cuda._sleep(3000 * CYCLES_A_MICROSECOND)
                graph.replay()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        try:
            comm.check()
            outcome = "not noticed"
        except ChannelError as error:
            outcome = type(error).__name__
        comm.reset()
        given = mine.values(7168, torch.bfloat16, 9)
        wrong = int(different(call("staged", given, mine), in_rank_order(given)))
    return {"outcome": outcome, "seconds": round(seconds, 2), "wrong": wrong}


def a_rank_stays_away(ranks: Ranks, timeout_s: float = 1.0) -> dict[str, Any]:
    """The last rank skips a call: the others get PeerTimeout in time, and after reset the next call is right."""
    with dispatch.communicator(ranks.comm.group, timeout_s=timeout_s) as comm:
        mine = Ranks(comm)
        given = mine.values(7168, torch.bfloat16, 4)
        wrong = int(different(call("staged", given, mine), in_rank_order(given)))
        distributed.barrier(comm.group)
        found, poisoned = "nothing", True
        started = time.perf_counter()
        if mine.rank != mine.size - 1:
            result = call("staged", given, mine)
            torch.cuda.synchronize()
            poisoned = bool(result.isnan().all())
            try:
                comm.check()
            except PeerTimeout as error:
                found = f"PeerTimeout: rank {error.rank} for rank {error.peer}"
        seconds = time.perf_counter() - started
        comm.reset()
        wrong += int(different(call("staged", given, mine), in_rank_order(given)))
        comm.check()
    right = mine.rank == mine.size - 1 or (
        found.startswith("PeerTimeout") and timeout_s <= seconds < timeout_s + 2
    )
    return {"found": found, "seconds": round(seconds, 2), "wrong": wrong + (not right) + (not poisoned)}


def subgroups(ranks: Ranks) -> dict[str, Any]:
    """Even and odd ranks, made after the world group; both at once."""
    groups = [
        distributed.new_group([rank for rank in range(ranks.size) if rank % 2 == parity]) for parity in (0, 1)
    ]
    if ranks.size < 4:
        return {"calls": 0, "wrong": 0, "note": f"{ranks.size} ranks have no subgroups of several"}
    with dispatch.communicator(groups[ranks.rank % 2]) as comm:
        mine = Ranks(comm)
        wrong, calls = 0, 0
        for seed, numel in enumerate((1, 7168, 16 * 7168)):
            given = mine.values(numel, torch.bfloat16, 100 * (ranks.rank % 2) + seed)
            for kind in KINDS:
                wrong += int(different(call(kind, given, mine), wanted(kind, given)))
                calls += 1
    return {"calls": calls, "wrong": wrong}


CHECKS: dict[str, Callable[[Ranks], dict[str, Any]]] = {
    "shapes and kinds": shapes_and_kinds,
    "every route": every_route,
    "special values": special_values,
    "10,000 replays": lambda ranks: replays(ranks, 10_000),
    "1,000 replays": lambda ranks: replays(ranks, 1_000),
    "skewed without waiting": skewed_without_waiting,
    "two streams": lambda ranks: two_streams(ranks, 400),
    "overlapping graphs": overlapping_graphs,
    "a rank stays away": a_rank_stays_away,
    "subgroups": subgroups,
}
LOCAL = ("shapes and kinds", "every route", "special values", "1,000 replays")
"""What ranks that share a process can check."""


def run(ranks: Ranks, say: Callable[[str], None]) -> dict[str, Any]:
    """The checks, on all ranks of the job; what any rank found wrong counts."""
    local = ranks.comm.local_ranks > 1
    document = {}
    for name, check in CHECKS.items():
        if local != (name in LOCAL) and (local or name == "1,000 replays"):
            continue
        torch.cuda.synchronize()
        if not local:
            distributed.barrier()
        started = time.perf_counter()
        try:
            found = check(ranks)
        except Exception as error:  # the next check may still tell something
            found = {"wrong": -1, "error": f"{type(error).__name__}: {error}"}
        everyone = [found]
        if not local:
            everyone = [{} for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(everyone, found)
        worst = [entry for entry in everyone if entry["wrong"]]
        document[name] = {**everyone[0], "wrong_ranks": worst}
        verdict = "right" if not worst else f"WRONG on {len(worst)} ranks: {worst[0]}"
        say(f"{name}: {verdict} {everyone[0]} in {time.perf_counter() - started:.1f} s")
        if any(entry["wrong"] == -1 for entry in everyone):
            ranks.comm.reset()
    return document
