"""What one rank sees when steps that ranks take together fail; run as `rank_steps_worker.py RANK COUNT STORE RESULT`.

Memory is fake and on the CPU; exchanges are real, over Gloo. After every scenario the application's own collectives
run, which receive something else where a rank is in another collective than its peers.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as distributed
from harness import tables as make
from kernwright.evidence.rank_context import RankContext
from kernwright.runtime import Device, LoadError, warm
from kernwright.runtime.communicator import channel as channel_module
from kernwright.runtime.communicator import group as group_module
from kernwright.runtime.communicator import imagined
from kernwright.runtime.communicator.digests import route_digests
from kernwright.runtime.communicator.group import GroupCommunicator
from kernwright.runtime.communicator.memory import SharedMemory
from kernwright.runtime.loader import machine_code
from kernwright.runtime.request import Request

GPU = Device("sm_90", 132, "NVIDIA H200")
SPECS = ("first", "second")
SIZE = 64
LATE = 0.05
"""Seconds that a rank is late where its peers must wait for it."""

rank, count = int(sys.argv[1]), int(sys.argv[2])
fails: set[tuple[str, int]] = set()
"""Steps that fail on this rank, with the number of the channel."""
late: set[str] = set()
"""Steps in which this rank is late."""
events: list[tuple[str, float, float]] = []
"""Steps of this rank with the times when they began and ended; the clock is the host's."""


def step(name: str, number: int = 0) -> None:
    begun = time.monotonic()
    if name in late:
        time.sleep(LATE)
    events.append((name, begun, time.monotonic()))
    if (name, number) in fails:
        raise RuntimeError(f"no luck with {name} {number}\nsecond line")


class Memory(SharedMemory):
    """Memory of a rank, whose steps fail where they are told to."""

    backend = "symmetric_memory"
    made: ClassVar[Counter[str]] = Counter()
    """How often each backend has allocated in a scenario."""

    def __init__(self, size: int, device: torch.device) -> None:
        del device
        self.number = self.made[self.backend] % len(SPECS)
        self.made[self.backend] += 1
        self.name = f"{self.backend} {{}}"
        step(self.name.format("allocate"), self.number)
        self.own, self.offer = torch.zeros(size, dtype=torch.uint8), (rank, self.number)

    def reach(self, offers: Any, group: Any) -> tuple[int, ...]:
        assert offers == [(peer, self.number) for peer in range(count)]
        assert distributed.get_world_size(group) == count
        step(self.name.format("reach"), self.number)
        return tuple(range(count))

    def leave(self) -> None:
        step(self.name.format("leave"), self.number)

    def free(self) -> None:
        step(self.name.format("free"), self.number)


class Ipc(Memory):
    backend = "ipc"


def table(*, names: tuple[str, ...] = ("fast", "control"), gain: float = 0.1, records: bool = True) -> Any:
    works = []
    for spec in SPECS:
        candidates = [
            make.candidate("control", capabilities=("talks",)),
            make.candidate("fast", capabilities=("talks",)),
        ]
        entry = make.workload(
            *[c for c in candidates if c.name in names],
            spec=spec,
            world_size=count,
            eps=1e-6 if spec == "first" else 1e-5,
            records=(make.record("fast", gain=gain),) if records else (),
        )
        works.append(replace(entry, channel={"record": 0, "size": SIZE}))
    return make.dispatch_of(*works)


@contextmanager
def told(*failing: tuple[int, str, int], late_rank: int | None = None, in_steps: str = "") -> Iterator[None]:
    """Steps that fail, as (rank, step, channel); and steps in which a rank is late."""
    Memory.made.clear()
    events.clear()
    fails.update((name, number) for where, name, number in failing if where == rank)
    late.update(in_steps.split(", ") if late_rank == rank else ())
    try:
        yield
    finally:
        fails.clear()
        late.clear()


