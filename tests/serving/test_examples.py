"""The example decoder and the benchmark of a call's cost run, and show what they claim."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from harness.paths import CHECKOUT
from harness.workspaces import load_module


@pytest.fixture(scope="module")
def decoder() -> ModuleType:
    return load_module("decoder", CHECKOUT / "examples" / "decoder.py")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_decoders_boundaries_have_the_bits_of_the_op(decoder: ModuleType, compiled: bool) -> None:
    torch.manual_seed(1)
    model = decoder.Decoder(vocabulary=64, layers=2, hidden=64, rank=16).to(torch.float16).eval()
    kinds = [boundary.kind for boundary in model.boundaries]
    assert kinds == ["first", "boundary", "boundary", "boundary", "final"]
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True) if compiled else model
    tokens, caches = torch.tensor([1, 2, 3]), None
    with torch.inference_mode():
        for _ in range(3):
            logits, caches, trace = run(tokens, caches)
            tokens = logits[-1:].argmax(-1)
            assert decoder.replays(trace, kinds) == 2 + 3 * 3 + 1
            assert [inputs[0].shape for inputs in trace.inputs] == [(len(logits), 256)] * 5
    assert caches[0][0].shape == (4, 5, 16)


def test_a_result_of_other_bits_is_found(decoder: ModuleType) -> None:
    torch.manual_seed(1)
    model = decoder.Decoder(vocabulary=64, layers=1, hidden=64, rank=16).to(torch.float16).eval()
    with torch.inference_mode():
        _, _, trace = model(torch.tensor([1]), None)
        trace.outputs[1][1].view(torch.int16)[0, 5] ^= 1
        with pytest.raises(AssertionError, match="kind boundary: results of equal inputs differ"):
            decoder.replays(trace, ["first", "boundary", "final"])


@pytest.mark.long
def test_the_decoder_runs_as_a_program(python: Any) -> None:
    said = python(
        f"import runpy; runpy.run_path({str(CHECKOUT / 'examples' / 'decoder.py')!r}, run_name='__main__')"
    )
    eager, compiled = (
        re.search(rf"{way}: tokens (\[.*\]), 48 results bit for bit", said) for way in ("eager", "compiled")
    )
    assert eager is not None
    assert compiled is not None


def test_the_cost_of_a_call_is_measured_and_says_where(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    script = CHECKOUT / "benchmarks" / "call_cost.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--batches", "8", "--profile", str(figures)],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(figures.read_text(encoding="utf-8"))
    if not torch.cuda.is_available():
        assert document["device"] == "no GPU: launches are pretended and cost nothing"
    assert "(no GPU: launches are pretended" in ran.stdout or torch.cuda.is_available()
    assert {"plan, 3 kernels", "op", "torch.ops.kernwright", "Library no-op", "torch.add_"} <= set(
        document["calls"]
    )
    cost = {name: found["least_us"] for name, found in document["calls"].items()}
    # Ratios of what ran in one process; with room for a machine that does other things, too.
    assert cost["op"] < 3 * cost["plan, 3 kernels"]
    assert cost["plan, 3 kernels"] < 2.5 * cost["plan, 1 kernel"]
    assert cost["op, out="] < 1.25 * cost["op"]
    assert cost["serve, 1 kernel, out="] < cost["plan, 1 kernel, out="] < cost["plan, 1 kernel"]
    assert ran.stdout.count("Ordered by: internal time") == 3
