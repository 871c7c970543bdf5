"""The replicated route on a real GPU: bit for bit the array oracle's answer, whoever launches it and how.

Layers with distinct weights, 16 inputs each, every candidate, the sm_90 build and the sm_70 build (as PTX
through the driver's compiler), eager and inside a captured graph whose inputs change between replays.
"""

from __future__ import annotations

import pytest
from harness.bits import mismatches
from harness.depths import DEPTHS
from harness.layers import layers
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.generated.dispatch import DISPATCH, hyper_connection
from kernwright.runtime.device import current, serves

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

STORED = ("x", "y", "lora", "injection_out", "block_input")
POISON = 0x7E5A
"""A NaN of FP16 whose bits no kernel stores."""

WORKLOADS = [work for work in DISPATCH.table.workloads if work.spec == "qwen38_flash_tp1"]
ONE_TOKEN = [
    work
    for work in DISPATCH.table.workloads
    if work.fields.get("tokens") == (1, 1) and work.fields["world_size"] == 1
]


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def device():
    import torch

    return current(torch.device("cuda", 0))


def shape_of(work, tokens: int = 1) -> OracleShape:
    names = ("dtype", "branches", "hidden", "low_rank", "eps", "norm_weight")
    return OracleShape(tokens=tokens, trees=work.trees, **{name: work.fields[name] for name in names})


def as_torch(bits, dtype: str):
    """The same memory as a torch tensor of the storage dtype."""
    import torch

    return torch.from_dlpack(bits.view("int16")).view(getattr(torch, dtype))


def as_bits(tensor):
    """The same memory as a CuPy array of bits."""
    import cupy
    import torch

    return cupy.from_dlpack(tensor.view(torch.int16)).view(cupy.uint16)


def replicated(work) -> list:
    """The candidates of this route; they store the same intermediates."""
    return [candidate for candidate in work.candidates if candidate.route == "replicated"]


def archs(candidate, device) -> list[str]:
    """The build that the device takes, and sm_70's, if there is one: the device runs it as PTX."""
    own = serves(candidate.builds, device.arch)
    return [own, *(arch for arch in candidate.builds if arch == "sm_70" and arch != own)]


@DEPTHS
@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.label)
def test_chain_equals_the_oracle(cupy, device, work, depth, figures):
    import torch

    shape = shape_of(work)
    dtype = getattr(torch, shape.dtype)
    plans = {
        (candidate.name, arch): DISPATCH.plan_named(work.label, candidate.name, arch, "boundary", device)
        for candidate in replicated(work)
        for arch in archs(candidate, device)
    }
    compared = 0
    for layer in layers(shape, depth, seed=11, xp=cupy):
        given = {
            name: as_torch(bits, shape.dtype) for name, bits in {**layer.inputs, **layer.weights}.items()
        }
        tokens = given["residual"].shape[0]
        for (candidate, arch), plan in plans.items():
            stored = {
                name: torch.full(layer.expected[name].shape, POISON, dtype=torch.int16, device="cuda").view(
                    dtype
                )
                for name in STORED
            }
            for token in range(tokens):
                one = {name: given[name][token : token + 1] for name in ("residual", "block", "injection")}
                own = {name: tensor[token : token + 1] for name, tensor in stored.items()}
                plan.run({**given, **one, **own})
            for name in STORED:
                difference = mismatches(as_bits(stored[name]), layer.expected[name], shape.storage)
                assert difference.count == 0, (
                    f"layer {layer.index}, {candidate}, {arch}, {name}: {difference.first}"
                )
                compared += difference.size
    figures[f"values compared with the oracle, {work.label}, {depth} layers"] = compared
    assert compared == len(plans) * depth * 16 * (
        2 * shape.width + shape.low_rank + shape.branches + shape.hidden
    )


