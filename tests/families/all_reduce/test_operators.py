"""all_reduce as operators of torch: on emulated ranks by kernels, on local ranks by torch, compiled and not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness.paths import MINIATURE
from harness.workspaces import generated_workspace, load_module
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.families.all_reduce.reference import in_rank_order


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The dispatch module of the miniature spec, in a workspace of its own."""
    root = generated_workspace(tmp_path_factory.mktemp("operators") / "compiled_mini", MINIATURE)
    return load_module("compiled_mini", root / "generated" / "dispatch.py")


@pytest.fixture
def local(mini: Any) -> Any:
    """Two ranks of this process, on the CPU: torch serves them."""
    return mini.local_communicator(2, "cpu")


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(tensor: torch.Tensor) -> torch.Tensor:
    return in_rank_order(tensor.unbind(0)).expand_as(tensor)


def test_communicators_have_names_from_the_start(mini: Any) -> None:
    one, two = mini.local_communicator(2, "cpu"), mini.local_communicator(4, "cpu")
    assert one.torch_name.startswith("comm")
    assert one.torch_name != two.torch_name
    assert mini.publish(one) == one.torch_name


def test_torchs_own_checks_pass(mini: Any, local: Any) -> None:
    ops, tensor = mini.torch_ops(), values(2, 24)
    named = {"comm": local.torch_name}
    assert str(ops.all_reduce.out._schema).endswith("str? policy=None, Tensor(a!) out) -> ()")
    for operator, tensors, more in (
        (ops.all_reduce.default, (tensor,), {}),
        (ops.all_reduce.out, (tensor,), {"out": torch.empty_like(tensor)}),
        (ops.all_reduce_.default, (tensor.clone(),), {}),
        (ops.all_reduce_sum2.default, (tensor, tensor.flip(1)), {}),
        (ops.all_reduce_sum2.out, (tensor, tensor.flip(1)), {"out": torch.empty_like(tensor)}),
    ):
        assert set(torch.library.opcheck(operator, tensors, named | more).values()) == {"SUCCESS"}


def test_operators_give_what_the_op_gives(mini: Any, local: Any) -> None:
    ops, tensor, name = mini.torch_ops(), values(2, 24), local.torch_name
    assert torch.equal(ops.all_reduce(tensor, comm=name), expected(tensor))
    both = expected(tensor + tensor.flip(1))
    assert torch.equal(ops.all_reduce_sum2(tensor, tensor.flip(1), comm=name), both)
    out = torch.empty_like(tensor)
    assert ops.all_reduce.out(tensor, comm=name, out=out) is None
    assert torch.equal(out, expected(tensor))
    mine = tensor.clone()
    ops.all_reduce_(mine, comm=name)
    assert torch.equal(mine, expected(tensor))
    with pytest.raises(ValueError, match="no communicator is called 'comm99'"):
        ops.all_reduce(tensor, comm="comm99")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_has_one_node_a_call(mini: Any, local: Any, backend: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def step(x: torch.Tensor, out: torch.Tensor) -> Any:
        y = mini.all_reduce(x + 1, comm=local)
        z = mini.all_reduce_sum2(y, x, comm=local, exact=True)
        mini.all_reduce(z, comm=local, out=out)
        mini.all_reduce(x, comm=local, out=x)
        return y, z

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(step, backend=counting, fullgraph=True, dynamic=True)
    for numel in (24, 40, 9):
        x = values(2, numel, seed=numel)
        given, out = x.clone(), torch.empty_like(x)
        y, z = compiled(given, out)
        assert torch.equal(y, expected(x + 1))
        assert torch.equal(z, expected(y + x))
        assert torch.equal(out, expected(z))
        assert torch.equal(given, expected(x))
    assert len(graphs) == 1
    called = [
        str(node.target).split(".", 1)[1]
        for node in graphs[0].graph.nodes
        if "all_reduce" in str(node.target)
    ]
    assert called == [
        "all_reduce.default",
        "all_reduce_sum2.default",
        "all_reduce.out",
        "all_reduce_.default",
    ]


def test_kernels_serve_a_compiled_step(mini: Any) -> None:
    torch._dynamo.reset()
    comm = EmulatedCommunicator(mini.DISPATCH.table, 2)
    with pytest.raises(Exception, match="without a name, and a graph holds names alone"):
        torch.compile(lambda x: mini.all_reduce(x, comm=comm), backend="eager", fullgraph=True)(values(2, 64))
    mini.publish(comm)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: mini.all_reduce(x, comm=comm), backend="aot_eager", fullgraph=True)
    before = mini.stats().dispatches
    for seed in range(3):
        x = values(2, 64, seed=seed)
        assert torch.equal(compiled(x), expected(x))
    comm.check()
    after = mini.stats().dispatches
    assert sum(after.values()) - sum(before.values()) == 3


def test_mistakes_are_sentences_when_a_call_is_traced(mini: Any, local: Any) -> None:
    meta = values(2, 8).to("meta")
    name = local.torch_name
    with pytest.raises(ValueError, match=r"b torch.bfloat16 of shape .* both must be alike"):
        mini.torch_ops().all_reduce_sum2(meta, meta[:, :4], comm=name)
    with pytest.raises(ValueError, match=r"out is torch\.float32 of shape"):
        mini.torch_ops().all_reduce.out(meta, comm=name, out=meta.float())
    with pytest.raises(RuntimeError, match="the tensor requires grad, and all_reduce has no gradient"):
        mini.torch_ops().all_reduce(meta.requires_grad_(), comm=name)
