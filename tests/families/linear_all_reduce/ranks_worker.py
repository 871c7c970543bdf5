"""What one rank checks of `linear_all_reduce` on real GPUs that no case of `verify` is; run under torchrun.

`ranks_worker.py RESULT`: rank 0 writes what was counted. Values of -1, 0 and 1 make every sum exact, in whatever
order a library adds: so results are compared bit for bit, and what a slice, a stream or a graph got wrong shows as a
wrong value, not as noise.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from kernwright.evidence.ranks import job
from kernwright.families.linear_all_reduce.evidence import EVIDENCE
from kernwright.families.linear_all_reduce.op import Terms
from kernwright.families.linear_all_reduce.overlap.operator import group_of
from kernwright.generated.dispatch import DISPATCH, linear_all_reduce
from kernwright.runtime import PeerTimeout
from kernwright.runtime.communicator.group import GroupCommunicator

SPEC, WIDTH, K = "linear_all_reduce_5120", 5120, 4096
ROWS = (1, 2, 127, 128, 2048, 2049, 4095, 5000, 8192)
CYCLES_A_MICROSECOND = 1500
"""Of `torch.cuda._sleep`, roughly: delays need no precision."""
LAYERS = 64
MOST_ONES = 250
"""Nonzero columns of x at most: sums over two ranks and BF16's 256 exact integers leave no more."""


def names(width: int, k: int, ranks: int) -> list[str]:
    """Candidates for a shape, in file order."""
    found: dict[str, None] = {}
    for work in DISPATCH.table.workloads:
        fields = work.fields
        if (work.family, fields.get("width"), fields.get("k")) == ("linear_all_reduce", width, k):
            found |= dict.fromkeys(c.name for c in work.candidates if fields["world_size"] == ranks)
    return list(found)


