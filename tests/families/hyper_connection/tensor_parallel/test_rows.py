"""Several tokens on the replicated route: every token's bits are those that it has alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, compile_text, find_races, fuzz, run
from kernwright.emulator import check as check_launches
from kernwright.families.hyper_connection.inputs import INPUT_KINDS
from kernwright.families.hyper_connection.shape import KINDS

REAL = ("fp16-hc4-h256-n2to16-r320-tp1", "rows")
BF16 = ("bf16-hc4-h256-n2to16-r320-tp1", "rows")
ODD = ("fp16-hc3-h96-n1to5-r20-tp1", "rows_odd")


def program(rows, workload, name, kind, tokens, inputs="normal", seed=1, edits=()):
    """Launches on `tokens` tokens, whose buffers end where the last token does, and what they must store."""
    entry = rows.entry(*workload)
    given, stored = rows.answer(entry, kind, inputs, seed, tokens)
    lowered = next(c for c in entry.candidates if c.candidate.name == name)
    text = lowered.sources[-1].text
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    kernel, dtype = compile_text(text, f"{name}.cu"), entry.workload.dtype
    buffers: dict[str, Any] = {n: DeviceBuffer(n, bits, "in", 0, dtype) for n, bits in given.items()}
    steps = [lowered.lowering.kernels[step] for step in lowered.lowering.steps[kind]]
    for tensor in {arg for step in steps for arg in step.args} - set(buffers) - {"tokens"}:
        buffers[tensor] = DeviceBuffer(tensor, np.empty_like(stored[tensor]), "out", 0, dtype)
    arguments = buffers | {"tokens": np.uint32(tokens)}
    launches = [
        EmulatedLaunch(
            kernel, lowered.symbols[name], step.grid, step.block, tuple(arguments[a] for a in step.args)
        )
        for name, step in zip(lowered.lowering.steps[kind], steps, strict=True)
    ]
    return launches, {b: stored[n] for n, b in buffers.items() if b.access == "out"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [2, 3, 16])
@pytest.mark.parametrize("name", ["replicated", "wide"])
def test_every_token_equals_the_oracle(rows, name, tokens, kind):
    launches, expected = program(rows, REAL, name, kind, tokens)
    assert {buffer.name for buffer in expected} >= set(KINDS[kind].outputs)
    assert check_launches(launches, expected).problems == ()
    assert fuzz(launches, expected, 1, first=1).problems == ()


@pytest.mark.parametrize("inputs", INPUT_KINDS)
@pytest.mark.parametrize("workload", [REAL, BF16], ids=["fp16", "bf16"])
def test_every_kind_of_values(rows, workload, inputs):
    launches, expected = program(rows, workload, "wide", "boundary", 5, inputs, seed=3)
    assert fuzz(launches, expected, 1).problems == ()


@pytest.mark.parametrize("name", ["replicated", "striding"])
@pytest.mark.parametrize("tokens", [1, 2, 4, 5])
def test_odd_trees_and_tilings(rows, name, tokens):
    for kind in KINDS:
        launches, expected = program(rows, ODD, name, kind, tokens)
        assert check_launches(launches, expected).problems == (), kind
        assert fuzz(launches, expected, 2, first=1).problems == (), kind


def test_a_token_has_the_bits_that_it_has_alone(rows):
    """Against the kernels for one token, and whatever the tokens around it."""
    entry = rows.entry(*REAL)
    together = run(program(rows, REAL, "wide", "boundary", 16, "nonfinite")[0]).arrays
    together = {buffer.name: array for buffer, array in together.items()}
    alone_entry = rows.entry("fp16-hc4-h256-n1-r320-tp2", "mini4")
    alone = next(c for c in alone_entry.candidates if c.candidate.name == "replicated")
    kernel = compile_text(alone.sources[-1].text, "alone.cu")
    given, _ = rows.answer(entry, "boundary", "nonfinite", 1, 16)
    for token in (0, 3, 7, 15):
        buffers = {
            n: DeviceBuffer(n, b[token : token + 1] if n in ("residual", "block", "injection") else b, "in")
            for n, b in given.items()
        }
        for tensor in ("x", "y", "lora", "block_input", "injection_out"):
            buffers[tensor] = DeviceBuffer(tensor, together[tensor][:1].copy(), "out", 0, "float16")
        launches = [
            EmulatedLaunch(kernel, alone.symbols[step], k.grid, k.block, tuple(buffers[a] for a in k.args))
            for step in alone.lowering.steps["boundary"]
            for k in [alone.lowering.kernels[step]]
        ]
        expected = {buffers[n]: array[token : token + 1] for n, array in together.items()}
        assert fuzz(launches, expected, 1).problems == ()


@pytest.mark.parametrize("name", ["replicated", "striding"])
def test_no_race(rows, name):
    launches, _ = program(rows, ODD, name, "boundary", 5)
    few = [replace(launch, grid=(min(launch.grid[0], 3), min(launch.grid[1], 3), 1)) for launch in launches]
    for launch in few:
        assert find_races([launch]) == ()


@pytest.mark.parametrize(
    "edit",
    [
        ("y + token * STATE + k", "y + k"),
        (
            "finish_row(row, total, lora_out + token * LOW_RANK",
            "finish_row(row, total, lora_out + own * LOW_RANK",
        ),
        ("lora + token * LOW_RANK", "lora"),
        ("member == token ? total", "member <= token ? total"),
        ("if (blockIdx.y >= tokens) return;", ""),
        ("if (member < tokens)", "if (member <= tokens)"),
        ("y[member * STATE + branch * HIDDEN + row]", "y[branch * HIDDEN + row]"),
        ("sigmoid(rounded(gate[branch]))", "sigmoid(gate[branch])"),
        ("    __syncthreads();\n    for (unsigned int i", "    for (unsigned int i"),
        ("    __syncthreads();  // the next tile", "    ;  // the next tile"),
    ],
)
def test_a_changed_text_is_found(rows, edit):
    launches, expected = program(rows, REAL, "wide", "boundary", 3, edits=(edit,))
    if fuzz(launches, expected, 12).problems:
        return
    (down,) = (launch for launch in launches if "_down_" in launch.symbol)
    assert find_races([replace(down, grid=(2, 1, 1))])
