"""The op's arguments: what is a valid call, what falls back and why, and what is an error."""

from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.runtime import Dispatch

KINDS = {
    "boundary": (True, True, True),
    "first": (False, True, True),
    "combine": (True, False, False),
    "final": (False, True, False),
}


@pytest.fixture
def bound(make: ModuleType) -> Dispatch:
    return make.dispatch_of(make.workload(make.candidate("control")))


@pytest.fixture
def op(bound: Dispatch) -> Any:
    return bound.operators["hyper_connection"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [0, 1, 3, 17, 33])
def test_shapes_of_every_kind(make: ModuleType, op: Any, kind: str, tokens: int) -> None:
    results = op(*make.tensors(tokens=tokens, kind=kind), kind=kind)
    widths = (256, 64, 4)
    for present, width, result in zip(KINDS[kind], widths, results, strict=True):
        assert (None if result is None else tuple(result.shape)) == ((tokens, width) if present else None)
        assert result is None or (result.dtype == torch.float16 and result.is_contiguous())


def test_no_tokens_count_as_nothing(make: ModuleType, bound: Dispatch, op: Any) -> None:
    op(*make.tensors(tokens=0))
    assert bound.stats().fallbacks == {}


def test_a_non_contiguous_tensor_falls_back_with_its_strides(
    make: ModuleType, bound: Dispatch, op: Any
) -> None:
    tensors = make.tensors()
    wide = torch.zeros(1, 512, dtype=torch.float16)
    wide[:, ::2] = tensors[0]
    strided = [wide[:, ::2], *tensors[1:]]
    explanation = bound.explain("hyper_connection", *strided)
    assert explanation.chosen == "reference"
    assert [d.reason for d in explanation.decisions] == [
        "residual is not contiguous: strides (512, 2) of shape (1, 256)"
    ]
    for one, other in zip(op(*strided), op(*tensors), strict=True):
        assert torch.equal(one, other)
    assert bound.stats().fallbacks == {"layout": 1, "device": 1}


def test_a_misaligned_tensor_falls_back(make: ModuleType, bound: Dispatch, op: Any) -> None:
    tensors = make.tensors()
    storage = torch.zeros(16 * 256 * 3 + 3, dtype=torch.float16)
    shifted = storage[3 : 3 + tensors[4].numel()].view(tensors[4].shape).copy_(tensors[4])
    moved = [*tensors[:4], shifted, tensors[5]]
    assert [d.reason for d in bound.explain("hyper_connection", *moved).decisions] == [
        "down_weight starts at an address that is not a multiple of 16 bytes"
    ]
    for one, other in zip(op(*moved), op(*tensors), strict=True):
        assert torch.equal(one, other)


def test_another_dtype_falls_back(make: ModuleType, bound: Dispatch, op: Any) -> None:
    tensors = make.tensors(dtype=torch.bfloat16)
    explanation = bound.explain("hyper_connection", *tensors)
    assert explanation.workload == "bf16-hc4-h64-n1-r32-tp1"
    assert [d.reason for d in explanation.decisions] == ["dtype is bfloat16; this workload is float16"]
    assert op(*tensors)[0].dtype == torch.bfloat16


def test_the_reference_follows_the_trees_of_the_tables_workload(make: ModuleType) -> None:
    tensors = make.tensors(tokens=2, hidden=96, low_rank=34)
    default = make.dispatch_of()
    one = make.dispatch_of(make.workload(make.candidate("control"), hidden=96, low_rank=34))
    notes = [d.explain("hyper_connection", *tensors).reference for d in (default, one)]
    assert notes == [
        "torch, tree-exact, default trees norm [1, 8, 8], down [4, 8, 8], up [1, 32, 2]",
        "torch, tree-exact, trees of workload fp16-hc4-h96-n1-r34-tp1",
    ]
    odd = make.tensors(hidden=20, low_rank=7)
    assert default.explain("hyper_connection", *odd).reference == (
        "torch, tree-exact, default trees norm [1, 16, 1], down [4, 16, 1], up [1, 32, 1]"
    )


def test_the_kind_first_takes_its_branches_from_the_table(make: ModuleType, op: Any) -> None:
    tensors = make.tensors(kind="first")
    found = op(*tensors, kind="first")
    assert torch.equal(found[1], op(*tensors, kind="first", branches=4)[1])
    with pytest.raises(ValueError, match=r"number of branches .*has none for low_rank 16; pass branches="):
        op(*make.tensors(kind="first", low_rank=16), kind="first")
    two = make.dispatch_of(
        make.workload(make.candidate("control")),
        make.workload(make.candidate("control"), branches=2, hidden=128),
    )
    with pytest.raises(ValueError, match=r"has several \(2, 4\) for low_rank 32; pass branches="):
        two.operators["hyper_connection"](*tensors, kind="first")
    shared = make.tensors(kind="first", shared=True, hidden=96)
    assert op(*shared, kind="first")[2].shape == (1, 4)


