"""Seeded inputs made of Philox words by integer operations (docs/numerics.md#inputs): the same everywhere.

A normal-like value is the sum of four uniform 16-bit integers, centred and scaled by a power of two
(standard deviation 1.1547, range -4 to 4), then rounded to the storage dtype.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Literal, get_args

import numpy as np

from ...evidence.oracle.arrays import F32, Bits
from ...evidence.oracle.dtypes import Storage
from ...evidence.oracle.philox import stream
from .oracle_shape import OracleShape

InputKind = Literal["zeros", "tiny", "normal", "large", "subnormal", "signed_zero", "nonfinite", "ties"]
INPUT_KINDS: tuple[InputKind, ...] = get_args(InputKind)

_SIGN = 0x8000
_LARGE = {"float16": 12, "bfloat16": 55}
"""log2 of the scale of `large`: neither float32 sums of squares nor a combine in storage overflow."""
_ONE = {"float16": 0x3C00, "bfloat16": 0x3F80}
"""Bits of 1.0."""


def tensors(shape: OracleShape, kind: InputKind, seed: int, xp: ModuleType = np) -> dict[str, Bits]:
    """The small tensors of one boundary, as bits, on the array library `xp` (numpy or cupy).

    `residual` [N, HC*H], `block` [N, H], `injection` [N, HC], `norm_weight` [HC*H] or [H].
    `kind` says what the first three hold:

    - `zeros`, `normal`; `tiny`: normal x 0.01; `large`: normal x 2**12 (float16) or 2**55 (bfloat16);
    - `subnormal`: random subnormals of the storage dtype; `signed_zero`: +0.0 and -0.0;
    - `nonfinite`: normal, but each token has Inf or NaN somewhere (see `_spoil`);
    - `ties`: injection 0, so that combine adds block with weight exactly 1, and residual + block lies
      halfway between two values of the storage dtype almost everywhere.

    Raises:
        ValueError: for an unknown kind or a seed out of range.
    """
    if kind not in INPUT_KINDS:
        raise ValueError(f"Input kind {kind!r} is unknown; use one of {', '.join(INPUT_KINDS)}.")
    sizes = shape.tensors("boundary")
    state = ("residual", "block", "injection")
    made = {name: _values(shape, kind, seed, name, sizes[name], xp) for name in state}
    if kind == "nonfinite":
        _spoil(made, shape, seed)
    made["norm_weight"] = shape.storage.store(_normal(seed, "norm_w", sizes["norm_weight"], -3, xp))
    return made


def weights(shape: OracleShape, seed: int, kind: str = "boundary", xp: ModuleType = np) -> dict[str, Bits]:
    """`down_weight` [R + HC + pad, HC*H] (final: [R, HC*H]) and `up_weight` [HC*H, R], as bits.

    Scaled by powers of two so that normal inputs give d / HC and the gates an order of 1. Padding rows hold
    values like any other, so that a kernel which reads them as results is detected.
    """
    sizes = shape.tensors(kind)
    down_exponent = shape.branches.bit_length() - 1 - shape.width.bit_length() // 2
    up_exponent = 1 - shape.low_rank.bit_length() // 2
    return {
        "down_weight": shape.storage.store(_normal(seed, "down_w", sizes["down_weight"], down_exponent, xp)),
        "up_weight": shape.storage.store(_normal(seed, "up_w", sizes["up_weight"], up_exponent, xp)),
    }


def layer_weights(shape: OracleShape, seed: int, xp: ModuleType = np) -> dict[str, Bits]:
    """The three weights of one boundary, as bits."""
    norm_weight = tensors(shape, "normal", seed, xp)["norm_weight"]
    return {"norm_weight": norm_weight, **weights(shape, seed, xp=xp)}


def _normal(seed: int, name: str, size: tuple[int, ...], exponent: int, xp: ModuleType) -> F32:
    """Normal-like float32 values with standard deviation 1.1547 x 2**exponent, exact in float32."""
    pieces = stream(seed, name, 2 * math.prod(size), xp).view(xp.uint16).reshape(-1, 4)
    centred = pieces.sum(axis=1, dtype=xp.int32) - 2 * 0xFFFF
    values: F32 = centred.astype(xp.float32) * xp.float32(2.0 ** (exponent - 15))
    return values.reshape(size)


def _values(
    shape: OracleShape, kind: InputKind, seed: int, name: str, size: tuple[int, ...], xp: ModuleType
) -> Bits:
    """One of residual, block and injection."""
    dtype = shape.storage
    bits: Bits
    match kind:
        case "zeros":
            bits = xp.zeros(size, dtype=xp.uint16)
        case "signed_zero" | "subnormal":
            fraction = (1 << dtype.fraction_bits) - 1 if kind == "subnormal" else 0
            bits = _random_bits(seed, name, size, xp) & xp.uint16(_SIGN | fraction)
        case "ties":
            bits = _tie(dtype, name, _random_bits(seed, name, size, xp), xp)
        case _:
            # An injection is a logit: its scale stays what sigmoid can tell apart.
            exponent = _LARGE[dtype.name] if kind == "large" and name != "injection" else 0
            values = _normal(seed, name[:8], size, exponent, xp)
            bits = dtype.store(values * xp.float32(0.01) if kind == "tiny" else values)
    return bits


def _random_bits(seed: int, name: str, size: tuple[int, ...], xp: ModuleType) -> Bits:
    """Uniform 16-bit patterns."""
    words = stream(seed, name[:8], math.prod(size), xp)
    bits: Bits = (words >> 16).astype(xp.uint16).reshape(size)
    return bits


def _tie(dtype: Storage, name: str, random: Bits, xp: ModuleType) -> Bits:
    """residual: +-[1, 2); block: +-1 or +-3 half units in the last place of that; injection: 0."""
    bits: Bits
    if name == "residual":
        fraction = (1 << dtype.fraction_bits) - 1
        bits = (random & xp.uint16(_SIGN | fraction)) | xp.uint16(_ONE[dtype.name])
    elif name == "block":
        half_unit = xp.float32(2.0 ** -(dtype.fraction_bits + 1))
        odd = 1 + 2 * (random & 1).astype(xp.float32)
        bits = dtype.store(odd * half_unit) | (random & xp.uint16(_SIGN))
    else:
        bits = xp.zeros_like(random)
    return bits


def _spoil(made: dict[str, Bits], shape: OracleShape, seed: int) -> None:
    """Put Inf or NaN into each token, in one of four ways that follow from token and seed.

    0: +Inf in the residual and -Inf in the last injection; 1: NaN in the block; 2: the injections are
    +-Inf only, which combine turns into finite weights 0 and 2; 3: NaN in the first injection.
    """
    infinity, nan = shape.storage.infinity, shape.storage.nan
    for token in range(shape.tokens):
        place = (seed + 7 * token) % shape.hidden
        match (seed + token) % 4:
            case 0:
                made["residual"][token, place] = infinity
                made["injection"][token, -1] = infinity | _SIGN
            case 1:
                made["block"][token, place] = nan
            case 2:
                made["injection"][token, 0::2] = infinity
                made["injection"][token, 1::2] = infinity | _SIGN
            case _:
                made["injection"][token, 0] = nan
