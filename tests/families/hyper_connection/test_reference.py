"""The torch reference of a boundary: by hand, against the array oracle, and the family's known traps."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from harness.bits import mismatches
from kernwright.families.hyper_connection import inputs as oracle_inputs
from kernwright.families.hyper_connection import oracle as oracle
from kernwright.families.hyper_connection import reference as hyper_connection_torch
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.families.hyper_connection.shape import KINDS as DECLARED
from kernwright.families.hyper_connection.shape import BoundaryShape

KINDS = ("boundary", "first", "combine", "final")


@pytest.fixture
def op(make: ModuleType) -> Any:
    return make.dispatch_of().operators["hyper_connection"]


def half(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float16)


def test_a_boundary_by_hand(op: Any) -> None:
    # HC 2, H 2, R 1. Injection 0: s = 2 * 0.5 = 1, so x = residual + block = [2, 2, -2, 2].
    # Mean square 4: r = 1 / sqrt(4 + 1e-6) = 0.49999994, y = fp16(0.9999999 * (1 + w)) = [1, 1.5, -1, 2].
    residual, block, injection = half([1.0, 3.0, -3.0, 3.0]), half([1.0, -1.0]), half([0.0, 0.0])
    norm_weight = torch.tensor([0.0, 0.5, 0.0, 1.0], dtype=torch.float16)
    down = torch.zeros(16, 4, dtype=torch.float16)
    down[0] = torch.tensor([1.0, 1.0, 0.5, 1.0])  # d0 = 1 + 1.5 - 0.5 + 2 = 4; t = 2
    down[1] = torch.tensor([1.0, 0.0, 0.0, 0.0])  # injection_out 1
    down[2] = torch.tensor([0.0, 0.0, 3.0, 1.0])  # injection_out -3 + 2
    down[3:] = float("nan")  # padding is never read
    up = half([0.0], [1.0], [-1.0], [0.0])
    x, block_input, injection_out = op(residual, block, injection, norm_weight, down, up)
    assert x.tolist() == [[2.0, 2.0, -2.0, 2.0]]
    assert injection_out.tolist() == [[1.0, -1.0]]
    lora = float(np.float16(2 / (1 + math.exp(-2))))  # 1.7617
    gate = 1 / (1 + math.exp(-lora))
    expected = [(0.5 * 1 + (1 - gate) * -1) / 2, (gate * 1.5 + 0.5 * 2) / 2]
    assert block_input.tolist() == np.float16([expected]).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("branches", "hidden", "low_rank", "tokens", "norm_weight", "trees"),
    [
        (3, 24, 10, 2, "per_branch", {"norm": (3, 4, 2), "down": (3, 2, 4), "up": (1, 4, 1)}),
        (4, 320, 32, 3, "shared", {"norm": (1, 32, 8), "down": (4, 32, 8), "up": (1, 32, 2)}),
    ],
)
def test_every_bit_equals_the_array_oracle(
    dtype: str,
    kind: Any,
    branches: int,
    hidden: int,
    low_rank: int,
    tokens: int,
    norm_weight: Any,
    trees: dict[str, tuple[int, int, int]],
) -> None:
    reference = OracleShape(dtype, branches, hidden, low_rank, tokens, norm_weight, trees=trees)
    shape = BoundaryShape(dtype, branches, hidden, low_rank, tokens, norm_weight, 1e-6, 1)
    weights = oracle_inputs.weights(reference, 5, kind)
    for sort in ("normal", "tiny", "large", "subnormal", "signed_zero", "nonfinite", "ties"):
        bits = {**oracle_inputs.tensors(reference, sort, 3), **weights}
        expected = oracle.boundary(reference, bits, kind)
        tensors = {
            name: torch.from_numpy(bits[name].view(np.int16)).view(getattr(torch, dtype))
            for name in DECLARED[kind].inputs
        }
        found = hyper_connection_torch.exact(shape, kind, tensors, trees)
        assert set(found) >= set(DECLARED[kind].outputs)
        for name, tensor in found.items():
            bits_found = tensor.view(torch.int16).numpy().view(np.uint16)
            compared = mismatches(bits_found, expected[name], reference.storage)
            assert compared.count == 0, (sort, name, str(compared.first))


def test_the_norm_reads_the_rounded_state(op: Any) -> None:
    """Fusing combine into the norm must not remove x's rounding point."""
    # s = 1.4 and block = 2**-24, the smallest float16: x rounds to 2**-24, and eps alone makes the rms.
    tiny, injection = 2.0**-24, 2 * math.log(0.7 / 0.3)
    down = torch.zeros(16, 4, dtype=torch.float16)
    down[1, 0] = 1024.0  # shows y of the first element
    up, weight = torch.zeros(4, 1, dtype=torch.float16), torch.zeros(4, dtype=torch.float16)
    residual, block = half([0.0, 0.0, 0.0, 0.0]), half([tiny, tiny])
    x, _, injection_out = op(residual, block, half([injection, injection]), weight, down, up)
    assert x.tolist() == [[tiny] * 4]
    assert injection_out[0, 0] == np.float16(1024 * np.float16(tiny / math.sqrt(1e-6)))
    assert injection_out[0, 0] != np.float16(1024 * np.float16(1.4 * tiny / math.sqrt(1e-6)))


