"""Philox known answers and what each kind of input promises."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.evidence.oracle.philox import philox, stream
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape

TREES = {"norm": (1, 32, 8), "down": (4, 32, 8), "up": (1, 32, 2)}


def shape(dtype: str = "float16", tokens: int = 4, **changes) -> OracleShape:
    return OracleShape(dtype, branches=4, hidden=256, low_rank=32, tokens=tokens, trees=TREES, **changes)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    # Known answers of philox4x32-10 as published with Random123 (tests/kat_vectors).
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    assert philox(np.array([counter], dtype=np.uint32), key, np)[0].tolist() == words


def test_streams_differ_by_seed_and_name_and_are_prefixes_of_themselves():
    long = stream(7, "block", 100_003, np)
    assert len(long) == 100_003
    assert stream(7, "block", 10, np).tolist() == long[:10].tolist()
    assert len(set(long.tolist())) > 99_990
    others = [stream(8, "block", 10, np), stream(7, "blocks", 10, np), stream(7 + (1 << 32), "block", 10, np)]
    assert all(other.tolist() != long[:10].tolist() for other in others)
    index = 4 * 20_000  # a later block continues the counter
    counter = np.array([[20_000, 0, int.from_bytes(b"bloc", "little"), ord("k")]], dtype=np.uint32)
    assert long[index : index + 4].tolist() == philox(counter, (7, 0), np)[0].tolist()


@pytest.mark.parametrize(("seed", "name"), [(-1, "a"), (1 << 64, "a"), (0, "ninebytes")])
def test_refused_streams(seed, name):
    with pytest.raises(ValueError, match=r"out of range|at most 8"):
        stream(seed, name, 4, np)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_kinds(dtype, kind):
    s = shape(dtype)
    load = s.storage.load
    made = tensors(s, kind, seed=4)
    assert {name: bits.shape for name, bits in made.items()} == {
        "residual": (4, 1024),
        "block": (4, 256),
        "injection": (4, 4),
        "norm_weight": (1024,),
    }
    assert all(bits.dtype == np.uint16 for bits in made.values())
    residual, block = load(made["residual"]), load(made["block"])
    smallest_normal = 2.0**-14 if dtype == "float16" else 2.0**-126
    match kind:
        case "zeros":
            assert not made["residual"].any()
        case "normal":
            assert residual.std() == pytest.approx(2 / 3**0.5, rel=0.05)
            assert abs(residual.mean()) < 0.1
        case "tiny":
            assert residual.std() == pytest.approx(0.02 / 3**0.5, rel=0.05)
        case "large":
            x = load(boundary(s, made, "combine")["x"])
            assert np.isfinite(x).all()
            assert np.abs(x).max() > (10_000 if dtype == "float16" else 1e17)
        case "subnormal":
            assert (np.abs(residual) < smallest_normal).all()
            assert np.count_nonzero(residual) > 900
        case "signed_zero":
            assert set(np.unique(made["residual"])) == {0x0000, 0x8000}
        case "nonfinite":
            injection = load(made["injection"])
            assert np.isinf(residual[0]).sum() == 1
            assert np.isnan(block[1]).sum() == 1
            assert np.isinf(injection[2]).all()
            assert np.isnan(injection[3, 0])
        case "ties":
            exact = residual.reshape(4, 4, 256).astype(np.float64) + block[:, None, :]
            x = load(boundary(s, made, "combine")["x"]).reshape(4, 4, 256)
            unit = 2.0**-s.storage.fraction_bits
            assert (np.abs(x - exact) == unit / 2).mean() > 0.99
            assert np.abs(x - exact).max() == unit / 2


def test_infinite_injections_alone_leave_the_outputs_finite():
    s = shape(tokens=1)
    given = tensors(s, "nonfinite", seed=2) | weights(s, 2)
    assert np.isinf(s.storage.load(given["injection"])).all()
    assert np.isfinite(s.storage.load(boundary(s, given)["block_input"])).all()


def test_weights_keep_activations_of_order_one():
    s = shape()
    given = tensors(s, "normal", 1) | weights(s, 1)
    assert given["down_weight"].shape == (48, 1024)
    assert weights(s, 1, "final")["down_weight"].shape == (32, 1024)
    stored = {name: s.storage.load(bits).std() for name, bits in boundary(s, given).items()}
    assert all(0.2 < deviation < 8 for deviation in stored.values()), stored


def test_shared_norm_weight_and_seeds():
    s = shape(norm_weight="shared")
    assert tensors(s, "normal", 1)["norm_weight"].shape == (256,)
    first, again, other = (tensors(s, "normal", seed)["residual"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_unknown_kind():
    with pytest.raises(ValueError, match="Input kind 'huge' is unknown; use one of zeros, tiny"):
        tensors(shape(), "huge", 1)  # type: ignore[arg-type]
