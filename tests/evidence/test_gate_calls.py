"""The gate runs what programs call, too: a fault of that path alone is found, wherever it lies."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.evidence.family_evidence import Case
from kernwright.evidence.gate import Gate, check
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.verify import Verification
from kernwright.runtime.request import Signature
from kernwright.table import Buffer

CASES = [Case("boundary", "normal", seed) for seed in (1, 2)]
FAULTS = {
    "": "",
    "fresh outputs aren't written": "a call with fresh outputs",
    "the same addresses aren't launched again": "call 2 on the same addresses",
    "a third call of the same addresses isn't launched": "call 3 on the same addresses",
    "other addresses aren't set": "a call on other addresses",
    "the first addresses aren't set again": "a call on the first addresses again",
    "an input is overwritten": "a call with fresh outputs",
}


class Doubling:
    """Stands for a plan: `y = 2 * x`, right by `run` always, and by calls but for one fault."""

    signature = Signature((Buffer("x", (4,), "float16"),), (Buffer("y", (4,), "float16"),))
    buffers = (*signature.inputs, *signature.outputs, Buffer("scratch", (4,), "float16"))

    def __init__(self, fault: str) -> None:
        self.fault, self.graphs = fault, 0
        self.seen: list[int] = []
        self.captured: Any = None

    def run(self, tensors: Any) -> None:
        self.captured = tensors
        torch.mul(tensors["x"], 2, out=tensors["y"])
        tensors["scratch"].zero_()

    def replay(self) -> None:
        self.run(self.captured)

    def __call__(self, inputs: Any, outputs: Any = None) -> Any:
        (x,), (y,) = inputs, outputs or [torch.full((4,), 3.0).half()]
        address = x.data_ptr() if outputs else -1
        again = self.seen[-1:] == [address]
        changed = outputs is not None and bool(self.seen) and not again
        lost = {
            "fresh outputs aren't written": outputs is None,
            "the same addresses aren't launched again": again,
            "a third call of the same addresses isn't launched": self.seen == [address] * 2,
            "other addresses aren't set": changed and address not in self.seen,
            "the first addresses aren't set again": changed and address in self.seen,
        }
        self.seen = [] if outputs is None else [*self.seen, address]
        if not lost.get(self.fault, False):
            torch.mul(x, 2, out=y)
        if self.fault == "an input is overwritten":
            x.zero_()
        self.graphs = 1
        return [y]


class Graph:
    plan: Doubling

    def replay(self) -> None:
        self.plan.replay()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Check a plan as on a GPU."""
    for name, value in {
        "Stream": lambda _device: None,
        "synchronize": lambda _device: None,
        "CUDAGraph": Graph,
        "graph": lambda *_, **__: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def tensors(_workload: Any, case: Case, _device: Any) -> dict[str, torch.Tensor]:
        return {"x": torch.arange(4).half() + case.seed}

    def checked(fault: str) -> Gate:
        plan = Doubling(fault)
        monkeypatch.setattr(Graph, "plan", plan, raising=False)
        evidence: Any = SimpleNamespace(tensors=tensors)
        workload: Any = SimpleNamespace(channel={})
        return check(
            lambda _case: plan,  # type: ignore[arg-type,return-value]
            lambda _case, given: {"y": given["x"] * 2},
            evidence,
            workload,
            CASES,
            RankContext(torch.device("cpu")),
        )

    return checked


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_calls_alone_is_found(found: Any, fault: str) -> None:
    gate = found(fault)
    assert gate.exact is not bool(fault)
    assert (gate.first.how if gate.first else "") == FAULTS[fault]


def test_the_outcome_says_how_it_was_run(found: Any) -> None:
    gate = found("")
    # two cases, each eagerly, by the graph, and by six calls, of four values
    assert (gate.cases, gate.values) == (2, 2 * 8 * 4)
    outcome = Verification("w", "c", "sm_90", "control", gate, (1, 2), 1.0)
    assert outcome.to_json()["ways"] == ["eager", "graph", "calls", "calls launched as graphs"]
