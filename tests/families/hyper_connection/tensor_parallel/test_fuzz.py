"""Schedule fuzz: calls that follow each other without a sync, ranks skewed by chance; races; a second channel."""

from __future__ import annotations

import numpy as np
import pytest
from harness.paths import MINIATURE
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Interleaving, compile_text, find_races, fuzz
from kernwright.families.all_reduce.oracle import all_reduce_sum2
from kernwright.families.all_reduce.spec import ChannelLayout
from kernwright.generator.environment import make_environment
from kernwright.generator.sources import generate_workloads
from kernwright.specs import families, find_workspace, load_spec

SEEDS = 2000
"""Of the fused route, over its candidates and world sizes."""
ALL_REDUCE = MINIATURE / "mini.toml"


def label(ranks: int) -> str:
    return f"fp16-hc4-h32-n1-r64-tp{ranks}"


def calls(group, name, ranks, generation=2**32 - 2, count=4):
    """Calls across the wrap of the generation, on both slots twice."""
    made = group(label(ranks), "tiny", generation=generation)
    for call in range(count):
        made.call(name, "final" if call == 2 else "boundary", seed=1 + call)
    return made


@pytest.mark.parametrize(("ranks", "seeds"), [(2, 12), (4, 6)])
@pytest.mark.parametrize("name", ["gates", "hidden", "fused", "fused_serial"])
def test_schedules(group, name, ranks, seeds):
    made = calls(group, name, ranks)
    fuzzed = fuzz(made.launches, made.expected, seeds)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.long
@pytest.mark.parametrize("generation", [0, 65_534, 2**32 - 2])
@pytest.mark.parametrize(
    ("name", "ranks"), [("fused", 2), ("fused", 4), ("fused_serial", 2), ("fused_serial", 4)]
)
def test_two_thousand_seeds_of_the_fused_route(group, name, ranks, generation):
    made = calls(group, name, ranks, generation)
    fuzzed = fuzz(made.launches, made.expected, -(-SEEDS // 12), first=1000)
    assert not fuzzed.problems, str(fuzzed)


@pytest.mark.parametrize(("name", "ranks"), [("gates", 2), ("hidden", 2), ("fused", 2), ("fused_serial", 2)])
def test_no_race(group, name, ranks, small_exchanges):
    made = group(label(ranks), "tiny", edits=small_exchanges.edits)
    for call in range(2):
        made.call(name, seed=1 + call)
    launches = small_exchanges.launches(made.launches)
    fuzzed = fuzz(launches, made.expected, 2)
    assert not fuzzed.problems, str(fuzzed)
    assert find_races(launches, Interleaving(1, "random")) == ()


@pytest.mark.parametrize("name", ["fused", "gates"])
def test_an_all_reduce_of_two_inputs_on_a_stream_beside_it(group, name):
    """It has a channel of its own, and the same ranks are busy with both."""
    made = calls(group, name, 4, generation=65_534)
    launches, expected = all_reduces(calls=4, ranks=4)
    fuzzed = fuzz([*made.launches, *launches], made.expected | expected, 8)
    assert not fuzzed.problems, str(fuzzed)


def all_reduces(calls: int, ranks: int) -> tuple[list[EmulatedLaunch], dict[DeviceBuffer, object]]:
    """`sum2` of the all-reduce family on stream 1 of every rank."""
    workspace = find_workspace()
    known = families(workspace)
    entries = generate_workloads(
        make_environment(workspace, known), load_spec(ALL_REDUCE, workspace), known["all_reduce"]
    )
    entry = next(e for e in entries if (e.workload.dtype, e.workload.world_size) == ("float16", ranks))
    tagged = next(c for c in entry.candidates if c.candidate.name == "tagged")
    kernel = compile_text(tagged.sources[-1].text, "tagged.cu")
    launch, symbol = tagged.lowering.kernels["sum2"], tagged.symbols["sum2"]
    size = ChannelLayout.of(entry.workload).size  # type: ignore[arg-type]
    channels = tuple(
        DeviceBuffer.inout("all-reduce", np.zeros(size, np.uint8), rank=rank) for rank in range(ranks)
    )
    rng = np.random.default_rng(5)
    launches, expected = [], {}
    for call in range(calls):
        bits = rng.standard_normal((2, ranks, 200)).astype(np.float16).view(np.uint16)
        total = all_reduce_sum2(list(bits[0]), list(bits[1]), "float16")
        for rank in range(ranks):
            inputs = DeviceBuffer("input", bits[0, rank], "in", rank, "float16")
            addend = DeviceBuffer("addend", bits[1, rank], "in", rank, "float16")
            output = DeviceBuffer(f"sum {call}", np.empty_like(total), "out", rank, "float16")
            args = (channels, *[(tensor,) * ranks for tensor in (inputs, addend, output)], np.uint32(200))
            scalars = (np.uint32(rank), np.uint64(30_000_000_000))
            launches.append(
                EmulatedLaunch(
                    kernel, symbol, launch.grid, launch.block, (*args, *scalars), 0, rank, stream=1
                )
            )
            expected[output] = total
    return launches, expected
