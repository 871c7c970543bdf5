"""Peers: their memory lives as long as their graph, and one that is compiled leaves room for the next."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.evidence.graphs import Graph
from kernwright.families.hyper_connection import baselines as peers


def test_a_graph_keeps_what_its_replays_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer has copies of the payloads, which nobody else holds."""
    stream = SimpleNamespace(wait_stream=lambda _: None)
    cuda = SimpleNamespace(
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: nullcontext(),
        CUDAGraph=lambda: None,
        graph=lambda _graph, stream: nullcontext(stream),
    )
    monkeypatch.setattr(torch, "cuda", cuda)

    class Peer:
        def __call__(self) -> str:
            return "result"

    peer = Peer()
    copies = weakref.ref(peer)
    graph: Graph[str] = Graph(partial(peer))
    del peer
    gc.collect()
    assert graph.result == "result"
    assert copies() is not None
    del graph
    gc.collect()
    assert copies() is None


def test_every_cell_may_compile_its_peer_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """All closures share one code object, of which torch's compiler keeps a few versions."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))

    def boundary(inputs: Any) -> Any:
        return [tensor + 1 for tensor in inputs]

    with torch._dynamo.config.patch(recompile_limit=1):
        for tokens in (1, 2, 3):
            call = peers.compiled(boundary)
            (found,) = call([torch.zeros(tokens, 4)])
            assert found.shape == (tokens, 4)