@pytest.mark.parametrize("kind", ["first", "combine", "final"])
@pytest.mark.parametrize("work", ONE_TOKEN, ids=lambda work: work.label)
def test_other_kinds_and_the_other_shape(cupy, device, work, kind):
    """Through the public op under policy `control`, and every candidate by name."""
    import torch
    from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights

    shape = shape_of(work)
    dtype = getattr(torch, shape.dtype)
    for seed, inputs in enumerate(INPUT_KINDS):
        bits = tensors(shape, inputs, seed, cupy) | weights(shape, seed, kind, cupy)
        expected = boundary(shape, bits, kind)
        given = {name: as_torch(value, shape.dtype) for name, value in bits.items()}
        for candidate in replicated(work):
            for arch in archs(candidate, device):
                plan = DISPATCH.plan_named(work.label, candidate.name, arch, kind, device)
                buffers = {
                    buffer.name: torch.full(buffer.shape, POISON, dtype=torch.int16, device="cuda").view(
                        dtype
                    )
                    for buffer in plan.buffers
                }
                buffers |= {buffer.name: given[buffer.name] for buffer in plan.signature.inputs}
                plan.run(buffers)
                for buffer in plan.signature.outputs:
                    found = as_bits(buffers[buffer.name])
                    difference = mismatches(found, expected[buffer.name], shape.storage)
                    assert difference.count == 0, f"{candidate.name}, {arch}, {inputs}: {difference.first}"


@DEPTHS
@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.label)
def test_captured_graph_with_changing_inputs(cupy, device, work, depth):
    """A whole chain in one graph, through the public op; inputs are rewritten between replays."""
    import torch

    shape = shape_of(work)
    chain = list(layers(shape, depth, seed=23, xp=cupy))
    fixed = [{name: as_torch(bits, shape.dtype) for name, bits in layer.weights.items()} for layer in chain]
    slots = [
        {name: as_torch(bits[:1].copy(), shape.dtype) for name, bits in layer.inputs.items()}
        for layer in chain
    ]
    results = [
        {
            name: torch.empty(layer.expected[name][:1].shape, dtype=slots[0]["block"].dtype, device="cuda")
            for name in ("x", "block_input", "injection_out")
        }
        for layer in chain
    ]

    def run() -> None:
        for slot, weight, result in zip(slots, fixed, results, strict=True):
            hyper_connection(**slot, **weight, policy="control", out=tuple(result.values()))

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for token in range(16):
        for layer, slot, result in zip(chain, slots, results, strict=True):
            for name, tensor in slot.items():
                tensor.copy_(as_torch(layer.inputs[name][token : token + 1], shape.dtype))
            for tensor in result.values():
                tensor.view(torch.int16).fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()
        for layer, result in zip(chain, results, strict=True):
            for name, tensor in result.items():
                difference = mismatches(
                    as_bits(tensor), layer.expected[name][token : token + 1], shape.storage
                )
                assert difference.count == 0, (
                    f"token {token}, layer {layer.index}, {name}: {difference.first}"
                )
    stats = DISPATCH.stats()
    assert not stats.fallbacks, stats


def test_side_stream_and_warm_up(device):
    """Kernels run on torch's current stream: a side stream that waits for a slow one sees its values."""
    import torch

    explanations = DISPATCH.warm_up([device])
    assert {explanation.chosen for explanation in explanations} >= {"replicated"}
    work = WORKLOADS[0]
    shape = shape_of(work)
    side = torch.cuda.Stream()
    block = torch.ones(1, shape.hidden, dtype=torch.float16, device="cuda")
    injection = torch.zeros(1, shape.branches, dtype=torch.float16, device="cuda")
    with torch.cuda.stream(side):
        state = torch.zeros(1, shape.width, dtype=torch.float16, device="cuda")
        torch.cuda._sleep(20_000_000)
        state.fill_(2.0)
        x, _, _ = hyper_connection(state, block, injection, None, None, None, kind="combine")
    side.synchronize()
    assert torch.equal(x, torch.full_like(x, 3.0))