def result_of(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call gives, and the error that it raises, as a sentence."""
    try:
        return call(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def application(tag: str) -> bool:
    """Whether the application's own collectives give what they should."""
    everyone: list[Any] = [None] * count
    distributed.all_gather_object(everyone, (tag, rank))
    total = torch.tensor([float(rank + 1), 10.0])
    distributed.all_reduce(total)
    right = [(tag, peer) for peer in range(count)]
    return everyone == right and total.tolist() == [count * (count + 1) / 2, 10.0 * count]


def times(name: str) -> list[tuple[float, float]]:
    """When a step began first and ended last, on each rank."""
    mine = [(begun, ended) for event, begun, ended in events if event.endswith(name)]
    everyone: list[Any] = [None] * count
    distributed.all_gather_object(everyone, (min(mine)[0], max(mine, key=lambda one: one[1])[1]))
    return everyone


def opened(dispatch: Any = None, **more: Any) -> Any:
    """A communicator, without what `Dispatch.communicator` adds."""
    return GroupCommunicator((dispatch or table()).table, device=torch.device("cpu"), **more)


def making() -> Iterator[tuple[str, Any]]:
    """Each step of making a communicator fails on each rank, by the first backend, or by both."""
    for who in range(count):
        for name, numbers in (("allocate", (0, 1)), ("reach", (0, 1))):
            for number in numbers:
                one = (who, f"symmetric_memory {name}", number)
                for failing in ([one], [one, ((who + 1) % count, f"ipc {name}", number)]):
                    with told(*failing, late_rank=(who + 1) % count, in_steps="symmetric_memory leave"):
                        comm = opened()
                        tag = f"{name} {number} on {who}, {len(failing)} fail"
                        out: dict[str, Any] = {"right": application(tag), "backend": comm.backend}
                        out["absence"], out["channels"] = comm.absence("first"), comm.channels
                        out["did"] = [event for event, _, _ in events]
                        if name == "reach":
                            out["freed after all left"] = min(
                                begun for begun, _ in times("symmetric_memory free")
                            ) >= max(ended for _, ended in times("symmetric_memory leave"))
                        yield tag, out
                        comm.close()


def arguments() -> Iterator[tuple[str, Any]]:
    """One rank is given what isn't allowed."""
    for tag, wrong in (
        ("backend", {"backend": "pigeons"}),
        ("spec", {"specs": ["third"]}),
        ("timeout", {"timeout_s": 0}),
    ):
        with told():
            _, error = result_of(lambda wrong=wrong: opened(**(wrong if rank == 1 else {})))
            yield tag, {"right": application(tag), "error": error}


def disagreeing() -> Iterator[tuple[str, Any]]:
    """One rank has another table, or another policy."""
    for tag, dispatch in (
        ("records", table(gain=0.2 if rank == 1 else 0.1)),
        ("no record", table(records=rank != 1)),
        ("candidates", table(names=("control",) if rank == 1 else ("control", "fast"))),
    ):
        with told():
            _, error = result_of(lambda dispatch=dispatch: opened(dispatch))
            yield tag, {"right": application(tag), "error": error}
    dispatch = table()
    with told(), dispatch.policy("control" if rank == 1 else "measured"):
        _, error = result_of(lambda: opened(dispatch))
        yield "policy", {"right": application("policy"), "error": error}


def closing() -> Iterator[tuple[str, Any]]:
    """Closing and resetting, with failures, and with a rank that is late."""
    for name in ("leave", "free", "finish"):
        for who in range(count):
            with told((who, "finish" if name == "finish" else f"symmetric_memory {name}", 0)):
                comm = opened()
                comm.finish = lambda: step("finish")
                _, error = result_of(comm.close)
                tag = f"close, {name} on {who}"
                out = {"right": application(tag), "error": error, "channels": comm.channels}
                out["kept"] = len(channel_module._kept)
                channel_module._kept.clear()
                out["did"] = [event for event, _, _ in events if event != "finish"]
                yield tag, out
    for name in ("finish", "clear"):
        for who in range(count):
            with told(late_rank=who, in_steps="finish, clear"):
                comm = opened()
                comm.finish = lambda: step("finish")
                (one, _) = (comm.channel(spec) for spec in SPECS)
                one.clear = lambda: step("clear")
                fails.update({(name, 0)} if rank == who else ())
                _, error = result_of(comm.reset)
                tag = f"reset, {name} on {who}"
                yield tag, {"right": application(tag), "error": error, "generation": comm.generation}
                fails.clear()
                events.clear()
                comm.reset()
                now = time.monotonic()
                first = next(event for event in events if event[0] == "finish")
                every: list[Any] = [None] * count
                mine = (first[2], next(e[1] for e in events if e[0] == "clear"), events[-1][2], now)
                distributed.all_gather_object(every, mine)
                yield (
                    f"late {tag}",
                    {
                        "right": application(tag),
                        "cleared after all ended": min(e[1] for e in every) >= max(e[0] for e in every),
                        "left after all were clear": min(e[3] for e in every) >= max(e[2] for e in every),
                        "generation": comm.generation,
                    },
                )
                comm.close()
    for captured_by in range(count):
        with told():
            comm = opened()
            if rank == captured_by:
                channel_module._kept[id(comm.channel("first"))] = comm.channel("first")
            comm.close()
            tag = f"close, captured by {captured_by}"
            yield tag, {"right": application(tag), "did": [event for event, _, _ in events]}
    with told():
        channel_module._kept.clear()
        entered = opened()
        _, error = result_of(lambda: _leaves_the_block(entered))
        yield (
            "an error leaves the block",
            {
                "right": application("block"),
                "error": error,
                "did": [event for event, _, _ in events],
                "kept": sorted(channel.plan.name for channel in channel_module._kept.values()),
                "absence": entered.absence("first"),
            },
        )


def _leaves_the_block(comm: Any) -> None:
    """Rank 1 leaves by an error; its peers go on, and never close."""
    if rank == 1:
        comm.channel("first")._record.end = lambda: step("end")
        fails.add(("end", 0))
        with comm:
            raise KeyError("of the application")


def decided(dispatch: Any, comm: Any, policy: str = "measured") -> Any:
    """A call of the first spec, decided and loaded."""
    return dispatch.resolve(request_of(dispatch, "first"), GPU, policy, comm, False)


def request_of(dispatch: Any, spec: str) -> Request:
    work = next(work for work in dispatch.table.workloads if work.spec == spec)
    return dispatch.request(work, "boundary")


def reason_of(dispatch: Any, comm: Any, name: str) -> str:
    """What `explain` says of a candidate of the first spec."""
    selection = dispatch.select(request_of(dispatch, "first"), GPU, "measured", comm, False)
    return next(decision.reason for decision in selection.decisions if decision.candidate == name)


unloadable: dict[int, set[str]] = {}
"""Candidates that don't load, by rank."""
asked: list[str] = []
"""Builds that this rank was asked to load."""


def load(_comm: Any, _root: Any, build: Any, _arch: str, _device: Any) -> Any:
    name = build.source.partition(".")[0]
    asked.append(name)
    if name in unloadable.get(rank, ()):
        raise LoadError(f"{name} has no room")
    return make.FakeModule([])


def loading() -> Iterator[tuple[str, Any]]:
    """Candidates that don't load on one rank, at once and later, and calls that are warmed up differently."""
    GroupCommunicator.target = property(lambda _: GPU)
    GroupCommunicator.load = load
    cpu = {"device": torch.device("cpu")}
    for who in range(count):
        for names in (["fast"], ["fast", "control"]):
            unloadable.clear()
            unloadable[who] = set(names)
            asked.clear()
            with told():
                dispatch = table()
                comm = dispatch.communicator(**cpu)
                selection, _ = decided(dispatch, comm)
                tag = f"{names} on {who}"
                out = {"right": application(tag), "reason": reason_of(dispatch, comm, "fast")}
                out["chosen"] = selection.chosen and selection.chosen.candidate.name
                out["asked"] = sorted(set(asked))
                out["elsewhere"] = dict(dispatch._unusable)
                yield tag, out
                comm.close()
    unloadable.clear()
    for tag in ("another choice", "no room at all"):
        with told():
            if rank == 1 and tag == "another choice":  # such as for another compiler's machine code
                GroupCommunicator.target = property(lambda _: replace(GPU, sm_count=114))
            if rank == 1 and tag == "no room at all":
                GroupCommunicator.load = lambda *_: step("load")
                fails.add(("load", 0))
            _, error = result_of(lambda: table().communicator(**cpu))
            GroupCommunicator.target, GroupCommunicator.load = property(lambda _: GPU), load
            did = [event for event, _, _ in events]
            yield tag, {"right": application(tag), "error": error, "did": did}
    with told():
        dispatch = table()
        comm = dispatch.communicator(**cpu)
        operator: Any = dispatch.operator("hyper_connection")
        unloadable[1] = {"control"}
        # What another policy takes is loaded in the call, and fails there; every time.
        errors = [result_of(lambda: decided(dispatch, comm, policy="control"))[1] for _ in range(2)]
        yield "in a call", {"right": application("call"), "errors": errors}
        operator._resolved["remembered"] = operator._known["remembered"] = "as it was"
        first, second = (dispatch.warm_up(comm=comm, policy=policy) for policy in ("measured", "control"))
        selection, _ = decided(dispatch, comm, policy="control")
        yield (
            "warmed up",
            {
                "right": application("warm"),
                "chosen": [entry.chosen for entry in (*first, *second)],
                "called": selection.chosen,
                "reason": reason_of(dispatch, comm, "control"),
                "remembered": len(operator._resolved) + len(operator._known),
            },
        )
        # Of a communicator that knows of no failure yet, so that there are two rounds.
        with table().communicator(**cpu) as fresh:
            again = dispatch.warm_up(workloads=iter(SPECS), comm=fresh, policy="control")
        yield "an iterator", {"right": application("iterator"), "chosen": [entry.chosen for entry in again]}
        for tag, wrong in (
            ("unknown workload", {"workloads": ["third"]}),
            ("fewer workloads", {"workloads": ["first"]}),
            ("policy", {"policy": "control"}),
        ):
            unloadable.clear()
            _, error = result_of(
                lambda wrong=wrong: dispatch.warm_up(comm=comm, **(wrong if rank == 1 else {}))
            )
            yield tag, {"right": application(tag), "error": error}


class Evidence:
    """Of a family whose ranks talk over a channel."""

    def call_before(self, case: Any) -> int:
        del case
        return 7

    def after_call(self, workload: Any, call: int, words: torch.Tensor) -> None:
        del workload
        step("after_call")
        words.fill_(call)

    def most(self, *_: Any) -> int:
        return 1

    chain_of_rank = most


def measuring() -> Iterator[tuple[str, Any]]:
    """What `verify` and `bench` do together before a case, and before and behind a sample."""
    for name in ("after_call", "finish", "nothing"):
        for who in range(count):
            with told(late_rank=(who + 1) % count, in_steps="after_call"):
                comm = opened()
                place = RankContext(torch.device("cpu"), comm)
                work = table().table.workloads[0]
                fails.update({(name, 0)} if rank == who else ())
                evidence: Any = Evidence()
                comm.finish = lambda: step("finish")
                if name == "finish":
                    _, error = result_of(place.settle)
                else:
                    _, error = result_of(partial(place.begin, evidence, work, None))
                now = time.monotonic()
                tag = f"{name} on {who}"
                out = {"right": application(tag), "error": error}
                if name != "finish":
                    written = max(ended for _, ended in times("after_call"))
                    everyone: list[Any] = [None] * count
                    distributed.all_gather_object(everyone, now)
                    out["all had written"] = min(everyone) >= written
                yield tag, out
                fails.clear()
                comm.close()


def fleet() -> Iterator[tuple[str, Any]]:
    """What the library's table decides here, and the machine code that a bundle gives for it."""
    from kernwright.generated.dispatch import DISPATCH

    table = DISPATCH.table
    for size in (2, 4, 8):
        choices, code = [], []
        for work in table.workloads:
            if work.fields.get("world_size") != size:
                continue
            comm, operator = imagined(table, work.spec, size), DISPATCH.operators[work.family]
            for fields in warm.calls(work, None, GPU):
                for kind in work.control.steps:
                    for policy in ("measured", "verified", "control"):
                        request = operator.request_for(fields, kind)
                        chosen = DISPATCH.select(request, GPU, policy, comm, False).chosen
                        assert chosen is not None
                        choices.append(f"{request.label} {kind} {policy}: {chosen.candidate.name}")
                        if chosen.build.sha256:
                            found = machine_code(table.root, chosen.build, chosen.arch, "cubin")
                            code.append(found.data.decode())
        digests = {spec: dict(parts) for spec, parts in route_digests(table, size).items()}
        tag = f"{size} ranks"
        yield tag, {"right": application(tag), "choices": choices, "code": code, "digests": digests}


def main() -> None:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=40),
    )
    group_module.obstacle = lambda _: None
    group_module.MAKERS = {"symmetric_memory": Memory, "ipc": Ipc}
    found = {}
    for part in (making, arguments, disagreeing, closing, measuring, loading, fleet):
        found[part.__name__] = dict(part())
    Path(sys.argv[4]).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
