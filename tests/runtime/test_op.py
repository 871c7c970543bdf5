"""A family of one's own on the base of all ops: a few lines, and everything that the built-in ones have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from kernwright.runtime import CallOptions, Device, Dispatch, Kind, Op, bind, dispatch, op, plan, watch
from kernwright.runtime.call_options import options_schema
from kernwright.table import FORMAT, Build, Candidate, Kernel, Table, Workload
from torch._subclasses.fake_tensor import FakeTensorMode

_numbers = count()


@dataclass(frozen=True)
class ScaleOptions(CallOptions):
    """How much."""

    factor: float = 2.0
    rounding: str | None = None


class Scale(Op):
    """`target = factor * source`, and its largest element a row."""

    family = "scale"
    kinds: ClassVar[Mapping[str, Kind]] = {
        "scale": Kind(inputs=("source",), outputs=("target",)),
        "add": Kind(inputs=("source", "addend"), outputs=("target",), without=frozenset({"factor"})),
    }
    options = ScaleOptions
    short_form: ClassVar[Mapping[str, str]] = {"r": "rows", "c": "columns"}

    def fields(self, given: Mapping[str, torch.Tensor], _: str, options: ScaleOptions) -> dict[str, Any]:
        source = given["source"]
        if source.ndim != 2:
            raise ValueError(f"source has shape {tuple(source.shape)}; it must be [rows, columns]")
        return {"rows": source.shape[0], "columns": int(source.shape[1]), "factor": options.factor}

    def shapes(self, fields: Mapping[str, Any], _: str) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("source", "addend", "target"), (fields["rows"], fields["columns"]))

    def reference(self, fields: Mapping[str, Any], kind: str) -> Callable[..., torch.Tensor]:
        if kind == "add":
            return lambda source, addend: source + addend
        return lambda source: fields["factor"] * source


class Split(Op):
    """Two results, one of another dtype."""

    family = "split"
    kinds: ClassVar[Mapping[str, Kind]] = {"split": Kind(inputs=("source",), outputs=("half", "sign"))}
    other_dtypes: ClassVar[Mapping[str, str]] = {"sign": "uint8"}

    def fields(self, given: Mapping[str, torch.Tensor], _kind: str, _options: CallOptions) -> dict[str, Any]:
        return {"size": given["source"].numel()}

    def shapes(self, fields: Mapping[str, Any], _: str) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("source", "half", "sign"), (fields["size"],))

    def reference(self, _fields: Mapping[str, Any], _kind: str) -> Callable[..., tuple[torch.Tensor, ...]]:
        return lambda source: (source / 2, torch.signbit(source).to(torch.uint8))


@pytest.fixture
def bound() -> Dispatch:
    made = bind(Table(FORMAT, Path(f"/own{next(_numbers)}/generated"), ()))
    Scale(made)
    Split(made)
    return made


@pytest.fixture
def scale(bound: Dispatch) -> Any:
    return bound.operator("scale")


@pytest.fixture
def split(bound: Dispatch) -> Any:
    return bound.operator("split")


class Launches:
    """Stands for loaded machine code; counts launches."""

    def __init__(self) -> None:
        self.count = 0

    def launcher(self, _: Kernel) -> Callable[[int, int, int], None]:
        def launch(*_: int) -> None:
            self.count += 1

        return launch


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Launches]:
    """`scale` of 3 x 4 elements by a kernel, on a GPU that is pretended."""
    launches = Launches()
    monkeypatch.setattr(op, "current", lambda _: Device("sm_90", 132, "NVIDIA H200", 0))
    monkeypatch.setattr(dispatch, "load", lambda *_: launches)
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: 0)
    monkeypatch.setattr(plan, "device_query", lambda: None)
    kernel = Kernel((1, 1, 1), (32, 1, 1), ("source", "target"), symbol="scale")
    build = Build("scale.cu", "0" * 64)
    only = Candidate("only", "flat", "exact", {"sm_90": build}, {"scale": kernel}, {"scale": ("scale",)})
    fields = {"dtype": "float32", "rows": 3, "columns": 4, "factor": 2.0}
    work = Workload("scale", "small", "fp32-r3-c4", fields, {}, (only,))
    return Scale(bind(Table(FORMAT, Path("/served/generated"), (work,)))), launches


def test_a_known_call_goes_the_short_way(served: tuple[Any, Launches]) -> None:
    scale, launches = served
    out = torch.empty_like(SOURCE)
    with watch() as events:
        for _ in range(3):
            assert scale(SOURCE).shape == (3, 4)
            assert scale(SOURCE.clone(), None, out=out) is out
    assert (len(events), launches.count) == (1, 6)
    with pytest.raises(ValueError, match="out shares memory with source"):
        scale(SOURCE, out=SOURCE)
    with pytest.raises(RuntimeError, match="source requires grad"):
        scale(SOURCE.clone().requires_grad_())
    assert torch.equal(scale(SOURCE.t()), 2 * SOURCE.t())  # by torch
    shifted = torch.ones(13)[1:].view(3, 4)
    assert torch.equal(scale(shifted), 2 * shifted)
    assert torch.equal(scale(SOURCE, factor=3.0), 3 * SOURCE)
    assert launches.count == 6


@pytest.fixture(autouse=True)
def _dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


SOURCE = torch.arange(12, dtype=torch.float32).view(3, 4)


def test_a_call(bound: Dispatch, scale: Any, split: Any) -> None:
    assert torch.equal(scale(SOURCE, None), 2 * SOURCE)
    assert torch.equal(scale(SOURCE), 2 * SOURCE)
    assert torch.equal(scale(source=SOURCE, factor=3.0), 3 * SOURCE)
    assert torch.equal(scale(SOURCE, addend=SOURCE, kind="add"), 2 * SOURCE)
    half, sign = split(-SOURCE.flatten())
    assert torch.equal(half, -SOURCE.flatten() / 2)
    assert (sign.dtype, int(sign.sum())) == (torch.uint8, 12)
    assert bound.stats().reference == 5


def test_out_is_written_and_returned_in_the_form_of_the_result(scale: Any, split: Any) -> None:
    out = torch.full_like(SOURCE, float("nan"))
    assert scale(SOURCE, out=out) is out
    assert torch.equal(out, 2 * SOURCE)
    row = SOURCE.flatten()
    both = (torch.empty(12), torch.empty(12, dtype=torch.uint8))
    assert split(row, out=both) is both
    assert torch.equal(both[0], row / 2)


def test_any_layout_goes_in(bound: Dispatch, scale: Any) -> None:
    assert torch.equal(scale(SOURCE.t()), 2 * SOURCE.t())
    request, _ = scale.requested((SOURCE.t(), None), "scale", ScaleOptions(), None)
    assert request.problems == ("source is not contiguous: strides (1, 4) of shape (4, 3)",)
    shifted = torch.zeros(13)[1:].view(3, 4)
    request, _ = scale.requested((shifted, None), "scale", ScaleOptions(), None)
    assert request.problems == ("source starts at an address that is not a multiple of 16 bytes",)
    assert torch.equal(scale(shifted), 2 * shifted)
    assert bound.stats().reference == 2


@pytest.mark.parametrize(
    ("tensors", "options", "error", "sentence"),
    [
        ((SOURCE.double(),), {}, TypeError, "source is float64; allowed are float16, bfloat16, float32"),
        ((SOURCE[0],), {}, ValueError, r"source has shape \(4,\); it must be \[rows, columns\]"),
        (
            (SOURCE, SOURCE[:2]),
            {"kind": "add"},
            ValueError,
            r"addend has shape \(2, 4\); with rows 3, columns 4, kind add needs \(3, 4\)",
        ),
        ((SOURCE, SOURCE.half()), {"kind": "add"}, TypeError, "addend is float16 and source is float32; all"),
        ((SOURCE, SOURCE.to("meta")), {"kind": "add"}, ValueError, "addend is on meta and source is on cpu"),
        ((SOURCE.to("meta"),), {}, ValueError, "source is on meta, where tensors have no values"),
        ((SOURCE,), {"kind": "add"}, ValueError, "addend is None; kind add needs a tensor"),
        ((SOURCE, SOURCE), {}, ValueError, "addend is a tensor; kind scale has no addend: pass None"),
        (([1.0],), {}, TypeError, "source is a list of 1; it must be a torch tensor"),
        ((SOURCE,), {"kind": "ad"}, ValueError, r"kind is 'ad'; allowed are scale, add; did you mean add\?"),
        ((SOURCE, SOURCE, SOURCE), {}, TypeError, r"scale takes 2 tensors \(source, addend\); 3 were given"),
        (
            (SOURCE,),
            {"facto": 1.0},
            TypeError,
            "scale has no option 'facto' here; it has kind, factor, rounding",
        ),
        ((SOURCE,), {"comm": 3}, TypeError, "comm is an int; it must be None or a communicator"),
        ((SOURCE,), {"policy": "best"}, ValueError, "policy is 'best'; allowed are measured"),
        ((SOURCE,), {"out": SOURCE}, ValueError, "out shares memory with source; give it memory of its own"),
        (
            (SOURCE,),
            {"out": SOURCE.half()},
            ValueError,
            r"out is torch.float16 of shape \(3, 4\) on cpu; it must",
        ),
        ((SOURCE,), {"out": 3}, TypeError, "out is an int; it must be a torch tensor"),
    ],
)
def test_mistakes_are_sentences(
    scale: Any, tensors: tuple[Any, ...], options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    for _ in range(2):
        with pytest.raises(error, match=sentence):
            scale(*tensors, **options)
        scale(SOURCE)


def test_gradients_are_refused(scale: Any) -> None:
    source = SOURCE.clone().requires_grad_()
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match="source requires grad, and scale has no gradient; call it under"
        ):
            scale(source)
        with torch.no_grad():
            assert torch.equal(scale(source), 2 * source)


def test_a_plan_and_an_explanation(bound: Dispatch, scale: Any, split: Any) -> None:
    ready = scale.plan(SOURCE, factor=3.0)
    assert torch.equal(ready(SOURCE), 3 * SOURCE)
    out = torch.empty_like(SOURCE)
    assert ready(SOURCE, out=out) is out
    assert [tuple(t.shape) for t in split.plan(SOURCE[0])(SOURCE[0])] == [(4,), (4,)]
    explanation = bound.explain("scale", SOURCE, SOURCE, kind="add")
    assert (explanation.chosen, explanation.contract, explanation.kind) == ("reference", "exact", "add")
    assert str(explanation).startswith("fp32-r3-c4, kind add, on cpu, policy measured: reference")
    assert explanation.reference == "torch"


def test_requests_of_shapes(scale: Any) -> None:
    fields = {"dtype": "bfloat16", "rows": (5, 5), "columns": 8, "factor": 2.0}
    request = scale.request_for(fields, "add")
    assert (request.label, dict(request.fields)) == (
        "bf16-r5-c8",
        {"dtype": "bfloat16", "rows": 5, "columns": 8},
    )
    assert [(b.name, b.shape, b.dtype) for b in request.signature.inputs] == [
        ("source", (5, 8), "bfloat16"),
        ("addend", (5, 8), "bfloat16"),
    ]
    (found,) = scale.reference_for(fields, "add")([SOURCE, SOURCE], None)
    assert torch.equal(found, 2 * SOURCE)
    for changed, sentence in (
        ({"rows": (1, 8)}, "rows is an interval, 1 to 8; name one number of it"),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed are float16, bfloat16, float32"),
    ):
        with pytest.raises(ValueError, match=sentence):
            scale.request_for({**fields, **changed}, "scale")
    with pytest.raises(ValueError, match="kind is 'x'; allowed are scale, add"):
        scale.request_for(fields, "x")


def test_calls_without_elements_count_as_nothing(bound: Dispatch, scale: Any) -> None:
    assert scale(SOURCE[:0]).shape == (0, 4)
    assert bound.stats().reference == 0


def test_a_call_is_decided_once(scale: Any) -> None:
    with watch() as events:
        for _ in range(3):
            scale(SOURCE)
            scale(SOURCE, factor=3.0)
    assert len(events) == 2


def test_schemas(bound: Dispatch) -> None:
    ops, name = bound.torch_ops(), bound.traced.name
    options = "*, float factor=2., str? rounding=None, bool exact=False, str? policy=None, str? comm=None"
    assert str(ops.scale.default._schema) == f"{name}::scale(Tensor source, {options}) -> Tensor"
    assert str(ops.scale_add.out._schema) == (
        f"{name}::scale_add.out(Tensor source, Tensor addend, {options}, Tensor(a!) out) -> ()"
    )
    assert str(ops.split.default._schema).endswith("-> (Tensor half, Tensor sign)")

    @dataclass(frozen=True)
    class Odd(CallOptions):
        schedule: dict[str, int] | None = None

    with pytest.raises(
        TypeError, match=r"option schedule is declared as dict.*; operators of torch take bool, int"
    ):
        options_schema(Odd)


def test_torchs_own_checks_pass(bound: Dispatch) -> None:
    ops, row = bound.torch_ops(), SOURCE.flatten()
    for operator, tensors, out in (
        (ops.scale.default, (SOURCE,), {"factor": 3.0}),
        (ops.scale.out, (SOURCE,), {"out": torch.empty_like(SOURCE)}),
        (ops.scale_add.default, (SOURCE, SOURCE + 1), {}),
        (ops.split.default, (row,), {}),
        (ops.split.out, (row,), {"half": torch.empty(12), "sign": torch.empty(12, dtype=torch.uint8)}),
    ):
        assert set(torch.library.opcheck(operator, tensors, out).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled(scale: Any, split: Any, dynamic: bool | None) -> None:
    def step(source: torch.Tensor, out: torch.Tensor) -> Any:
        more = scale(source, factor=3.0)
        scale(more, more, kind="add", out=out)
        return more, *split(more.flatten())

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (3, 5, 2):
        source = torch.randn(rows, 4)
        out = torch.empty_like(source)
        more, half, sign = compiled(source, out)
        assert torch.equal(more, 3 * source)
        assert torch.equal(out, 6 * source)
        assert torch.equal(half, more.flatten() / 2)
        assert torch.equal(sign.bool(), torch.signbit(source).flatten())


def test_tensors_without_memory(bound: Dispatch, scale: Any, split: Any) -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(SOURCE)
        assert scale(fake).shape == (3, 4)
        assert [t.dtype for t in split(fake.flatten())] == [torch.float32, torch.uint8]
    meta = SOURCE.to("meta")
    assert bound.torch_ops().scale(meta).shape == (3, 4)
    with pytest.raises(ValueError, match=r"out is torch\.float32 of shape \(2, 4\) on meta; it must be"):
        bound.torch_ops().scale.out(meta, out=meta[:2])
    with pytest.raises(RuntimeError, match="source requires grad"):
        bound.torch_ops().scale(meta.requires_grad_())
