"""The sharded routes on one real GPU, all ranks in one launch: bit for bit the array oracle's answer.

Layers with distinct weights, 16 inputs each, every sharded candidate that fits, the device's own build and the
sm_70 build (as PTX through the driver's compiler), eager and in a captured graph, across the wrap of the tag.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from harness.bits import mismatches
from harness.depths import DEPTHS
from harness.layers import LayerWeights, layers
from kernwright.families.hyper_connection.channel_layout import FUSED_CTAS, LARGEST_GRID
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.generated.dispatch import TABLE
from kernwright.runtime.communicator.channel import Channel
from kernwright.runtime.communicator.local import LocalCommunicator
from kernwright.runtime.device import current, serves
from kernwright.runtime.launch import LaunchSequence
from kernwright.runtime.loader import load
from kernwright.runtime.plan import current_stream

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500)]

POISON = 0x7E5A
"""A NaN of FP16 whose bits no kernel stores."""
RESULTS = {
    "boundary": ("x", "y", "lora", "injection_out", "block_input"),
    "first": ("y", "lora", "injection_out", "block_input"),
    "combine": ("x",),
    "final": ("x", "y", "lora", "block_input"),
}
SHARDED = [
    (work, candidate)
    for work in TABLE.workloads
    if work.family == "hyper_connection"
    for candidate in work.candidates
    if candidate.capabilities
]
FOUR = [(work, candidate) for work, candidate in SHARDED if work.spec == "qwen38_flash_tp4"]


def name_of(value: Any) -> str:
    return getattr(value, "name", str(value)).replace("/", "-")


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def device():
    import torch

    return current(torch.device("cuda", 0))


@pytest.fixture(scope="module")
def chain_of(cupy) -> Callable[[int], list[LayerWeights]]:
    """So many layers and their answers, once for all candidates of four ranks: the oracle takes a minute for 96."""

    @cache
    def chain(depth: int) -> list[LayerWeights]:
        return list(layers(shape_of(FOUR[0][0]), depth, seed=11, xp=cupy))

    return chain


@pytest.fixture(scope="module")
def answer_of(cupy) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """Inputs and the oracle's answer, once for all candidates and builds of a workload."""
    shapes = {work.name: shape_of(work) for work, _ in SHARDED}

    @cache
    def answer(name: str, kind: Any, inputs: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        bits = tensors(shapes[name], inputs, seed, cupy) | weights(shapes[name], seed, kind, cupy)
        return bits, boundary(shapes[name], bits, kind)

    return answer


def shape_of(work) -> OracleShape:
    names = ("dtype", "branches", "hidden", "low_rank", "eps", "norm_weight")
    return OracleShape(tokens=1, trees=work.trees, **{name: work.fields[name] for name in names})


def as_torch(bits, dtype: str):
    """The same memory as a torch tensor of the storage dtype."""
    import torch

    return torch.from_dlpack(bits.view("int16")).view(getattr(torch, dtype))


def archs(candidate, device) -> list[str]:
    """The build that the device takes, and sm_70's, if there is one: the device runs it as PTX."""
    own = serves(candidate.builds, device.arch)
    return [arch for arch in candidate.builds if arch in (own, "sm_70")]


@dataclass
class Ranks:
    """One candidate's launches of a kind with all ranks in each grid, and the buffers that they use.

    Every tensor but the weights has the rank as its first dimension (docs/hyper_connection.md).
    """

    sequence: LaunchSequence
    buffers: dict[str, Any]
    channel: Channel
    index: int

    @classmethod
    def make(
        cls, work, candidate, arch: str, kind: str, device, channel: Channel, ranks: int | None = None
    ) -> Ranks:
        """`ranks` of the grid, the first ones; by default all.

        Skips the test where the ranks' CTAs, which wait for each other, don't fit on the GPU at once.
        """
        import torch
        from kernwright.runtime.errors import LoadError

        world = int(work.fields["world_size"])
        build = candidate.builds[arch]
        module = load(TABLE.root, build, arch, device)
        kernels = []
        for name in candidate.steps[kind]:
            kernel = candidate.kernels[name]
            x, _, z = kernel.grid
            grid = (x, world if ranks is None else ranks, z)
            kernels.append(replace(kernel, grid=grid, cooperative=kernel.resident))
        shape = shape_of(work)
        outputs = {"block_input": shape.hidden, "injection_out": shape.branches}
        sizes = {
            "residual": shape.width,
            "block": shape.hidden,
            "injection": shape.branches,
            "norm_weight": shape.width if shape.norm_weight == "per_branch" else shape.hidden,
            "down_weight": shape.stored_down_rows(kind) * shape.width,
            "up_weight": shape.width * shape.low_rank,
            **outputs,
        }
        used = [a for a in dict.fromkeys(a for k in kernels for a in k.args) if a not in candidate.arguments]
        buffers: dict[str, Any] = {}
        for name in used:
            count, dtype = sizes.get(name), shape.dtype
            if count is None:
                dims, dtype = (candidate.scratch | candidate.state)[name]
                count = 1
                for dim in dims:
                    count *= dim
            lead = 1 if name.endswith("_weight") else world
            buffers[name] = torch.zeros((lead, count), dtype=getattr(torch, dtype), device="cuda")
        constants = channel.constants(30_000_000_000 if ranks is None else 200_000_000)
        assert device.index is not None
        try:
            sequence = LaunchSequence(module, kernels, used, constants)
        except LoadError as error:
            pytest.skip(str(error))
        return cls(sequence, buffers, channel, device.index)

    def give(self, bits: dict[str, Any], dtype: str) -> None:
        """Inputs and weights, the same for every rank; everything else is poisoned."""
        import torch

        for name, buffer in self.buffers.items():
            if name in bits:
                buffer.copy_(as_torch(bits[name].reshape(1, -1), dtype).expand_as(buffer))
            elif buffer.dtype in (torch.float16, torch.bfloat16):
                buffer.view(torch.int16).fill_(POISON)

    def run(self) -> None:
        """Launch on torch's current stream."""
        self.sequence([buffer.data_ptr() for buffer in self.buffers.values()], current_stream(self.index))

    def wrong(self, expected: dict[str, Any], kind: str, storage) -> list[str]:
        """The names of what any rank stored otherwise."""
        import cupy
        import torch

        found = []
        for name in RESULTS[kind]:
            bits = cupy.from_dlpack(self.buffers[name].view(torch.int16)).view(cupy.uint16)
            right = cupy.broadcast_to(expected[name].reshape(1, -1), bits.shape)
            if mismatches(bits, right, storage).count:
                found.append(name)
        return found

    def different(self, expected: dict[str, Any], kind: str, dtype: str):
        """How many values any rank stored otherwise, counted on the device; a NaN equals any NaN."""
        import torch

        total = torch.zeros((), dtype=torch.int64, device="cuda")
        for name in RESULTS[kind]:
            found = self.buffers[name]
            right = as_torch(expected[name].reshape(1, -1), dtype).expand_as(found)
            unequal = found.view(torch.int16) != right.contiguous().view(torch.int16)
            total += (unequal & ~(found.isnan() & right.isnan())).sum()
        return total


def open_channel(work) -> Channel:
    import torch

    world = int(work.fields["world_size"])
    return LocalCommunicator(TABLE, world, torch.device("cuda", 0), specs=[work.spec]).channel(work.spec)


def start_at(channel: Channel, work, generation: int) -> None:
    """Make the channel as it is before a generation: counters, and slots with the tag of two before."""
    import torch

    hidden, ranks, offsets = int(work.fields["hidden"]), channel.ranks, channel.plan.offsets
    parts = ("down", "gates", "outputs", "fused", "more_counters", "size")
    counters = (1, -(-hidden // 256), -(-hidden // ranks // 256), FUSED_CTAS, LARGEST_GRID - FUSED_CTAS)
    calls, tag = (generation - 2) % 2**32, (generation - 2) % 2**16 << 16
    signed = [value - 2**32 if value >= 2**31 else value for value in (calls, tag)]
    for rank in range(ranks):
        words = channel.memory[rank].view(torch.int32)
        for begin, end, count in zip(parts, parts[1:], counters, strict=False):
            first = offsets[begin] // 4
            words[first : first + count] = signed[0]
            words[first + count : offsets[end] // 4] = signed[1]


def one_input(layer: LayerWeights, token: int) -> dict[str, Any]:
    return {**layer.weights, **{name: bits[token : token + 1] for name, bits in layer.inputs.items()}}


def one_answer(layer: LayerWeights, token: int) -> dict[str, Any]:
    return {name: bits[token : token + 1] for name, bits in layer.expected.items()}


@DEPTHS
@pytest.mark.parametrize(("work", "candidate"), FOUR, ids=name_of)
def test_a_chain_of_four_ranks_equals_the_oracle(device, work, candidate, chain_of, depth, figures):
    """Distinct weight sets x 16 inputs, by each build."""
    import torch

    shape = shape_of(work)
    made = {
        arch: Ranks.make(work, candidate, arch, "boundary", device, open_channel(work))
        for arch in archs(candidate, device)
    }
    wrong = {arch: torch.zeros((), dtype=torch.int64, device="cuda") for arch in made}
    compared = 0
    for layer in chain_of(depth):
        for token in range(16):
            for arch, ranks in made.items():
                ranks.give(one_input(layer, token), shape.dtype)
                ranks.run()
                wrong[arch] += ranks.different(one_answer(layer, token), "boundary", shape.dtype)
                compared += 1
    assert {arch: int(count) for arch, count in wrong.items()} == dict.fromkeys(made, 0)
    for ranks in made.values():
        ranks.channel.check()
    figures[f"boundaries of four local ranks, {candidate.name}, {depth} layers"] = compared
    assert compared == depth * 16 * len(archs(candidate, device))


@pytest.mark.parametrize("kind", ["first", "combine", "final"])
@pytest.mark.parametrize(("work", "candidate"), SHARDED, ids=name_of)
def test_every_kind_at_every_world_size(device, work, candidate, kind, answer_of):
    shape = shape_of(work)
    for arch in archs(candidate, device):
        made = Ranks.make(work, candidate, arch, kind, device, open_channel(work))
        for seed, inputs in enumerate(INPUT_KINDS):
            bits, expected = answer_of(work.name, kind, inputs, seed)
            made.give(bits, shape.dtype)
            made.run()
            wrong = made.wrong(expected, kind, shape.storage)
            assert not wrong, f"{arch}, {inputs}: {wrong}"
        made.channel.check()


@pytest.mark.parametrize("generation", [0, 65_534, 2**32 - 2])
@pytest.mark.parametrize(("work", "candidate"), FOUR, ids=name_of)
def test_generations_wrap(device, work, candidate, generation, chain_of):
    import torch

    shape = shape_of(work)
    channel = open_channel(work)
    start_at(channel, work, generation)
    torch.cuda.synchronize()
    made = Ranks.make(work, candidate, archs(candidate, device)[0], "boundary", device, channel)
    (layer,) = chain_of(1)
    for token in range(16):
        made.give(one_input(layer, token), shape.dtype)
        made.run()
        assert not made.wrong(one_answer(layer, token), "boundary", shape.storage), token
    channel.check()


@pytest.mark.parametrize(("work", "candidate"), FOUR, ids=name_of)
def test_a_graph_is_replayed_across_two_wraps_of_the_tag(device, work, candidate, chain_of):
    """146,000 generations: a graph of 100 boundaries, 1,460 replays, checked before and after."""
    import torch

    shape = shape_of(work)
    made = Ranks.make(work, candidate, archs(candidate, device)[0], "boundary", device, open_channel(work))
    (layer,) = chain_of(1)
    made.give(one_input(layer, 3), shape.dtype)
    made.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            made.run()
    for token, replays in ((3, 1), (9, 1_460), (12, 1)):
        made.give(one_input(layer, token), shape.dtype)
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        assert not made.wrong(one_answer(layer, token), "boundary", shape.storage), token
    made.channel.check()


@pytest.mark.parametrize(("work", "candidate"), FOUR, ids=name_of)
def test_a_rank_that_stays_away(device, work, candidate, chain_of):
    """Three of four ranks are launched: they give up in time, leave a record, and store NaN."""
    import torch
    from kernwright.runtime.errors import PeerTimeout

    shape = shape_of(work)
    channel = open_channel(work)
    made = Ranks.make(work, candidate, archs(candidate, device)[0], "boundary", device, channel, ranks=3)
    (layer,) = chain_of(1)
    made.give(one_input(layer, 2), shape.dtype)
    began = time.monotonic()
    made.run()
    torch.cuda.synchronize()
    assert time.monotonic() - began < 20
    assert made.buffers["block_input"][:3].float().isnan().all()
    with pytest.raises(
        PeerTimeout, match="waited in vain for rank 3 on channel qwen38_flash_tp4: the shard of the"
    ):
        channel.check()
