"""Every route gives the oracle's bits: all kinds of values, all kinds of boundaries, chains whose grids overlap."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import Interleaving, check
from kernwright.families.hyper_connection.inputs import INPUT_KINDS

MINI = ("one", "one_passes", "one_look", "two", "two_passes")
LIBRARY = ("one_kernel", "two_kernels")


def passes(made, schedule=Interleaving()) -> dict:  # noqa: B008
    checked = check(made.launches, made.expected, schedule)
    assert not checked.problems, "\n".join(map(str, checked.problems))
    return dict(checked.arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MINI)
def test_a_chain_of_all_kinds(chain, name, dtype):
    """Every output of five boundaries, each of which reads what the one before it has stored."""
    made = chain(name, dtype).start()
    for seed, kind in enumerate(("first", "boundary", "boundary", "combine", "final")):
        made.add(kind, seed)
    passes(made)
    assert [buffer.name.rstrip("0123456789") for buffer in made.expected] == [
        *("block_input", "injection_out"),
        *("x", "block_input", "injection_out") * 2,
        "x",
        "block_input",
    ]


@pytest.mark.parametrize("inputs", INPUT_KINDS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if "passes" in n else ()) for n in MINI]
)
def test_all_kinds_of_values(chain, name, inputs):
    """Inf and NaN, subnormals, signed zeros, ties: stored and handed on as the contract has it."""
    dtype = "bfloat16" if inputs in ("large", "subnormal") else "float16"
    made = chain(name, dtype).start(inputs, seed=3)
    made.add("boundary", 5)
    made.add("final", 6)
    passes(made)


@pytest.mark.parametrize("name", MINI)
def test_not_programmatic_is_the_same(chain, name):
    """Launched without overlap the kernels wait for nothing, and give the same."""
    made = chain(name, programmatic=False).start()
    made.add("first", 1)
    made.add("final", 2)
    passes(made)


@pytest.mark.parametrize(("spec", "dtype"), [("eight", "bfloat16"), ("three", "float16")])
@pytest.mark.parametrize("name", ["one", "two"])
def test_other_shapes(chain, name, spec, dtype):
    """Eight branches and three, other chunks of up."""
    made = chain(name, dtype, spec).start()
    for seed, kind in enumerate(("first", "boundary", "combine", "final")):
        made.add(kind, seed)
    passes(made)


@pytest.mark.parametrize("generation", [2**31 - 2, 2**32 - 3])
@pytest.mark.parametrize("name", ["one", "one_teams", "one_look", "one_look_all"])
def test_generations_wrap(chain, name, generation):
    """Four calls across the wrap; by then all words have been written, and none holds the tag of new memory."""
    made = chain(name, spec="tiny", generation=generation).start()
    for seed, kind in enumerate(("first", "boundary", "boundary", "final")):
        made.add(kind, seed)
    arrays = passes(made)
    expected = (generation + 4) % 2**32
    assert set(arrays[made.state["generations"]].tolist()) == {expected}
    assert not arrays[made.state["record"]].any()


def test_memory_that_held_anything_is_no_tag(chain):
    """What the words held before the first call has generation 0."""
    made = chain("one", spec="tiny").start()
    made.state["exchange"].array[:] = np.uint64(0x3F800000)  # 1.0, generation 0
    made.add("boundary", 1)
    passes(made)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_at_full_size(chain, name):
    """HC4, H2560, R320."""
    made = chain(name, "float16", "qwen38_flash_tp1").start()
    made.add("boundary", 1)
    passes(made)


@pytest.mark.long
@pytest.mark.parametrize("inputs", INPUT_KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_with_all_kinds_of_values(chain, name, dtype, inputs):
    made = chain(name, dtype, "qwen38_flash_tp1").start(inputs, seed=7)
    for seed, kind in enumerate(("first", "boundary", "boundary", "combine", "final")):
        made.add(kind, seed + 10)
    passes(made)
