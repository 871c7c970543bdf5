"""Two ranks that share one GPU, each with streams and a channel of its own: our transports on a machine with one GPU.

Calls are enqueued rank by rank, and the device sorts out who waits for whom; nothing waits for the host in between.
Values of -1, 0 and 1 make every sum exact, so results are compared bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.capturing import failures_beside_captures
from kernwright.generated.dispatch import TABLE, linear_all_reduce
from kernwright.runtime.communicator import LAYOUT_VERSION, channel
from kernwright.runtime.communicator.channel import Channel, channel_plans
from kernwright.runtime.device import Device, current
from kernwright.runtime.loader import load
from kernwright.table import Build

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SPEC = "linear_all_reduce_5120"
WIDTH, K = 5120, 4096
CANDIDATES = (
    "serial_sm",
    "sm_4",
    "sm_8",
    "sm_16",
    "copies_4",
    "copies_tail",
    "copies_free",
    "copies_between",
)
ONES = 100
"""Nonzero columns of x: two ranks' sums stay among BF16's exact integers."""


class OneOfTwo:
    """A rank of the pair."""

    world_size, local_ranks, layout_version = 2, 1, LAYOUT_VERSION
    capabilities = frozenset({"linear_all_reduce_layout_2"})
    group = None
    timeout_ns = 10_000_000_000

    def __init__(self, rank: int, channel: Channel) -> None:
        self.rank, self._channel = rank, channel
        self.device = channel.memory.device

    def owns(self, channel: str) -> bool:
        return channel == SPEC

    def channel(self, name: str) -> Channel:
        assert name == SPEC
        return self._channel

    def load(self, root: Path, build: Build, arch: str, device: Device) -> Any:
        return load(root, build, arch, device)


@pytest.fixture
def pair():
    """The two ranks, with a stream each; new for each test, so that a failed channel fails one alone."""
    import torch

    (plan,) = channel_plans(TABLE, 2, [SPEC])
    memory = torch.zeros(2, -(-plan.size // 256) * 256, dtype=torch.uint8, device="cuda")
    addresses = tuple(memory[rank].data_ptr() for rank in range(2))
    ranks = [OneOfTwo(r, Channel(plan, memory[r : r + 1, : plan.size], addresses, r)) for r in range(2)]
    return ranks, [torch.cuda.Stream() for _ in range(2)]


def small(shape, seed):
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator, device="cuda").bfloat16()


def activations(m, seed):
    x = [small((m, K), 10 * seed + rank) for rank in range(2)]
    for part in x:
        part[:, ONES:] = 0
    return x


@pytest.fixture(scope="module")
def weights():
    return [small((WIDTH, K), 1000 + rank) for rank in range(2)]


def wanted(x, weights):
    total = sum(a.float() @ w.float().t() for a, w in zip(x, weights, strict=True))
    return total.bfloat16()


@pytest.mark.parametrize("name", CANDIDATES)
def test_calls_that_follow_each_other(pair, weights, name):
    """Of several M, uneven slices among them; what a rank writes next must not reach what its peer still reads."""
    import torch

    ranks, streams = pair
    rows = (2048, 4099, 2048, 2500, 4096)
    given = [activations(m, seed) for seed, m in enumerate(rows)]
    answers = [wanted(x, weights) for x in given]

    def calls():
        found = [[], []]
        torch.cuda.synchronize()
        for x in given:
            for rank, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    found[rank].append(
                        linear_all_reduce(x[rank], weights[rank], comm=ranks[rank], force=name)
                    )
        torch.cuda.synchronize()
        return found

    with torch.no_grad():
        _warm(streams, weights, name)
        for _ in range(3):
            for results in calls():
                for result, answer in zip(results, answers, strict=True):
                    assert torch.equal(result, answer)
    for rank in ranks:
        rank.channel(SPEC).check()


def _warm(streams, weights, name):
    """While a rank waits on the device nothing may wait for the device: neither loading code nor allocating.

    So the GEMM of every slice is done once before, each of our kernels is looked at (which loads it), and the
    allocator gets memory for each stream.
    """
    import torch
    from cupy_backends.cuda.api import driver
    from kernwright.families.linear_all_reduce.overlap.gemm import leaving_free, torch_gemm
    from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule

    device = current(torch.device("cuda"))
    schedules = []
    for work in TABLE.workloads:
        for candidate in work.candidates:
            if work.spec != SPEC or work.fields["k"] != K or candidate.name != name:
                continue
            schedules.append(SliceSchedule.of(candidate.route, candidate.options))
            for arch, build in candidate.builds.items():
                module = load(TABLE.root, build, arch, device)
                for kernel in candidate.kernels.values():
                    function = module._module.get_function(kernel.symbol).ptr
                    driver.occupancyMaxActiveBlocksPerMultiprocessor(function, kernel.block[0], 0)
    for stream in streams:
        with torch.cuda.stream(stream):
            reserve = torch.empty(2**30, dtype=torch.uint8, device="cuda")
            del reserve
            for m in (2048, 2500, 4096, 4099):
                x = torch.zeros((m, K), dtype=torch.bfloat16, device="cuda")
                out = torch.empty((m, WIDTH), dtype=torch.bfloat16, device="cuda")
                for schedule in schedules:
                    for part in schedule.slices(m, 2 * WIDTH):
                        with leaving_free(schedule.free_sms):
                            torch_gemm(x, weights[0], None)(part.begin, part.end, out[part.begin : part.end])
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["serial_sm", "sm_8", "copies_4", "copies_between"])
def test_a_graph_with_both_ranks(pair, weights, name):
    """Captured from one stream, replayed a hundred times with inputs that change."""
    import torch

    ranks, streams = pair
    x = activations(2048, 77)
    inputs = [torch.empty_like(part) for part in x]
    with torch.no_grad():
        _warm(streams, weights, name)

        def both():
            results, begin = [], torch.cuda.current_stream()
            for rank, stream in enumerate(streams):
                stream.wait_stream(begin)
                with torch.cuda.stream(stream):
                    results.append(
                        linear_all_reduce(inputs[rank], weights[rank], comm=ranks[rank], force=name)
                    )
            for stream in streams:
                begin.wait_stream(stream)
            return results

        for part, given in zip(inputs, x, strict=True):
            part.copy_(given)
        both()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = both()
        for replay in range(100):
            sign = -1 if replay % 2 else 1
            for part, given in zip(inputs, x, strict=True):
                part.copy_(given * sign)
            graph.replay()
            torch.cuda.synchronize()
            answer = wanted(x, weights) * sign
            assert all(torch.equal(result, answer) for result in results)
    for rank in ranks:
        rank.channel(SPEC).check()


@pytest.mark.parametrize("name", ["sm_8", "copies_4", "copies_between"])
def test_calls_invalidate_no_capture(pair, weights, name, monkeypatch):
    """Of another thread; the first one makes lanes and scratch, and every one looks at the records."""
    import torch

    ranks, streams = pair
    x = activations(2048, 78)
    answer = wanted(x, weights)
    monkeypatch.setattr(channel, "CHECK_SECONDS", -1.0)
    with torch.no_grad():
        _warm(streams, weights, name)
        results = [None, None]

        def call(_turn):
            for rank, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    results[rank] = linear_all_reduce(x[rank], weights[rank], comm=ranks[rank], force=name)

        failures = failures_beside_captures(call)
    print(f"{len(failures)} of 20 captures and 20 calls failed")
    assert failures == []
    assert all(torch.equal(result, answer) for result in results)


@pytest.mark.parametrize("name", ["sm_8", "copies_4", "copies_between"])
def test_a_rank_that_stays_away(pair, weights, name):
    """NaN everywhere, an error that says who, and a channel that works again once it is cleared."""
    import torch
    from kernwright.runtime import PeerTimeout

    ranks, streams = pair
    x = activations(2048, 5)
    ranks[0].timeout_ns = 200_000_000
    linear_all_reduce._decisions.clear()
    with torch.no_grad():
        _warm(streams, weights, name)
        with torch.cuda.stream(streams[0]):
            result = linear_all_reduce(
                x[0],
                weights[0],
                comm=ranks[0],
                force=name,
                policy="control",  # a layer group of its own
            )
        torch.cuda.synchronize()
    assert result.isnan().all()
    with pytest.raises(PeerTimeout, match="rank 0 waited in vain for rank 1"):
        ranks[0].channel(SPEC).check()
    for rank in ranks:
        rank.channel(SPEC).clear()
    ranks[0].timeout_ns = OneOfTwo.timeout_ns
    linear_all_reduce._decisions.clear()
    torch.cuda.synchronize()
    test_calls_that_follow_each_other(pair, weights, name)
