"""The gate sees what a kernel writes where it must not: around a buffer, and into an input."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.gate import BORDER, check
from kernwright.evidence.rank_context import RankContext
from kernwright.table import Buffer

CPU = torch.device("cpu")
X, Y = Buffer("x", (2, 8), "float16"), Buffer("y", (2, 8), "float16")
CASES = [Case("double", "normal", seed) for seed in (1, 2)]


class Graph:
    """Runs again what ran while it was captured."""

    current: Graph | None = None

    def __init__(self):
        self.runs = []

    def replay(self):
        for run in self.runs:
            run()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    @contextmanager
    def capturing(graph, **_):
        Graph.current = graph
        yield
        Graph.current = None

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "a stream")
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)


class Doubling:
    """y = 2 x, with an error planted: an element of the memory that a buffer lies in, counted from its begin."""

    buffers = (X, Y)
    signature = SimpleNamespace(inputs=(X,), outputs=(Y,))

    def __init__(self, buffer="", element=0, replays_only=False):
        self._wrong, self._replays_only = (buffer, element), replays_only

    def __call__(self, inputs, outputs=None):
        results = [torch.empty_like(inputs[0])] if outputs is None else outputs
        results[0].copy_(inputs[0] * 2)
        return results

    def run(self, tensors):
        def launch():
            tensors["y"].copy_(tensors["x"] * 2)
            buffer, element = self._wrong
            if buffer and not (self._replays_only and launch not in Graph.launched):
                own = tensors[buffer]
                memory = torch.as_strided(own, (1,), (1,), own.storage_offset() + element)
                memory.fill_(1.0)

        if Graph.current is not None:
            Graph.launched.add(launch)
            Graph.current.runs.append(launch)
        else:
            launch()


Graph.launched = set()


class Evidence:
    def tensors(self, _workload, case, _device):
        return {"x": torch.full((2, 8), float(case.seed), dtype=torch.float16)}


def gate(executable):
    return check(
        lambda _case: executable,
        lambda _case, given: {"y": given["x"] * 2},
        Evidence(),
        SimpleNamespace(channel={}),
        CASES,
        RankContext(CPU),
    )


def test_what_is_right_passes():
    found = gate(Doubling())
    ways = 2 + 6  # the launches, a replay, and six calls
    assert (found.exact, found.cases, found.values, found.first) == (True, 2, 2 * ways * 16, None)


@pytest.mark.parametrize(
    ("buffer", "element", "where", "index"),
    [
        ("y", -1, "memory before y", BORDER // 2 - 1),
        ("y", -(BORDER // 2), "memory before y", 0),
        ("y", 16, "memory behind y", 0),
        ("y", 16 + BORDER // 2 - 1, "memory behind y", BORDER // 2 - 1),
        ("x", -1, "memory before x", BORDER // 2 - 1),
        ("x", 16, "memory behind x", 0),
    ],
)
@pytest.mark.parametrize("replays_only", [False, True])
def test_a_write_around_a_buffer_is_a_mismatch(buffer, element, where, index, replays_only):
    """Eagerly, and by a kernel that does it in a graph alone; the outputs are right."""
    found = gate(Doubling(buffer, element, replays_only))
    assert not found.exact
    assert found.mismatches == (2 if replays_only else 4)
    assert (found.first.buffer, found.first.index) == (where, (index,))
    assert found.first.how == ("graph" if replays_only else "eager")


def test_a_write_into_an_input_is_a_mismatch():
    found = gate(Doubling("x", 3))
    assert (found.first.buffer, found.first.index) == ("input x", (0, 3))
    assert found.mismatches == 2  # the case of ones has a one there
