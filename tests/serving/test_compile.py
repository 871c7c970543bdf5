"""torch.compile, export and make_fx: one node a call, no break, no recompilation for another number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.runtime import Dispatch, Misaligned
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

FIRST_CALL = """
import torch
from harness import tables
torch._dynamo.config.suppress_errors = False
bound = tables.dispatch_of(tables.workload(tables.candidate("control")))
op = bound.operators["hyper_connection"]
assert not hasattr(torch.ops.kernwright_workspace, "hyper_connection_boundary")
compiled = torch.compile(lambda *tensors: op(*tensors), fullgraph=True, backend="eager")
found = compiled(*tables.tensors())
assert all(torch.equal(a, b) for a, b in zip(found, op(*tables.tensors())))
print(torch.ops.kernwright_workspace.hyper_connection_boundary.default.name())
"""


@pytest.fixture(autouse=True)
def _dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def targets(counter: Any, graph: int = 0) -> list[str]:
    return [str(node.target) for node in counter.graphs[graph].graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_call_has_the_bits_of_the_op(
    make: ModuleType, op: Any, backend: str, same_bits: Any
) -> None:
    def step(*tensors: torch.Tensor) -> Any:
        x, block_input, injection = op(*tensors)
        again, _, _ = op(x, block_input, injection, None, None, None, kind="combine")
        return x, block_input, injection, again

    counter = CompileCounterWithBackend(backend)
    found = torch.compile(step, backend=counter, fullgraph=True)(*make.tensors())
    assert same_bits(found, step(*make.tensors()))
    assert counter.frame_count == 1
    named = [target for target in targets(counter) if "hyper_connection" in target]
    assert [target.split(".", 1)[1] for target in named] == [
        "hyper_connection_boundary.default",
        "hyper_connection_combine.default",
    ]


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_other_numbers_of_tokens_do_not_recompile(
    make: ModuleType, op: Any, kind: str, same_bits: Any
) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda *tensors: op(*tensors, kind=kind, branches=4), backend=counter, fullgraph=True, dynamic=True
    )
    compilations = []
    for tokens in (3, 1, 2, 5, 17, 40, 4):
        tensors = make.tensors(tokens=tokens, kind=kind)
        assert same_bits(compiled(*tensors), op(*tensors, kind=kind, branches=4))
        compilations.append(counter.frame_count)
    # Torch begins anew when it finds that the weights' sizes can't be symbols, and looks at a size of one always.
    first = compilations[0]
    assert first <= 2
    assert compilations == [first, *[first + 1] * 6]

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda *tensors: op(*tensors, kind=kind, branches=4)[1 if kind != "combine" else 0],
        backend=counter,
        fullgraph=True,
    )
    for tokens in (2, 7, 3, 31, 12):
        tensors = make.tensors(tokens=tokens, kind=kind)
        for tensor in tensors[:3]:
            if tensor is not None:
                torch._dynamo.mark_dynamic(tensor, 0)
        compiled(*tensors)
    assert counter.frame_count == 1


def test_decode_after_prefill_is_dispatched_by_its_own_size(
    make: ModuleType, bound: Dispatch, gpu: Any
) -> None:
    op = bound.operators["hyper_connection"]
    compiled = torch.compile(lambda *tensors: op(*tensors), backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (7, 1, 3, 1):
        compiled(*make.tensors(tokens=tokens))  # type: ignore[operator]
    assert gpu.symbols == ["combine_norm_fast", "down_fast", "up_mix_fast"] * 2
    assert bound.stats().fallbacks == {"tokens": 2}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_out_is_written_inside_a_graph(make: ModuleType, op: Any, backend: str, same_bits: Any) -> None:
    expected = op(*make.tensors())
    out = tuple(torch.full_like(tensor, float("nan")) for tensor in expected)

    def step(out: Any, *tensors: torch.Tensor) -> Any:
        x, block_input, injection = op(*tensors, out=out)
        assert x is out[0]
        return injection + 0, block_input

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    for _ in range(2):
        for tensor in out:
            tensor.fill_(float("nan"))
        injection, block_input = compiled(out, *make.tensors())
        assert same_bits(out, expected)
        assert same_bits((injection, block_input), (expected[2], expected[1]))


def test_the_first_call_of_a_process_may_be_a_compiled_one(python: Any) -> None:
    assert python(FIRST_CALL) == "kernwright_workspace::hyper_connection_boundary\n"


def test_a_policy_of_the_caller_reaches_a_compiled_call(make: ModuleType, bound: Dispatch, gpu: Any) -> None:
    op: Any = bound.operators["hyper_connection"]
    compiled = torch.compile(lambda *tensors: op(*tensors)[1], backend="aot_eager", fullgraph=True)
    stated = torch.compile(
        lambda *tensors: op(*tensors, policy="control")[1], backend="aot_eager", fullgraph=True
    )
    compiled(*make.tensors())
    with bound.policy("control"):
        compiled(*make.tensors())
    stated(*make.tensors())
    assert gpu.symbols[::3] == ["combine_norm_fast", "combine_norm_control", "combine_norm_control"]


def test_mistakes_are_sentences_when_a_call_is_traced(make: ModuleType, op: Any) -> None:
    def traced(message: str, *tensors: Any, **options: Any) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(lambda *given: op(*given, **options), backend="eager", fullgraph=True)
        with pytest.raises(Exception, match=message):  # torch wraps it in an error of its own
            compiled(*tensors)

    tensors = make.tensors()
    traced("block is None; kind boundary needs a tensor", tensors[0], None, *tensors[2:])
    traced("norm_weight is a tensor; kind combine has no norm_weight", *tensors, kind="combine")
    traced(r"down_weight has shape \(32, 256\)", *tensors[:4], tensors[4][:32], tensors[5])
    traced("kind is 'boundry'", *tensors, kind="boundry")
    weights = [torch.nn.Parameter(tensor) for tensor in tensors[3:]]
    traced("norm_weight requires grad, and hyper_connection has no gradient", *tensors[:3], *weights)


def test_parameters_of_a_module_under_no_grad(make: ModuleType, op: Any, same_bits: Any) -> None:
    tensors = make.tensors()

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.nn.Parameter(tensor) for tensor in tensors[3:])

        def forward(self, *tensors: torch.Tensor) -> Any:
            return op(*tensors, *self.weights)

    layer = Layer()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = torch.compile(layer, backend="aot_eager", fullgraph=True)(*tensors[:3])
            assert same_bits(found, op(*tensors))


def test_exported_programs_call_the_operator(make: ModuleType, op: Any, same_bits: Any) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return op(*tensors)

    tokens = torch.export.Dim("tokens", min=2, max=64)
    shapes = (tuple({0: tokens} if place < 3 else None for place in range(6)),)
    program = torch.export.export(Layer(), tuple(make.tensors(tokens=4)), dynamic_shapes=shapes)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("hyper_connection_boundary.default" in target for target in called) == 1
    tensors = make.tensors(tokens=9)
    assert same_bits(program.module()(*tensors), op(*tensors))


def test_make_fx_sees_one_node(make: ModuleType, op: Any) -> None:
    graph = make_fx(lambda *tensors: op(*tensors), tracing_mode="fake")(*make.tensors()).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert [target.split(".", 1)[1] for target in called if "hyper" in target] == [
        "hyper_connection_boundary.default"
    ]


def test_a_plan_is_for_eager_code(make: ModuleType, bound: Dispatch, gpu: Any) -> None:
    op: Any = bound.operators["hyper_connection"]
    plan = op.plan(*make.tensors())
    results = plan(*make.tensors())
    assert [tuple(tensor.shape) for tensor in results] == [(1, 256), (1, 64), (1, 4)]
    assert plan(*make.tensors(), out=results) == results
    off = torch.zeros(257, dtype=torch.float16)[1:].view(1, 256)
    with pytest.raises(Misaligned):
        plan(off, *make.tensors()[1:])
    assert len(op(off, *make.tensors()[1:])) == 3  # the op falls back
    assert bound.stats().fallbacks == {"layout": 1}
