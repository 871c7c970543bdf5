"""The boundary against a scalar evaluation of docs/hyper_connection.md, and what its kinds give."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness.bits import mismatches
from kernwright.evidence.oracle.functions import sigmoid
from kernwright.evidence.oracle.trees import squares
from kernwright.families.hyper_connection.inputs import tensors, weights
from kernwright.families.hyper_connection.oracle import boundary, combine, mix, norm
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.families.hyper_connection.shape import KINDS

ODD = {"norm": (1, 4, 2), "down": (3, 8, 4), "up": (1, 2, 5)}


def odd_shape(dtype: str = "float16", norm_weight: str = "per_branch", eps: float = 1e-6) -> OracleShape:
    return OracleShape(
        dtype, branches=3, hidden=24, low_rank=10, tokens=2, trees=ODD, norm_weight=norm_weight, eps=eps
    )


def scalar_boundary(
    scalar, s: OracleShape, given: dict[str, list], token: int, kind: str
) -> dict[str, list[float]]:
    """One token, one number at a time."""

    def keep(value: float) -> float:
        return scalar.store(value, s.dtype)

    hc, h, r = s.branches, s.hidden, s.low_rank
    state = given["residual"][token]
    out: dict[str, list[float]] = {}
    if kind != "first":
        gates = [2 * scalar.sigmoid(scalar.divide(v, hc)) for v in given["injection"][token]]
        block = given["block"][token]
        state = [keep(scalar.fma(block[i % h], gates[i // h], state[i])) for i in range(hc * h)]
        out["x"] = state
    if kind == "combine":
        return out
    y = []
    eps = float(np.float32(s.eps))
    for b in range(hc):
        x = state[b * h : (b + 1) * h]
        mean = scalar.divide(scalar.tree(x, x, s.trees["norm"]), h)
        root = float(np.float32(math.sqrt(scalar.add(mean, eps))))  # double rounding is innocuous here
        scale = scalar.divide(1.0, root)
        for i in range(h):
            normal = scalar.fma(x[i], scale, 0.0 * x[i])
            w = given["norm_weight"][b * h + i if s.norm_weight == "per_branch" else i]
            y.append(keep(scalar.fma(normal, w, normal)))
    rows = r if kind == "final" else r + hc
    d = [keep(scalar.tree(y, given["down_weight"][n], s.trees["down"])) for n in range(rows)]
    t = [scalar.divide(v, hc) for v in d[:r]]
    lora = [keep(scalar.fma(v, scalar.sigmoid(v), 0.0)) for v in t]
    g = [keep(scalar.tree(lora, row, s.trees["up"])) for row in given["up_weight"]]
    mixed = []
    for i in range(h):
        acc = 0.0
        for b in range(hc):
            acc = scalar.fma(scalar.sigmoid(g[b * h + i]), y[b * h + i], acc)
        mixed.append(keep(scalar.divide(acc, hc)))
    out |= {"y": y, "d": d, "lora": lora, "g": g, "block_input": mixed}
    return out if kind == "final" else out | {"injection_out": d[r:]}


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
@pytest.mark.parametrize(("dtype", "norm_weight"), [("float16", "per_branch"), ("bfloat16", "shared")])
def test_equals_the_scalar_evaluation(scalar, kind, dtype, norm_weight):
    s = odd_shape(dtype, norm_weight)
    given = tensors(s, "normal", 11) | weights(s, 11, kind)
    found = boundary(s, given, kind)
    numbers = {name: s.storage.load(bits).tolist() for name, bits in given.items()}
    expected = [scalar_boundary(scalar, s, numbers, token, kind) for token in range(s.tokens)]
    assert set(found) == set(expected[0])
    for name, bits in found.items():
        want = s.storage.store(np.array([token[name] for token in expected], dtype=np.float32))
        comparison = mismatches(bits, want, s.storage)
        assert comparison.count == 0, f"{name} {comparison.first}"


def test_ties_and_an_eps_of_another_size(scalar):
    s = odd_shape(eps=0.25)
    given = tensors(s, "ties", 3) | weights(s, 3)
    numbers = {name: s.storage.load(bits).tolist() for name, bits in given.items()}
    found = boundary(s, given)
    expected = scalar_boundary(scalar, s, numbers, 1, "boundary")
    for name in ("x", "y", "block_input"):
        assert s.storage.load(found[name][1]).tolist() == expected[name], name


def normal_bits(seed: int, *size: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float16).view(np.uint16)


def differing(found: np.ndarray, other: np.ndarray) -> list[tuple[int, ...]]:
    """Where one float32 rounding too many shows in float16: rare, so at least five places are asked for."""
    places = [tuple(map(int, place)) for place in np.argwhere(found != other)]
    assert len(places) >= 5
    return places


def wide_shape(branches: int) -> OracleShape:
    """H = 50,000: enough elements that rounding once too often shows."""
    trees = {"norm": (1, 32, 1), "down": (1, 32, 1), "up": (1, 1, 1)}
    return OracleShape("float16", branches, hidden=50_000, low_rank=1, tokens=1, trees=trees)


def test_combine_is_one_fma(scalar):
    s = wide_shape(branches=4)
    load, store = s.storage.load, s.storage.store
    residual, block, injection = normal_bits(1, 1, s.width), normal_bits(2, 1, s.hidden), normal_bits(3, 1, 4)
    found = combine(s, residual, block, injection).reshape(4, -1)
    gate = 2 * sigmoid(load(injection) / np.float32(4))[0]
    state = load(residual).reshape(4, -1)
    for b, i in differing(found, store(load(block) * gate[:, None] + state)):
        exact = scalar.fma(float(load(block)[0, i]), float(gate[b]), float(state[b, i]))
        assert load(found[b, i : i + 1])[0] == scalar.store(exact, "float16")


def test_the_norm_weight_is_one_fma(scalar):
    s = wide_shape(branches=4)
    load, store = s.storage.load, s.storage.store
    x, weight = normal_bits(4, 1, s.width), normal_bits(5, s.width)
    found = norm(s, x, weight).reshape(4, -1)
    values, w = load(x).reshape(4, -1), load(weight).reshape(4, -1)
    mean = squares(values, s.trees["norm"]) / np.float32(s.hidden)
    normal = values * (1 / np.sqrt(mean + np.float32(s.eps)))[:, None]
    for b, i in differing(found, store(normal * (1 + w))):
        exact = scalar.fma(float(normal[b, i]), float(w[b, i]), float(normal[b, i]))
        assert load(found[b, i : i + 1])[0] == scalar.store(exact, "float16")


def test_mix_is_a_chain_of_fmas(scalar):
    s = wide_shape(branches=4)
    load, store = s.storage.load, s.storage.store
    g, y = normal_bits(6, 1, s.width), normal_bits(7, 1, s.width)
    found = mix(s, g, y)[0]
    gates, values = sigmoid(load(g)).reshape(4, -1), load(y).reshape(4, -1)
    rounded_twice = np.float32(0)
    for b in range(4):
        rounded_twice = rounded_twice + gates[b] * values[b]
    for (i,) in differing(found, store(rounded_twice / np.float32(4))):
        acc = 0.0
        for b in range(4):
            acc = scalar.fma(float(gates[b, i]), float(values[b, i]), acc)
        assert load(found[i : i + 1])[0] == scalar.store(acc / 4, "float16")


def test_the_norm_reads_the_rounded_state():
    """y of a boundary is y of a first boundary on the stored x."""
    s = odd_shape()
    given = tensors(s, "normal", 5) | weights(s, 5)
    whole = boundary(s, given)
    rest = boundary(s, given | {"residual": whole["x"]}, "first")
    assert "x" not in rest
    for name, bits in rest.items():
        assert mismatches(bits, whole[name], s.storage).count == 0


def test_every_token_stands_alone():
    s = odd_shape()
    given = tensors(s, "nonfinite", 2) | weights(s, 2)
    whole = boundary(s, given)
    single = OracleShape(s.dtype, 3, 24, 10, 1, trees=ODD)
    for token in range(2):
        one = given | {name: given[name][token : token + 1] for name in ("residual", "block", "injection")}
        for name, bits in boundary(single, one).items():
            assert mismatches(bits, whole[name][token : token + 1], s.storage).count == 0


def test_zeros_stay_zero_and_the_gates_are_a_half():
    s = odd_shape()
    found = boundary(s, tensors(s, "zeros", 1) | weights(s, 1))
    assert not any(bits.any() for bits in found.values())


def test_overflow_gives_infinity():
    s = odd_shape()
    given = tensors(s, "zeros", 1)
    given["residual"][:], given["block"][:] = 0x7BFF, 0x7BFF
    assert (boundary(s, given, "combine")["x"] == 0x7C00).all()


def test_padding_rows_of_down_are_not_read():
    s = odd_shape()
    given = tensors(s, "normal", 1) | weights(s, 1)
    assert given["down_weight"].shape == (16, 72)
    found = boundary(s, given)
    given["down_weight"][13:] = s.storage.nan
    assert all(np.array_equal(bits, found[name]) for name, bits in boundary(s, given).items())
    assert found["d"].shape == (2, 13)
    assert np.array_equal(found["injection_out"], found["d"][:, 10:])


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_among_what_is_given(kind):
    s = odd_shape()
    assert set(KINDS[kind].outputs) <= set(boundary(s, tensors(s, "normal", 1) | weights(s, 1, kind), kind))


def test_wrong_shapes_are_refused():
    s = odd_shape()
    given = tensors(s, "normal", 1) | weights(s, 1)
    with pytest.raises(ValueError, match=r"block has shape \(2, 23\); kind 'boundary' needs \(2, 24\)"):
        boundary(s, given | {"block": given["block"][:, :23]})
    with pytest.raises(
        ValueError, match=r"down_weight has shape \(12, 72\); kind 'boundary' needs \[13 or more"
    ):
        boundary(s, given | {"down_weight": given["down_weight"][:12]})
    with pytest.raises(ValueError, match="can't cut 24 elements"):
        OracleShape("float16", 3, 24, 10, 1, trees=ODD | {"norm": (5, 1, 1)})
    with pytest.raises(ValueError, match="norm, down and up are needed"):
        OracleShape("float16", 3, 24, 10, 1, trees={"norm": (1, 1, 1)})
    with pytest.raises(ValueError, match="must all be at least 1"):
        OracleShape("float16", 3, 24, 10, 0, trees=ODD)
