"""The shipped library on a GPU: launches, streams, capture. Bits are held against the torch reference."""

from typing import Any

import pytest
import torch
from kernwright.runtime import Device, NotWarm
from kernwright.runtime.device import current

pytestmark = pytest.mark.gpu


@pytest.fixture
def dispatch() -> Any:
    return pytest.importorskip("kernwright.generated.dispatch")


@pytest.fixture
def here() -> Device:
    return current(torch.device("cuda"))


def boundary(dispatch: Any) -> Any:
    """The library's first workload of this family that a rank computes alone."""
    works = (work for work in dispatch.TABLE.workloads if work.family == "hyper_connection")
    return next(work for work in works if work.fields["world_size"] == 1)


def tensors_of(dispatch: Any, kind: str = "boundary", seed: int = 0) -> list[Any]:
    """Inputs of that workload, on the GPU."""
    work = boundary(dispatch)
    fields = {name: value[0] if isinstance(value, tuple) else value for name, value in work.fields.items()}
    request = dispatch.hyper_connection.request_for(fields, kind)
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for buffer in request.signature.inputs:
        scale = buffer.shape[-1] ** -0.5 if buffer.name.startswith(("down", "up")) else 1.0
        values = torch.randn(*buffer.shape, generator=generator) * scale
        made[buffer.name] = values.to(getattr(torch, buffer.dtype)).cuda()
    names = ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight")
    return [made.get(name) for name in names]


def same_bits(found: Any, expected: Any) -> bool:
    return all(
        (one is None and other is None) or torch.equal(one.view(torch.int16), other.view(torch.int16))
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_the_control_has_the_references_bits(dispatch: Any, kind: str) -> None:
    branches = boundary(dispatch).fields["branches"]
    inputs = tensors_of(dispatch, kind)
    found = dispatch.hyper_connection(*inputs, kind=kind, branches=branches)
    expected = dispatch.hyper_connection(*inputs, kind=kind, branches=branches, policy="reference")
    assert same_bits(found, expected)
    assert dispatch.hyper_connection.plan(*inputs, kind=kind, branches=branches).plan is not None


def test_another_stream_and_out(dispatch: Any) -> None:
    inputs = tensors_of(dispatch)
    expected = dispatch.hyper_connection(*inputs)
    out = tuple(torch.full_like(tensor, float("nan")) for tensor in expected)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        dispatch.hyper_connection(*inputs, out=out)
    stream.synchronize()
    assert same_bits(out, expected)


def test_a_graph_replays_with_changing_inputs(dispatch: Any) -> None:
    dispatch.warm_up()
    inputs = tensors_of(dispatch)
    dispatch.hyper_connection(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dispatch.hyper_connection(*inputs)
    for seed in range(1, 4):
        for place, fresh in zip(inputs, tensors_of(dispatch, seed=seed), strict=True):
            place.copy_(fresh)
        for tensor in captured:
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(captured, dispatch.hyper_connection(*inputs, policy="reference"))


def test_capture_without_warm_up_names_it(dispatch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernwright.families.hyper_connection.op import HyperConnection
    from kernwright.runtime import bind, loader

    monkeypatch.setattr(loader, "_modules", {})
    cold = HyperConnection(bind(dispatch.TABLE))
    inputs = tensors_of(dispatch)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(NotWarm, match="warm_up"), torch.cuda.graph(graph):
        cold(*inputs)


def test_every_build_that_this_device_can_run_has_the_same_bits(dispatch: Any, here: Device) -> None:
    work = boundary(dispatch)
    inputs = tensors_of(dispatch)
    expected = dispatch.hyper_connection(*inputs, policy="reference")
    for candidate in work.candidates:
        for arch in candidate.builds:
            if candidate.contract != "exact" or int(arch[3:].rstrip("a")) > int(str(here.arch)[3:]):
                continue
            plan = dispatch.DISPATCH.plan_named(work.label, candidate.name, arch, "boundary", here)
            assert same_bits(plan(inputs), expected), (candidate.name, arch)
