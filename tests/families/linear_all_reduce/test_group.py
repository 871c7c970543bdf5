"""A layer group with a channel, on two threads that are the ranks; the CPU does what kernels and copies do.

Addresses, sizes, offsets and the order of everything are the runtime's own; a meeting is a barrier of threads.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from kernwright.families.linear_all_reduce.overlap import kernels as kernels_module
from kernwright.families.linear_all_reduce.overlap.group import GroupDecision, LayerGroup
from kernwright.families.linear_all_reduce.overlap.kernels import Kernels
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule
from kernwright.table import Candidate, Kernel

AT = 256
"""Where partial sums begin in the channel."""
SCHEDULES = {
    "whole": SliceSchedule("serial_sm", partials_at=AT),
    "few": SliceSchedule("sliced_sm", (2, 1, 1), partials_at=AT),
    "one": SliceSchedule("sliced_copy_engine", (1, 1, 1), stages=1, partials_at=AT),
    "two": SliceSchedule("sliced_copy_engine", (4, 4, 1), align=4, stages=2, partials_at=AT),
    "between": SliceSchedule("sliced_copy_engine", (1, 1), stages=2, additions="main", partials_at=AT),
}


def memory(address: int, numel: int) -> torch.Tensor:
    """Float32 memory of this process."""
    return torch.frombuffer((ctypes.c_char * (4 * numel)).from_address(address), dtype=torch.float32)


class Thread:
    """A rank's kernels and copy engine."""

    def __init__(
        self, rank: int, addresses: tuple[int, ...], barrier: threading.Barrier, stages: int
    ) -> None:
        self.rank, self.addresses, self.barrier, self.stages = rank, addresses, barrier, stages
        self.did: list[str] = []
        self.turns = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.turns += 1
        yield
        self.turns -= 1

    def __call__(self, kernel: str, **given: int) -> None:
        assert self.turns == 1  # no other thread calls on the channel until all is launched
        self.did.append(kernel)
        getattr(self, kernel)(**given)

    def copy(self, target: int, source: int, size: int) -> None:
        self.did.append("copy")
        ctypes.memmove(target, source, size)

    def meet(self, at: int, numel: int) -> None:
        assert at >= 0
        assert numel
        self.barrier.wait(timeout=20)

    def close(self, result: int, numel: int) -> None:
        assert result
        assert numel
        self.barrier.wait(timeout=20)

    def add(self, at: int, fetched: int, stride: int, result: int, begin_at: int, numel: int) -> None:
        own = memory(self.addresses[self.rank] + AT + at, numel)
        total = own.clone()
        for rank in range(len(self.addresses)):
            if rank != self.rank:
                total += memory(fetched + 4 * stride * rank, numel)
        memory(result + 4 * begin_at, numel).copy_(total)
        if self.stages == 2:
            own.copy_(total)

    def reduce(self, at: int, result: int, begin_at: int, numel: int) -> None:
        self.barrier.wait(timeout=20)
        parts = [memory(address + AT + at, numel) for address in self.addresses]
        memory(result + 4 * begin_at, numel).copy_(sum(parts))
        self.barrier.wait(timeout=20)


