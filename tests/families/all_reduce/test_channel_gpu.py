"""A channel's life on a GPU: captured graphs outlive the communicator, streams end, threads share it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernwright.families.all_reduce.reference import in_rank_order

pytestmark = pytest.mark.gpu
SPEC = "all_reduce_7168"
SIZES = (2048, 7168 * 16, 7168 * 256)
"""Elements of a rank, for small, middle and large payloads: routes by thresholds."""
MARK = 0x5A
REPLAYS = 20


@pytest.fixture
def d() -> Any:
    from kernwright.generated import dispatch

    return dispatch


def values(ranks: int, numel: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(ranks, numel, generator=generator, device="cuda").bfloat16()


def right(found: torch.Tensor, given: torch.Tensor) -> bool:
    expected = in_rank_order(given.unbind(0)).expand_as(given)
    return torch.equal(found.view(torch.int16), expected.contiguous().view(torch.int16))


def call_of(d: Any, kind: str, comm: Any, x: torch.Tensor, out: torch.Tensor) -> None:
    """`out` becomes the sum of `x`; the kind `sum2` adds a zero that keeps every value."""
    if kind == "sum2":
        d.all_reduce_sum2(x, torch.full_like(x, -0.0), comm=comm, out=out)
    else:
        d.all_reduce(x, comm=comm, out=out)


def captured(d: Any, kind: str, ranks: int, numel: int) -> tuple[torch.cuda.CUDAGraph, Any, Any, list[int]]:
    """A graph of a call, its tensors, and the sizes of the memory of a communicator that is gone."""
    comm = d.local_communicator(ranks, "cuda", specs=[SPEC])
    x, out = values(ranks, numel, 0), torch.empty((ranks, numel), dtype=torch.bfloat16, device="cuda")
    call_of(d, kind, comm, x, out)
    assert d.all_reduce.explain(x, comm=comm).chosen != "reference"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call_of(d, kind, comm, x, out)
    sizes = [comm.channel(name).memory.untyped_storage().nbytes() for name in comm.channels]
    return graph, x, out, sizes


@pytest.mark.parametrize("kind", ["staged", "sum2"])
@pytest.mark.parametrize(
    ("ranks", "numel"),
    # Small payloads have 256 CTAs a rank: one GPU holds those of two ranks, not of four.
    [*((2, size) for size in SIZES), *((4, size) for size in SIZES[1:])],
)
def test_a_graph_outlives_its_communicator(d: Any, kind: str, numel: int, ranks: int) -> None:
    """Its replays write epochs and flags: not into memory that others have got since."""
    graph, x, out, sizes = captured(d, kind, ranks, numel)
    gc.collect()
    torch.cuda.synchronize()
    # What the allocator would hand out again, were the channel's memory free: blocks of that size, and small ones.
    others = [torch.full((size,), MARK, dtype=torch.uint8, device="cuda") for size in (*sizes, *sizes)]
    others += [torch.full((2**20,), MARK, dtype=torch.uint8, device="cuda") for _ in range(64)]
    for seed in range(1, REPLAYS + 1):
        x.copy_(values(ranks, numel, seed))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert right(out, x)
    assert all(bool((other == MARK).all()) for other in others)


def test_closing_leaves_the_memory_of_captured_channels(d: Any) -> None:
    comm = d.local_communicator(2, "cuda", specs=[SPEC])
    x, out = values(2, 2048, 0), torch.empty((2, 2048), dtype=torch.bfloat16, device="cuda")
    call_of(d, "staged", comm, x, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call_of(d, "staged", comm, x, out)
    size = comm.channel(SPEC).memory.untyped_storage().nbytes()
    comm.close()
    del comm
    gc.collect()
    other = torch.full((size,), MARK, dtype=torch.uint8, device="cuda")
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    assert right(out, x)
    assert bool((other == MARK).all())


def test_a_stream_of_others_may_end_before_the_next_call(d: Any) -> None:
    import cupy

    comm = d.local_communicator(2, "cuda", specs=[SPEC])
    x = values(2, 7168, 1)
    d.all_reduce(x, comm=comm)
    torch.cuda.synchronize()
    for _ in range(REPLAYS):
        theirs = cupy.cuda.Stream(non_blocking=True)
        with torch.cuda.stream(torch.cuda.ExternalStream(theirs.ptr)):
            on_theirs = d.all_reduce(x, comm=comm)
        theirs.synchronize()
        assert right(on_theirs, x)
        del theirs, on_theirs
        gc.collect()
        assert right(d.all_reduce(x, comm=comm), x)
    comm.check()
    comm.close()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(which: int) -> None:
        try:
            work(which)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(which,)) for which in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_on_streams_of_their_own_share_a_channel(d: Any) -> None:
    """Following the call before and launching is one step, so that no two calls run at the same time."""
    comm = d.local_communicator(2, "cuda", specs=[SPEC])
    given = [values(2, 7168 * 4, seed) for seed in range(3)]
    d.all_reduce(given[0], comm=comm)
    torch.cuda.synchronize()
    wrong = [0] * len(given)

    def work(which: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(200):
                found = d.all_reduce(given[which], comm=comm)
            stream.synchronize()
            wrong[which] = not right(found, given[which])

    in_threads(len(given), work)
    comm.check()
    assert wrong == [0] * len(given)
    comm.close()
