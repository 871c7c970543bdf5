"""One hyper-connection boundary, bit for bit (docs/hyper_connection.md, trees of docs/numerics.md).

Written from the specification alone: kernels, reference and emulator are compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...evidence.oracle.arrays import F32, Bits, namespace
from ...evidence.oracle.fma import fma
from ...evidence.oracle.functions import sigmoid, silu
from ...evidence.oracle.single import add, divide, multiply, square_root
from ...evidence.oracle.trees import dot, squares
from .oracle_shape import OracleShape
from .shape import KINDS


def boundary(shape: OracleShape, tensors: Mapping[str, Bits], kind: str = "boundary") -> dict[str, Bits]:
    """Outputs and intermediates of one boundary, as bits of the storage dtype.

    Args:
        shape: sizes, dtype, trees and eps.
        tensors: `residual` [N, HC*H]; `block` [N, H] and `injection` [N, HC] except for `first`;
            `norm_weight` [HC*H] or [H], `down_weight` [at least R + HC (final: R), HC*H] and
            `up_weight` [HC*H, R] except for `combine`. NumPy or CuPy.
        kind: `boundary`; `first` (no pending combine: the residual is the state); `combine` (x only);
            `final` (combine and mix, no injection).

    Returns:
        `x` [N, HC*H] unless `first`; and unless `combine`: `y` [N, HC*H], `d` [N, R + HC] (final: [N, R]),
        `lora` [N, R], `g` [N, HC*H], `block_input` [N, H], and `injection_out` [N, HC] unless `final`.

    Raises:
        KeyError: if a tensor that the kind needs is missing.
        ValueError: if a tensor has the wrong shape.
    """
    _check_shapes(shape, tensors, kind)
    stored: dict[str, Bits] = {}
    state = tensors["residual"]
    if kind != "first":
        state = stored["x"] = combine(shape, state, tensors["block"], tensors["injection"])
    if kind == "combine":
        return stored
    stored["y"] = norm(shape, state, tensors["norm_weight"])
    stored["d"], stored["lora"] = down(shape, stored["y"], tensors["down_weight"], kind)
    if kind != "final":
        stored["injection_out"] = stored["d"][:, shape.low_rank :].copy()
    stored["g"] = up(shape, stored["lora"], tensors["up_weight"])
    stored["block_input"] = mix(shape, stored["g"], stored["y"])
    return stored


def combine(shape: OracleShape, residual: Bits, block: Bits, injection: Bits) -> Bits:
    """x [N, HC*H]: the block's output added to every branch with the weight 2 sigmoid(injection / HC)."""
    load = shape.storage.load
    xp = namespace(residual)
    gate = multiply(xp.float32(2), sigmoid(divide(load(injection), xp.float32(shape.branches))))
    x = fma(load(block)[:, None, :], gate[:, :, None], _by_branch(shape, load(residual)))
    return shape.storage.store(x).reshape(residual.shape)


def norm(shape: OracleShape, x: Bits, weight: Bits) -> Bits:
    """y [N, HC*H]: RMSNorm of every branch of the stored x, times 1 + weight."""
    xp = namespace(x)
    one = xp.float32(1)
    values = _by_branch(shape, shape.storage.load(x))
    mean = divide(squares(values, shape.trees["norm"]), xp.float32(shape.hidden))
    scale = divide(one, square_root(add(mean, xp.float32(shape.eps))))
    normal = multiply(values, scale[..., None])
    w = shape.storage.load(weight).reshape(-1, shape.hidden)  # [HC, H], or [1, H] where shared
    y = fma(normal, w, normal)
    return shape.storage.store(y).reshape(x.shape)


def down(shape: OracleShape, y: Bits, weight: Bits, kind: str) -> tuple[Bits, Bits]:
    """d [N, R + HC] (final: [N, R]) and lora [N, R]; padding rows of the weight are left out."""
    load = shape.storage.load
    xp = namespace(y)
    rows = load(weight[: shape.down_rows(kind)])
    d = shape.storage.store(dot(load(y)[:, None, :], rows[None], shape.trees["down"]))
    t = divide(load(d[:, : shape.low_rank]), xp.float32(shape.branches))
    return d, shape.storage.store(silu(t))


def up(shape: OracleShape, lora: Bits, weight: Bits) -> Bits:
    """g [N, HC*H]: the logits of the gates, rounded to storage."""
    load = shape.storage.load
    return shape.storage.store(dot(load(lora)[:, None, :], load(weight)[None], shape.trees["up"]))


def mix(shape: OracleShape, g: Bits, y: Bits) -> Bits:
    """block_input [N, H]: the gated mean of y over the branches, in increasing order."""
    load = shape.storage.load
    xp = namespace(g)
    gates = _by_branch(shape, sigmoid(load(g)))
    values = _by_branch(shape, load(y))
    acc: F32 = xp.zeros(values[:, 0].shape, dtype=xp.float32)
    for branch in range(shape.branches):
        acc = fma(gates[:, branch], values[:, branch], acc)
    return shape.storage.store(divide(acc, xp.float32(shape.branches)))


def _by_branch(shape: OracleShape, values: F32) -> F32:
    """[N, HC*H] as [N, HC, H]."""
    return values.reshape(-1, shape.branches, shape.hidden)


def _check_shapes(shape: OracleShape, tensors: Mapping[str, Bits], kind: str) -> None:
    """Refuse tensors that aren't of the workload's shape; down_weight may have any padding."""
    wanted, rows = shape.tensors(kind), shape.down_rows(kind)
    for name in KINDS[kind].inputs:
        found, size = tensors[name].shape, wanted[name]
        if name == "down_weight":
            if len(found) != 2 or found[0] < rows or found[1] != shape.width:
                raise ValueError(
                    f"down_weight has shape {found}; kind {kind!r} needs [{rows} or more, {shape.width}]."
                )
        elif found != size:
            raise ValueError(f"{name} has shape {found}; kind {kind!r} needs {size}.")