class Layer:
    """A shape with its weights, and x of any number of rows, known on every rank."""

    def __init__(self, comm: GroupCommunicator, width: int, k: int, seed: int = 0) -> None:
        self.comm, self.width, self.k = comm, width, k
        self.weights = [self._small((width, k), 100 * seed + rank) for rank in range(comm.world_size)]

    def _small(self, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        generator = torch.Generator(self.comm.device).manual_seed(seed)
        values = torch.randint(-1, 2, shape, generator=generator, device=self.comm.device)
        return values.to(torch.bfloat16)

    def given(self, m: int, seed: int) -> list[torch.Tensor]:
        """x of every rank; few columns aren't zero."""
        found = []
        for rank in range(self.comm.world_size):
            x = self._small((m, self.k), 1000 * seed + rank)
            x[:, MOST_ONES // self.comm.world_size :] = 0
            found.append(x)
        return found

    def wanted(self, given: list[torch.Tensor]) -> torch.Tensor:
        """The exact sum, by FP32 GEMMs of small integers."""
        total = sum(x.float() @ w.float().t() for x, w in zip(given, self.weights, strict=True))
        assert isinstance(total, torch.Tensor)
        return total.to(torch.bfloat16)

    def call(self, x: torch.Tensor, force: str | None, **more: Any) -> torch.Tensor:
        """This rank's call."""
        return linear_all_reduce(x, self.weights[self.comm.rank], comm=self.comm, force=force, **more)


def serves(width: int, k: int, name: str, m: int) -> bool:
    """Whether a candidate has a cell that holds m rows."""
    return any(
        work.fields["width"] == width
        and work.fields["k"] == k
        and work.fields["m"][0] <= m <= work.fields["m"][1]
        and name in {candidate.name for candidate in work.candidates}
        for work in DISPATCH.table.workloads
        if work.family == "linear_all_reduce"
    )


def different(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many values differ, counted on the device."""
    return (found != wanted).sum()


def rows(layer: Layer) -> dict[str, Any]:
    """Every candidate at every number of rows that it serves; transposed x, a bias."""
    wrong, calls = torch.zeros((), dtype=torch.int64, device=layer.comm.device), 0
    bias = torch.ones(layer.width, dtype=torch.bfloat16, device=layer.comm.device)
    for m in ROWS:
        given = layer.given(m, m)
        wanted, x = layer.wanted(given), given[layer.comm.rank]
        for name in [None, *names(layer.width, layer.k, layer.comm.world_size)]:
            if name is None or serves(layer.width, layer.k, name, m):
                wrong += different(layer.call(x, name), wanted)
                wrong += different(layer.call(x.t().contiguous().t(), name), wanted)
                wrong += different(layer.call(x, name, bias=bias), wanted + bias)
                calls += 3
    return {"calls": calls, "wrong": int(wrong)}


def replays(layer: Layer, count: int) -> dict[str, Any]:
    """Graphs of every candidate and the plain path, of several M, replayed in any order; one rank is late."""
    device = layer.comm.device
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    graphs, kept = [], []  # graphs hold addresses alone
    for name in names(layer.width, layer.k, layer.comm.world_size):
        for m in (64, 2100, 4096):
            if not serves(layer.width, layer.k, name, m):
                continue
            given = layer.given(m, m)
            wanted, x = layer.wanted(given), given[layer.comm.rank]
            kept.append((x, wanted))
            graphs.append(captured(lambda x=x, n=name, w=wanted: wrong.add_(different(layer.call(x, n), w))))
    order, late = random.Random(7), random.Random(layer.comm.rank)
    for replay in range(count):
        if layer.comm.rank and replay % 50 == 0:
            torch.cuda._sleep(late.randrange(300) * CYCLES_A_MICROSECOND)
        graphs[order.randrange(len(graphs))].replay()
    torch.cuda.synchronize()
    layer.comm.check()
    return {"graphs": len(graphs), "replays": count, "wrong": int(wrong)}


def captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Warmed up on one stream, captured on another, as usual."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def two_streams(layer: Layer, count: int) -> dict[str, Any]:
    """Eager calls by turns on two streams: each has scratch of its own, and the channel serialises them."""
    wrong, calls = torch.zeros((), dtype=torch.int64, device=layer.comm.device), 0
    given = layer.given(2048, 1)
    wanted, x = layer.wanted(given), given[layer.comm.rank]
    streams = [torch.cuda.Stream() for _ in range(2)]
    for name in names(layer.width, layer.k, layer.comm.world_size):
        torch.cuda.synchronize()
        for index in range(count):
            stream = streams[index % 2]
            with torch.cuda.stream(stream):
                bad = different(layer.call(x, name), wanted)
            torch.cuda.current_stream().wait_stream(stream)
            wrong += bad
            calls += 1
    torch.cuda.synchronize()
    return {"calls": calls, "wrong": int(wrong)}


def memory(layer: Layer, count: int) -> dict[str, Any]:
    """64 layers, many calls, nothing waits for the host: memory that is held must not grow after the first ones."""
    x = layer.given(2048, 2)[layer.comm.rank]
    grown = {}
    for name in names(layer.width, layer.k, layer.comm.world_size):
        held = []
        for _ in range(count):
            for _ in range(LAYERS):
                layer.call(x, name)
            held.append(torch.cuda.memory_reserved())
        torch.cuda.synchronize()
        grown[name] = held[-1] - held[2]
    group = group_of(linear_all_reduce.group(Terms(layer.comm, force="copies_4"))[0])
    return {"bytes": grown, "scratch": group.pool.bytes, "wrong": sum(map(bool, grown.values()))}


def compiled_block(layer: Layer) -> dict[str, Any]:
    """Two layers through torch.compile, off, on by each transport, and with the verdict flipped under the graph."""
    first, second, calls = layer, Layer(layer.comm, layer.width, layer.k, seed=1), 0
    wrong = torch.zeros((), dtype=torch.int64, device=layer.comm.device)
    comm, rank, k, ones = layer.comm, layer.comm.rank, layer.k, MOST_ONES // layer.comm.world_size
    weights = first.weights[rank], second.weights[rank]

    def between(y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(k, device=y.device) < ones, y[:, :k].clamp(-1, 1), 0)

    for name in (None, "nccl_4", "sm_8", "copies_4"):
        torch.compiler.reset()

        def block(x: torch.Tensor, name: str | None = name) -> torch.Tensor:
            y = linear_all_reduce(x, weights[0], comm=comm, force=name)
            return linear_all_reduce(between(y), weights[1], comm=comm, force=name)

        compiled = torch.compile(block, fullgraph=True, dynamic=True)
        for m in (64, 2100, 4096):
            if name is not None and not serves(layer.width, k, name, m):
                continue
            given = first.given(m, m)
            wanted = second.wanted([between(first.wanted(given))] * comm.world_size)
            for policy in ("measured", "control", "measured"):
                with DISPATCH.policy(policy):
                    wrong += different(compiled(given[rank]), wanted)
                    calls += 1
    return {"calls": calls, "wrong": int(wrong)}


def a_rank_stays_away(layer: Layer, name: str) -> dict[str, Any]:
    """The last rank skips a call: NaN and PeerTimeout on the others, and after reset the next call is right."""
    given = layer.given(2048, 3)
    wanted, x = layer.wanted(given), given[layer.comm.rank]
    wrong = int(different(layer.call(x, name), wanted))
    distributed.barrier(layer.comm.group)
    found, lost = "nothing", True
    if layer.comm.rank != layer.comm.world_size - 1:
        result = layer.call(x, name)
        torch.cuda.synchronize()
        lost = bool(result.isnan().all())
        try:
            layer.comm.check()
        except PeerTimeout as error:
            found = f"PeerTimeout: rank {error.rank} for rank {error.peer}"
    layer.comm.reset()
    wrong += int(different(layer.call(x, name), wanted)) + (not lost)
    expected = "nothing" if layer.comm.rank == layer.comm.world_size - 1 else "PeerTimeout"
    return {"outcome": found, "wrong": wrong + (not found.startswith(expected))}


def quantisation(comm: GroupCommunicator) -> dict[str, Any]:
    """FP8 on torch's path against the dequantised truth: the GPU's E4M3 conversion and `_scaled_mm` by rows."""
    from kernwright.families.linear_all_reduce.overlap.quantise import quantise_rows

    generator = torch.Generator(comm.device).manual_seed(5)
    x = [
        torch.randn(300, 512, generator=generator, device=comm.device).bfloat16()
        for _ in range(comm.world_size)
    ]
    full = [torch.randn(256, 512, generator=generator, device=comm.device) for _ in range(comm.world_size)]
    quantised = [quantise_rows(w) for w in full]
    truth = sum(
        (quantise_rows(a)[0].double() * quantise_rows(a)[1]) @ (c.double() * s).t()
        for a, (c, s) in zip(x, quantised, strict=True)
    )
    codes, scales = quantised[comm.rank]
    result = linear_all_reduce(x[comm.rank], codes, comm=comm, weight_scale=scales)
    error = float((result.double() - truth).norm() / torch.as_tensor(truth).norm())
    return {"relative_l2": error, "wrong": int(not error < 4e-3)}


def run(comm: GroupCommunicator, late: GroupCommunicator, width: int, k: int) -> dict[str, Any]:
    """All checks of a shape; `late` is a communicator with a short timeout."""
    layer = Layer(comm, width, k)
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "rows": lambda: rows(layer),
        "1,000 replays": lambda: replays(layer, 1000),
        "two streams": lambda: two_streams(layer, 20),
        "memory": lambda: memory(layer, 200),
        "quantisation": lambda: quantisation(comm),
        "compiled block": lambda: compiled_block(layer),
    }
    for name in ("sm_8", "copies_4", "copies_between"):
        checks[f"a rank stays away, {name}"] = lambda name=name: a_rank_stays_away(
            Layer(late, width, k), name
        )
    found: dict[str, Any] = {}
    for name, check in checks.items():
        entry = check()
        everybody: list[Any] = [None] * comm.world_size
        distributed.all_gather_object(everybody, entry["wrong"], group=comm.group)
        entry["wrong_ranks"] = {rank: wrong for rank, wrong in enumerate(everybody) if wrong}
        found[name] = entry
    return found


def main() -> None:
    index = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(index)
    with job() as ours, torch.no_grad(), DISPATCH.communicator(specs=specs()) as comm:
        assert comm.channels, comm.absence(SPEC)
        with DISPATCH.communicator(specs=[SPEC], timeout_s=1.0) as late:
            found = run(comm, late, WIDTH, K)
        comm.check()
        if ours.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found))


def specs() -> list[str]:
    """Ours, and those of all_reduce, whose kernels may serve the plain path."""
    work = next(work for work in DISPATCH.table.workloads if work.spec == SPEC)
    return [SPEC, *EVIDENCE.channels(DISPATCH.table.workloads, work)]


if __name__ == "__main__":
    main()
