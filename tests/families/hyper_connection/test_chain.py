"""A decoder's chain of boundaries: the same calls in order, as a model makes them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.families.hyper_connection.chain import Weights


def weights(make: ModuleType, seed: int, kind: str = "boundary") -> Weights:
    return Weights(*make.tensors(seed=seed, kind=kind)[3:])


def op_of(make: ModuleType) -> Any:
    return make.dispatch_of(make.workload(make.candidate("control"))).operators["hyper_connection"]


def test_a_chain_is_the_ops_calls_in_order(make: ModuleType) -> None:
    op = op_of(make)
    layers, final = [weights(make, seed) for seed in range(5)], weights(make, 9, "final")
    state = make.tensors(seed=7)[0]
    chain = op.chain(layers, final, eps=1e-5)
    x = chain.begin(state)
    residual, (_, expected, injection) = (
        state,
        op(state, None, None, layers[0].norm, layers[0].down, layers[0].up, kind="first", eps=1e-5),
    )
    for index in range(1, 5):
        assert torch.equal(x, expected)
        block = x * (index + 1)
        x = chain.step(block)
        layer = layers[index]
        residual, expected, injection = op(
            residual, block, injection, layer.norm, layer.down, layer.up, eps=1e-5
        )
        assert torch.equal(chain.state, residual)
        assert torch.equal(chain.injection, injection)
    found = chain.end(x)
    _, wanted, _ = op(residual, x, injection, final.norm, final.down, final.up, kind="final", eps=1e-5)
    assert torch.equal(found, wanted)
    again = chain.begin(state)
    assert torch.equal(again, op(state, None, None, *vars(layers[0]).values(), kind="first", eps=1e-5)[1])


def test_without_a_final_mixer_the_state_comes_back(make: ModuleType) -> None:
    op = op_of(make)
    chain = op.chain([weights(make, 1)])
    state = make.tensors(seed=2)[0]
    x = chain.begin(state)
    injection = chain.injection
    assert torch.equal(chain.end(x), op(state, x, injection, None, None, None, kind="combine")[0])


def test_boundaries_out_of_order_are_sentences(make: ModuleType) -> None:
    op = op_of(make)
    with pytest.raises(ValueError, match="a chain has at least one boundary; no weights were given"):
        op.chain([])
    chain = op.chain([weights(make, 1), weights(make, 2)])
    x = torch.zeros(1, 64, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="the chain wasn't begun"):
        chain.step(x)
    chain.begin(make.tensors()[0])
    with pytest.raises(RuntimeError, match="1 of 2 boundaries are done"):
        chain.end(x)
    chain.step(x)
    with pytest.raises(RuntimeError, match="all 2 boundaries are done"):
        chain.step(x)