def test_out_is_written_and_returned(make: ModuleType, op: Any) -> None:
    tensors = make.tensors()
    fresh = op(*tensors)
    out = tuple(torch.full_like(result, float("nan")) for result in fresh)
    for _ in range(2):
        given = op(*tensors, out=out)
        assert all(a is b for a, b in zip(given, out, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(given, fresh, strict=True))
    x = torch.empty(1, 512, dtype=torch.float16)[:, ::2]
    assert torch.equal(op(*make.tensors(kind="combine"), kind="combine", out=(x, None, None))[0], fresh[0])


def test_results_are_fresh(make: ModuleType, op: Any) -> None:
    tensors = make.tensors()
    pointers = {t.data_ptr() for t in (*op(*tensors), *op(*tensors), *tensors)}
    assert len(pointers) >= 9


def edited(tensors: list[Any], position: int, value: Any) -> list[Any]:
    return [*tensors[:position], value, *tensors[position + 1 :]]


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (1, None, ValueError, "block is None; kind boundary needs a tensor"),
        (0, [1.0], TypeError, "residual is a list of 1; it must be a torch tensor"),
        (
            3,
            torch.zeros(256),
            TypeError,
            "norm_weight is float32 and residual is float16; all",
        ),
        (
            2,
            torch.zeros(1, 4, device="meta").half(),
            ValueError,
            "injection is on meta and residual is on",
        ),
        (
            0,
            torch.zeros(256).half(),
            ValueError,
            r"residual has shape \(256,\); it must be \[tok",
        ),
        (1, torch.zeros(2, 64).half(), ValueError, r"block has shape \(2, 64\); with 1 tokens, 4 branches"),
        (
            1,
            torch.zeros(1, 60).half(),
            ValueError,
            "block has 60 elements a branch, which doesn't",
        ),
        (2, torch.zeros(1, 2).half(), ValueError, "branches is contradictory: 4 by block, 2 by injection"),
        (3, torch.zeros(128).half(), ValueError, "branches is contradictory: 4 by block, 2 by norm_weight"),
        (4, torch.zeros(36, 256).half(), ValueError, r"down_weight has shape \(36, 256\).*needs \(48, 256\)"),
        (5, torch.zeros(64, 32).half(), ValueError, r"up_weight has shape \(64, 32\).*needs \(256, 32\)"),
        (5, torch.zeros(256).half(), ValueError, r"up_weight has shape \(256,\); it must be \[branches"),
    ],
)
def test_contradicting_arguments(
    make: ModuleType, op: Any, position: int, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        op(*edited(make.tensors(), position, value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_dtype_without_a_meaning(make: ModuleType, op: Any, dtype: torch.dtype) -> None:
    tensors = [tensor.to(dtype) for tensor in make.tensors()]
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=f"residual is {name}; allowed are float16, bfloat16, float32"):
        op(*tensors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "boundry"}, r"kind is 'boundry'; allowed are .*; did you mean boundary\?"),
        ({"kind": "combine"}, "norm_weight is a tensor; kind combine has no norm_weight: pass None"),
        ({"kind": "final"}, r"down_weight has shape \(48, 256\).*kind final needs \(32, 256\)"),
        ({"eps": -1.0}, "eps is -1.0; it must be a finite FP32 number of at least 0"),
        ({"eps": float("nan")}, "eps is nan; it must be"),
        ({"eps": "x"}, "eps is 'x'; it must be"),
        ({"eps": [1e-6]}, r"eps is \[1e-06\]; it must be"),
        ({"eps": 10**400}, "eps is 1000*; it must be"),
        ({"kind": ["a"]}, r"kind is \['a'\]; allowed are boundary, first, combine, final"),
        ({"policy": 3}, "policy is 3; allowed are measured, verified, control, reference"),
        ({"policy": ""}, "policy is ''; allowed are measured, verified, control, reference"),
        ({"out": 3}, r"out is an int; it must be a tuple \(x, block_input, injection_out\)"),
        ({"branches": 8}, "branches is contradictory: 4 by block, 4 by injection, 8 by branches="),
        ({"policy": "best"}, "policy is 'best'; allowed are measured, verified, control, reference"),
        ({"out": (None, None)}, r"out is a tuple of 2; it must be a tuple \(x, block_input, injection_out\)"),
        ({"out": (None, None, None)}, "out's x is None; kind boundary needs a tensor"),
    ],
)
def test_options_that_are_not_allowed(
    make: ModuleType, op: Any, options: dict[str, Any], message: str
) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            op(*make.tensors(), **options)
        op(*make.tensors())  # a call that is known now