def test_one_plus_w_is_not_formed_in_storage() -> None:
    shape = BoundaryShape("float16", 2, 64, 1, 1, "per_branch", 1e-6, 1)
    generator = torch.Generator().manual_seed(1)
    state = torch.randn(1, 128, generator=generator).half()
    weight = torch.full((128,), 3 * 2.0**-12, dtype=torch.float16)
    y = hyper_connection_torch._norm(shape, state, weight, (1, 8, 8)).double().numpy()
    x = state.double().numpy().reshape(2, 64)
    normal = (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)).reshape(1, 128)
    assert np.array_equal(y, np.float16(normal * (1 + 3 * 2.0**-12)))
    formed = float(torch.tensor(1.0).half() + weight[0])
    assert formed == 1 + 2.0**-10
    assert np.count_nonzero(y != np.float16(normal * formed)) > 10


def test_an_overflow_stays_infinite(op: Any) -> None:
    residual, block = half([60000.0, 1.0, 0.0, -60000.0]), half([60000.0, -60000.0])
    x, _, _ = op(residual, block, half([0.0, 0.0]), None, None, None, kind="combine")
    assert x.tolist() == [[math.inf, -60000.0, 60000.0, -math.inf]]


def test_the_sum_of_squares_takes_every_lane(op: Any) -> None:
    # 64 equal elements have rms 1; half of them would give y = sqrt(2).
    residual = torch.ones(1, 128, dtype=torch.float16)
    down = torch.zeros(16, 128, dtype=torch.float16)
    down[1, 0] = 1.0
    _, _, injection_out = op(
        residual, None, None, torch.zeros(64).half(), down, torch.zeros(128, 1).half(), kind="first"
    )
    assert injection_out.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_each_row_is_independent_of_the_batch(
    make: ModuleType, op: Any, kind: str, dtype: torch.dtype
) -> None:
    batch = make.tensors(tokens=3, kind=kind, dtype=dtype)
    together = op(*batch, kind=kind, branches=4)
    for row in range(3):
        alone = [t if t is None or index > 2 else t[row : row + 1] for index, t in enumerate(batch)]
        for whole, single in zip(together, op(*alone, kind=kind, branches=4), strict=True):
            assert (whole is None) == (single is None)
            if whole is not None:
                assert torch.equal(whole[row : row + 1], single)


def test_blocks_of_tokens_change_no_bit(make: ModuleType, op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make.tensors(tokens=5)
    whole = op(*tensors)
    monkeypatch.setattr(hyper_connection_torch, "BLOCK_ELEMENTS", 1)
    for one, other in zip(whole, op(*tensors), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_above_16_tokens_the_library_stays_close(
    make: ModuleType, op: Any, kind: str, dtype: torch.dtype
) -> None:
    tensors = make.tensors(tokens=17, kind=kind, dtype=dtype)
    many = op(*tensors, kind=kind, branches=4)
    first = [t if t is None or index > 2 else t[:16] for index, t in enumerate(tensors)]
    few = op(*first, kind=kind, branches=4)
    step = 2.0**-9 if dtype is torch.float16 else 2.0**-6
    for approximate, exact in zip(many, few, strict=True):
        if exact is not None:
            assert approximate.shape[0] == 17
            assert torch.allclose(approximate[:16].float(), exact.float(), rtol=step, atol=step)
