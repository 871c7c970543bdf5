"""The torch.library operators: schemas, torch's own checks, whose table they serve, what they refuse."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.families.hyper_connection.shape import KINDS as DECLARED
from kernwright.runtime import Dispatch, NotExact
from torch._subclasses.fake_tensor import FakeTensorMode

KINDS = tuple(DECLARED)
RESULTS = ("x", "block_input", "injection_out")


def given(make: ModuleType, kind: str, **shape: Any) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for tensor in make.tensors(kind=kind, **shape) if tensor is not None)


def operator(bound: Dispatch, kind: str) -> Any:
    return getattr(bound.torch_ops(), f"hyper_connection_{kind}")


def listed(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def test_schemas(bound: Dispatch) -> None:
    options = (
        "float eps=9.9999999999999995e-07, int? branches=None, bool exact=False, "
        "str? policy=None, str? comm=None"
    )
    name = bound.traced.name
    weights = "Tensor norm_weight, Tensor down_weight, Tensor up_weight"
    assert str(operator(bound, "boundary").default._schema) == (
        f"{name}::hyper_connection_boundary(Tensor residual, Tensor block, Tensor injection, {weights}, *, "
        f"{options}) -> (Tensor x, Tensor block_input, Tensor injection_out)"
    )
    assert str(operator(bound, "combine").default._schema) == (
        f"{name}::hyper_connection_combine(Tensor residual, Tensor block, Tensor injection, *, {options}) -> Tensor"
    )
    assert str(operator(bound, "first").out._schema) == (
        f"{name}::hyper_connection_first.out(Tensor residual, {weights}, *, {options}, Tensor(a!) block_input, "
        "Tensor(b!) injection_out) -> ()"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 3])
def test_torchs_own_checks_pass(make: ModuleType, bound: Dispatch, kind: str, tokens: int) -> None:
    inputs = given(make, kind, tokens=tokens)
    packet = operator(bound, kind)
    assert set(torch.library.opcheck(packet.default, inputs).values()) == {"SUCCESS"}
    results = listed(packet(*inputs))
    out = {
        name: torch.empty_like(result) for name, result in zip(DECLARED[kind].outputs, results, strict=True)
    }
    assert set(torch.library.opcheck(packet.out, inputs, out).values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", KINDS)
def test_operators_give_what_the_op_gives(
    make: ModuleType, bound: Dispatch, op: Any, kind: str, same_bits: Any
) -> None:
    inputs = given(make, kind)
    expected = [result for result in op(*make.tensors(kind=kind), kind=kind) if result is not None]
    assert same_bits(listed(operator(bound, kind)(*inputs)), expected)
    out = {
        name: torch.full_like(result, float("nan"))
        for name, result in zip(DECLARED[kind].outputs, expected, strict=True)
    }
    assert operator(bound, kind).out(*inputs, **out) is None
    assert same_bits(list(out.values()), expected)
    assert len({tensor.untyped_storage().data_ptr() for tensor in (*inputs, *expected)}) == len(inputs) + len(
        expected
    )


def test_kernels_serve_operators(make: ModuleType, bound: Dispatch, gpu: Any) -> None:
    boundary = operator(bound, "boundary")
    for _ in range(2):
        boundary(*make.tensors())
    boundary(*make.tensors(), policy="control")
    assert gpu.symbols[::3] == ["combine_norm_fast", "combine_norm_fast", "combine_norm_control"]
    (work,) = bound.table.workloads
    assert bound.stats().dispatches == {(work.label, "fast"): 2, (work.label, "control"): 1}


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_without_memory(make: ModuleType, bound: Dispatch, kind: str) -> None:
    widths = {"x": 256, "block_input": 64, "injection_out": 4}
    inputs = given(make, kind, tokens=5)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in inputs]
        made = listed(operator(bound, kind)(*fakes))
    on_meta = listed(operator(bound, kind)(*[tensor.to("meta") for tensor in inputs]))
    for results in (made, on_meta):
        assert [(tuple(t.shape), t.dtype) for t in results] == [
            ((5, widths[name]), torch.float16) for name in DECLARED[kind].outputs
        ]


def test_mistakes_are_found_without_memory(make: ModuleType, bound: Dispatch) -> None:
    boundary = operator(bound, "boundary")
    tensors = [tensor.to("meta") for tensor in make.tensors()]
    with pytest.raises(ValueError, match=r"down_weight has shape \(32, 256\).*needs \(48, 256\)"):
        boundary(*tensors[:4], tensors[4][:32], tensors[5])
    with pytest.raises(TypeError, match="block is float32 and residual is float16"):
        boundary(tensors[0], tensors[1].float(), *tensors[2:])
    out = dict(zip(RESULTS, tensors[:3], strict=True))
    with pytest.raises(ValueError, match=r"out's x is torch.float16 of shape \(2, 256\) on meta; it must be"):
        boundary.out(*tensors, **(out | {"x": torch.empty(2, 256, dtype=torch.float16, device="meta")}))
    boundary.out(*tensors, **out)


def test_options_mean_what_they_mean_in_the_op(make: ModuleType, bound: Dispatch) -> None:
    boundary = operator(bound, "boundary")
    with pytest.raises(NotExact, match="17 tokens are more than 16"):
        boundary(*make.tensors(tokens=17), exact=True)
    with pytest.raises(ValueError, match="policy is 'best'; allowed are measured"):
        boundary(*make.tensors(), policy="best")
    with pytest.raises(ValueError, match=r"eps is -1\.0; it must be"):
        boundary(*make.tensors(), eps=-1.0)
    assert not torch.equal(boundary(*make.tensors(), eps=10.0)[1], boundary(*make.tensors())[1])


def test_gradients_are_refused_by_a_sentence(make: ModuleType, bound: Dispatch) -> None:
    tensors = make.tensors()
    tensors[3] = torch.nn.Parameter(tensors[3])
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match="norm_weight requires grad, and hyper_connection has no gradient"
        ):
            operator(bound, "boundary")(*tensors)
        with torch.no_grad():
            assert not operator(bound, "boundary")(*tensors)[1].requires_grad
    meta = [tensor.detach().to("meta").requires_grad_() for tensor in make.tensors()]
    with pytest.raises(RuntimeError, match="residual requires grad"):
        operator(bound, "boundary")(*meta)


def test_a_workspace_has_a_namespace_of_its_own(make: ModuleType, tmp_path: Path) -> None:
    work = make.workload(make.candidate("control"))
    first = make.dispatch_of(work, root=tmp_path / "My Kernels 2" / "generated")
    assert first.torch_ops() is torch.ops.kernwright_my_kernels_2
    assert first.torch_ops() is torch.ops.kernwright_my_kernels_2
    with pytest.raises(
        ValueError, match=r"are torch\.ops\.kernwright_my_kernels_2 already, and can't become"
    ):
        first.torch_ops("mine")
    again = make.dispatch_of(work, root=tmp_path / "My Kernels 2" / "generated")
    assert again.torch_ops() is torch.ops.kernwright_my_kernels_2

    other = make.dispatch_of(
        make.workload(make.candidate("other")), root=tmp_path / "b" / "my_kernels_2" / "generated"
    )
    with pytest.raises(ValueError) as error:
        other.torch_ops()
    assert str(error.value) == (
        f"torch.ops.kernwright_my_kernels_2 belongs to the dispatch table of {first.table.root} in this process, and "
        f"that of {other.table.root} is another one; give this one a name of its own before its first use: "
        "dispatch.torch_ops('name')"
    )
    ops = other.torch_ops("kernwright_tests_other")
    assert ops is torch.ops.kernwright_tests_other
    ops.hyper_connection_boundary(*make.tensors())
    assert other.stats().fallbacks == {"device": 1}
    assert first.stats().fallbacks == {}
    with pytest.raises(ValueError, match="the namespace is 'a b'; it must be a name as Python has them"):
        make.dispatch_of(work, root=tmp_path).torch_ops("a b")


def test_the_librarys_namespace() -> None:
    from kernwright.generated import dispatch

    assert dispatch.torch_ops() is torch.ops.kernwright
    assert {"hyper_connection_boundary", "hyper_connection_first"} <= set(dir(torch.ops.kernwright))


class Comm(SimpleNamespace):
    """A communicator of two ranks that owns nothing."""

    rank, world_size, layout_version, capabilities = 0, 2, 1, frozenset[str]()
    __hash__ = object.__hash__

    def owns(self, channel: str) -> bool:
        return not channel


def test_a_communicator_is_known_by_its_name(make: ModuleType, bound: Dispatch) -> None:
    boundary = operator(bound, "boundary")
    with pytest.raises(
        ValueError, match=r"no communicator is called 'comm0'; there are none: call dispatch.publish"
    ):
        boundary(*make.tensors(), comm="comm0")
    comm = Comm()
    assert bound.publish(comm) == comm.torch_name == "comm0"
    assert bound.publish(comm) == "comm0"
    with pytest.raises(ValueError, match="another communicator is called 'comm0'; choose another name"):
        bound.publish(Comm(), "comm0")
    boundary(*make.tensors(), comm="comm0")
    assert bound.stats().fallbacks == {"world_size": 1}
    del comm
    bound.operators["hyper_connection"]._resolved.clear()  # type: ignore[attr-defined]
    gc.collect()
    with pytest.raises(ValueError, match="no communicator is called 'comm0'"):
        boundary(*make.tensors(), comm="comm0")
    assert bound.publish(Comm()) == "comm1"


def test_an_op_without_operators_of_torch_is_left_out(make: ModuleType, tmp_path: Path) -> None:
    bound = make.dispatch_of(
        make.workload(make.candidate("control")), root=tmp_path / "left_out" / "generated"
    )
    bound.register(SimpleNamespace(family="scale"))  # type: ignore[arg-type]
    assert dir(bound.torch_ops()).count("hyper_connection_final") == 1


def test_fingerprints(make: ModuleType, bound: Dispatch) -> None:
    (work,) = bound.table.workloads
    here = bound.fingerprint()
    assert len(bytes.fromhex(here)) == 32
    elsewhere = make.dispatch_of(work, root=Path("/another/place"))
    assert elsewhere.fingerprint() == here
    with bound.policy("verified"):
        assert bound.fingerprint() != here
    changes = (
        replace(work, records=(make.record("fast", "rejected"),)),
        replace(work, records=()),
        replace(work, fields={**work.fields, "eps": 1e-5}),
        replace(work, trees={**work.trees, "up": (1, 32, 2)}),
        replace(work, candidates=(work.candidates[0],)),
        replace(work, candidates=(replace(work.candidates[0], builds={"sm_90": make.build("x", "sm_90")}),)),
    )
    found = {make.dispatch_of(changed).fingerprint() for changed in changes}
    assert len(found) == len(changes)
    assert here not in found