class Unhashable:
    """A communicator but for its hash."""

    rank, world_size, layout_version, capabilities = 0, 1, 1, frozenset[str]()
    __hash__ = None  # type: ignore[assignment]

    def owns(self, channel: str) -> bool:
        return bool(channel)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": (1, 2, 3)}, "out's x is an int; it must be a torch tensor"),
        ({"comm": 3}, "comm is an int; it must be None or a communicator: hashable, with rank"),
        ({"comm": Unhashable()}, "comm is an Unhashable; it must be None or a communicator: hashable"),
        ({"branches": "4"}, "branches is '4'; it must be an integer of at least 2, or None"),
        ({"branches": [4]}, r"branches is \[4\]; it must be an integer"),
    ],
)
def test_options_of_another_type(make: ModuleType, op: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        op(*make.tensors(), **options)


def test_out_that_does_not_fit(make: ModuleType, op: Any) -> None:
    tensors = make.tensors(kind="combine")
    with pytest.raises(ValueError, match=r"out's x is torch.float32 of shape \(1, 256\) on cpu; it must be"):
        op(*tensors, kind="combine", out=(torch.zeros(1, 256), None, None))
    with pytest.raises(ValueError, match="out's x shares memory with residual; give it memory of its own"):
        op(*tensors, kind="combine", out=(tensors[0], None, None))
    with pytest.raises(ValueError, match="out's block_input is a tensor; kind combine has no block_input"):
        op(*tensors, kind="combine", out=(torch.zeros(1, 256).half(), tensors[1], None))
    good = torch.zeros(1, 256).half()
    op(*tensors, kind="combine", out=(good, None, None))
    with pytest.raises(ValueError, match="shares memory"):  # also once the call is known
        op(*tensors, kind="combine", out=(tensors[0], None, None))
    boundary = make.tensors()
    both = torch.zeros(512).half()
    overlapping = (both[:256].view(1, 256), both[248:312].view(1, 64), torch.zeros(1, 4).half())
    with pytest.raises(ValueError, match="out's x shares memory with block_input"):
        op(*boundary, out=overlapping)


def test_gradients_are_refused(make: ModuleType, op: Any) -> None:
    tensors = make.tensors()
    tensors[5].requires_grad_()
    with pytest.raises(RuntimeError, match="up_weight requires grad, and hyper_connection has no gradient"):
        op(*tensors)
    with torch.no_grad():
        assert op(*tensors)[1].shape == (1, 64)


def test_the_norm_weight_is_told_apart_by_its_element_count(make: ModuleType, op: Any) -> None:
    tensors = make.tensors()
    square = edited(tensors, 3, tensors[3].view(4, 64))
    assert torch.equal(op(*square)[1], op(*tensors)[1])
    shared = make.tensors(shared=True)
    repeated = edited(shared, 3, shared[3].repeat(4))
    assert torch.equal(op(*shared)[1], op(*repeated)[1])


def test_a_plan_is_called_with_tensors_alone(make: ModuleType, bound: Dispatch, op: Any) -> None:
    tensors = make.tensors()
    plan = op.plan(*tensors)
    assert plan.plan is None
    assert plan.selection.contract == "exact"
    for one, other in zip(plan(*tensors), op(*tensors), strict=True):
        assert torch.equal(one, other)
    assert bound.stats().fallbacks == {"device": 2}


def test_remembered_calls_are_bounded(make: ModuleType, op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernwright.runtime.op.MAX_RESOLVED", 2)
    for tokens in (1, 2, 3, 4, 1):
        op(*make.tensors(tokens=tokens, kind="combine"), kind="combine")
        assert len(op._resolved) <= 2


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_no_output_lies_in_another_tensor(make: ModuleType, op: Any, kind: str) -> None:
    """Each output against each input, weights too, and each other output: one element in common is too much."""
    given = make.tensors(kind=kind)
    results = op(*given, kind=kind)

    def outputs() -> list[Any]:
        return [None if result is None else torch.empty_like(result) for result in results]

    for place, result in enumerate(results):
        if result is None:
            continue
        inputs = [
            (name, tensor) for name, tensor in zip(op.arguments, given, strict=True) if tensor is not None
        ]
        for name, tensor in inputs:
            size, many = tensor.numel(), result.numel()
            memory = torch.zeros(size + 2 * many, dtype=tensor.dtype)
            inside = memory[many : many + size].view(tensor.shape)
            inside.copy_(tensor)
            moved = edited(given, op.arguments.index(name), inside)
            for begin, apart in (
                (0, True),
                (1, False),
                (many + size - 1, False),
                (many + size, True),
                (many, False),
            ):
                out = outputs()
                out[place] = memory[begin : begin + many].view(result.shape)
                if apart:
                    op(*moved, kind=kind, out=tuple(out))
                    assert torch.equal(out[place], result)
                else:
                    with pytest.raises(
                        ValueError, match=f"out's {op.results[place]} shares memory with {name};"
                    ):
                        op(*moved, kind=kind, out=tuple(out))
        for other, another in enumerate(results):
            if another is not None and other != place:
                memory = torch.zeros(result.numel() + another.numel() - 1, dtype=result.dtype)
                out = outputs()
                out[place] = memory[: result.numel()].view(result.shape)
                out[other] = memory[-another.numel() :].view(another.shape)
                with pytest.raises(ValueError, match="shares memory with"):
                    op(*given, kind=kind, out=tuple(out))