@pytest.fixture
def ranks():
    """Two ranks of a schedule: each a layer group and what it did."""

    def make(schedule):
        memories = [torch.zeros(1, 1 << 16, dtype=torch.uint8) for _ in range(2)]
        addresses = tuple(own.data_ptr() for own in memories)
        barrier = threading.Barrier(2)
        made = []
        for rank, own in enumerate(memories):
            thread = Thread(rank, addresses, barrier, schedule.stages)
            channel = SimpleNamespace(
                first=rank,
                addresses=addresses,
                memory=own,
                check_sometimes=lambda: None,
                follow=lambda _: None,
                turn=thread.turn,
            )
            comm = SimpleNamespace(rank=rank, world_size=2, device=torch.device("cpu"), group=None)
            decision = GroupDecision(schedule, thread, channel)
            made.append((LayerGroup(comm, lambda *_, d=decision: d, lambda _: None), thread))
        return made

    return make


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("width", [8, 5])
def test_calls_of_two_threads(ranks, name, width):
    """Several calls in a row, of rows that give other slices; a ragged N makes slices begin inside of a word."""
    groups = ranks(SCHEDULES[name])
    generator = torch.Generator().manual_seed(1)
    calls = []
    for m in (1, 7, 32, 5, 32):
        x = [torch.randint(-3, 4, (m, 12), generator=generator).float() for _ in range(2)]
        weight = [torch.randint(-3, 4, (width, 12), generator=generator).float() for _ in range(2)]
        calls.append((x, weight))

    def run(rank):
        with torch.inference_mode():
            return [groups[rank][0](x[rank], weight[rank]) for x, weight in calls]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, range(2)))
    for results in found:
        for result, (x, weight) in zip(results, calls, strict=True):
            assert torch.equal(result, x[0] @ weight[0].t() + x[1] @ weight[1].t())
    assert groups[0][1].did == groups[1][1].did or width == 5  # the last part of a ragged slice may be empty


def test_what_a_call_of_two_stages_does(ranks):
    ((group, thread), (other, _)) = ranks(SCHEDULES["two"])
    x, weight = torch.ones(18, 12), torch.ones(8, 12)
    with ThreadPoolExecutor(2) as pool, torch.inference_mode():
        list(pool.map(lambda one: one(x, weight), (group, other)))
    slice_of_two_stages = ["meet", "copy", "add", "meet", "copy"]
    assert thread.did == [*slice_of_two_stages * 3, "close"]


def test_arguments_reach_their_slots(monkeypatch):
    """Constants as the bytes of the channel, values as 64 bits, in the order of the kernel's parameters."""
    seen = []

    class Module:
        def launcher(self, kernel):
            def launch(stream, parameters, _):
                addresses = (ctypes.c_void_p * len(kernel.args)).from_address(parameters)
                sizes = {"channels": 16, "rank_base": 4, "numel": 4}
                pairs = zip(addresses, kernel.args, strict=True)
                bits = [ctypes.string_at(address, sizes.get(name, 8)) for address, name in pairs]
                seen.append((kernel.symbol, stream, [int.from_bytes(b, "little") for b in bits]))

            return launch

    names = ("channels", "at", "result", "numel", "rank_base", "timeout_ns")
    alone = ("channels", "rank_base", "timeout_ns")
    one, warp = (1, 1, 1), (32, 1, 1)
    kernels = {
        "add": Kernel(one, warp, names, symbol="add_c"),
        "meet": Kernel(one, warp, alone, symbol="meet_c"),
    }
    candidate = Candidate("c", "sliced_copy_engine", "tolerance", {}, kernels, {})
    constants = {
        "channels": (7).to_bytes(8, "little") + (9).to_bytes(8, "little"),
        "rank_base": (1).to_bytes(4, "little"),
        "timeout_ns": (30).to_bytes(8, "little"),
    }
    monkeypatch.setattr(kernels_module, "current_stream", lambda index: 100 + index)
    launch = Kernels(Module(), candidate, constants, 3)
    launch("add", numel=2**32 - 1, at=2**40, result=2**50)
    launch("meet")
    channels = 7 + (9 << 64)
    assert seen == [
        ("add_c", 103, [channels, 2**40, 2**50, 2**32 - 1, 1, 30]),
        ("meet_c", 103, [channels, 1, 30]),
    ]


def test_tensors_on_another_device_than_the_ranks(ranks):
    group = ranks(SCHEDULES["whole"])[0][0]
    x, weight = torch.zeros(3, 8, device="meta"), torch.zeros(4, 8, device="meta")
    for _ in range(2):
        with pytest.raises(
            ValueError, match="x is on meta, and the ranks of comm work on cpu; pass tensors on cpu"
        ):
            group(x, weight)
