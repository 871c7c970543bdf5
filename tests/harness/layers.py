"""A chain of hyper-connection boundaries with distinct weights, as a decode step runs it, and its answer.

One implementation for NumPy and CuPy: on a GPU the array oracle answers 96 boundaries of the real shape in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from kernwright.evidence.oracle.arrays import Bits
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, InputKind, layer_weights, tensors
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape

CARRIED: tuple[InputKind, ...] = (
    "zeros",
    "tiny",
    "normal",
    "large",
    "subnormal",
    "signed_zero",
    "ties",
    "normal",
)
"""Inputs whose state is carried from layer to layer; the other half of the tokens is fresh in every layer."""


@dataclass(frozen=True)
class LayerWeights:
    """One boundary of the chain: bits of its weights, of its inputs, and of all that the contract stores."""

    index: int
    weights: Mapping[str, Bits]
    """`norm_weight`, `down_weight`, `up_weight`."""
    inputs: Mapping[str, Bits]
    """`residual` [16, HC*H], `block` [16, H], `injection` [16, HC]."""
    expected: Mapping[str, Bits]
    """`x`, `y`, `d`, `lora`, `injection_out`, `g`, `block_input` of the 16 inputs."""


def layers(
    shape: OracleShape,
    count: int,
    seed: int,
    xp: ModuleType = np,
    weight_sets: Sequence[Mapping[str, Bits]] = (),
) -> Iterator[LayerWeights]:
    """`count` boundaries on 16 inputs each; every layer has weights of its own, made on the spot.

    Tokens 0 to 7 are carried: the stored x is the next residual, block_input the next block, injection_out
    the next injection. Tokens 8 to 15 are new in each layer, one of each kind of input, Inf and NaN too.

    Args:
        shape: of one token; the reduction trees stand in it.
        count: number of layers.
        seed: of inputs and weights.
        xp: numpy or cupy.
        weight_sets: weights to use instead of making them, one mapping a layer.
    """
    batch = replace(shape, tokens=2 * len(CARRIED))
    carried = _stack([tensors(shape, kind, seed + i, xp) for i, kind in enumerate(CARRIED)], xp)
    for index in range(count):
        fresh = _stack([tensors(shape, kind, seed + 1000 * index + 1, xp) for kind in INPUT_KINDS], xp)
        given = weight_sets[index] if weight_sets else layer_weights(shape, seed + index, xp)
        inputs = {name: xp.concatenate([carried[name], fresh[name]]) for name in carried}
        expected = boundary(batch, {**inputs, **given})
        yield LayerWeights(index, given, inputs, expected)
        half = len(CARRIED)
        carried = {
            "residual": expected["x"][:half],
            "block": expected["block_input"][:half],
            "injection": expected["injection_out"][:half],
        }


def _stack(rows: Sequence[Mapping[str, Bits]], xp: ModuleType) -> dict[str, Bits]:
    return {name: xp.concatenate([row[name] for row in rows]) for name in ("residual", "block", "injection")}
