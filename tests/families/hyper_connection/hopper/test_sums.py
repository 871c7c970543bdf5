"""Sums in FP32, before any rounding hides their order: butterflies of many rows, and what the CTAs exchange."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, compile_text, run
from kernwright.evidence.oracle.single import add, divide, square_root
from kernwright.evidence.oracle.trees import dot, squares
from kernwright.families.hyper_connection.inputs import weights
from kernwright.generator.environment import make_environment
from kernwright.specs import families, find_workspace

from .conftest import HERE


def preludes() -> str:
    workspace = find_workspace()
    environment = make_environment(workspace, families(workspace))
    names = ("reduction", "warp_rows")
    return "\n".join(environment.get_template(f"prelude/{name}.cuh.j2").render() for name in names)


@pytest.mark.parametrize("rows", [*range(1, 13), 16, 17, 31, 32])
def test_rows_at_once_are_summed_like_each_by_itself(rows):
    kernel = (HERE / "kernels" / "warp_sums.cu").read_text()
    compiled = compile_text(f"{preludes()}\nconstexpr int ROWS = {rows};\n{kernel}", "warp_sums.cu")
    generator = np.random.default_rng(rows)
    values = np.ldexp(generator.standard_normal((rows, 32)), generator.integers(-9, 10, (rows, 32))).astype(
        np.float32
    )
    given = DeviceBuffer.input("values", values)
    sums = {}
    for symbol in ("at_once", "one_by_one"):
        out = DeviceBuffer.output("sums", (rows,), "float32")
        outcome = run([EmulatedLaunch(compiled, symbol, (1, 1, 1), (32, 1, 1), (given, out))])
        assert outcome.fault is None
        sums[symbol] = outcome.arrays[out].view(np.uint32).tolist()
    assert sums["at_once"] == sums["one_by_one"]


def exchanged(made, seed):
    """What each branch contributes to each row of down, and the branches' scales: FP32, from the oracle."""
    shape, load = made.shape, made.shape.storage.load
    lanes = shape.trees["norm"][1]
    y = load(made.answer["y"]).reshape(shape.branches, shape.hidden)
    weight = load(weights(shape, seed)["down_weight"]).reshape(-1, shape.branches, shape.hidden)
    rows = shape.low_rank + shape.branches
    return dot(y[None], weight[:rows], (1, lanes, 8))


def rows_of(made, words):
    """The words of each row's branches, and of the scales behind them, from planes of what is loaded at once."""
    at_once = made.entry.candidate.exchange_bytes // 8
    branches, rows = made.shape.branches, made.shape.low_rank + made.shape.branches + 1
    planes = words.reshape(branches // at_once, -1, at_once)
    assert planes.shape[1] % 8 == 0
    assert not planes[:, rows:].any()
    return planes[:, :rows].transpose(1, 0, 2).reshape(rows, branches)


def test_what_is_exchanged_is_the_tree_of_a_branch(chain):
    for name in ("one", "one_passes"):
        made = chain(name).start()
        made.add("boundary", 3)
        outcome = run(made.launches)
        assert outcome.fault is None
        words = rows_of(made, outcome.arrays[made.state["exchange"]])
        partials = exchanged(made, 3)
        assert (words[:-1].astype(np.uint32) == partials.view(np.uint32)).all()
        (tag,) = {int(word) >> 32 for word in words.ravel()}
        assert tag & 0xFFFF == 1  # the first generation, below the salt
        assert tag >> 31 == 0  # the bit of the tag that no word has
        assert (words[-1].astype(np.uint32) == scales(made).view(np.uint32)).all()


def test_partials_of_two_kernels_are_the_tree_of_a_branch(chain):
    for name in ("two", "two_passes"):
        made = chain(name).start()
        made.add("boundary", 3)
        outcome = run(made.launches)
        assert outcome.fault is None
        assert (outcome.arrays[made.scratch["partials"]] == exchanged(made, 3).T.view(np.uint32)).all()


def scales(made):
    """1 / rms of each branch."""
    shape = made.shape
    x = shape.storage.load(made.answer["x"]).reshape(shape.branches, shape.hidden)
    mean = divide(squares(x, shape.trees["norm"]), np.float32(shape.hidden))
    return divide(np.float32(1), square_root(add(mean, np.float32(shape.eps))))


def test_another_order_is_seen(chain):
    """A negative control: a chunk's elements from the last to the first."""
    up, rest = (
        "for (int e = 0; e < CHUNK; ++e)",
        "\n#pragma unroll\n    for (int i = 0; i < ROWS_AT_ONCE; ++i)\n      sum[i]",
    )
    made = chain("one", edits=((up + rest, "for (int e = CHUNK - 1; e >= 0; --e)" + rest),)).start()
    made.add("boundary", 3)
    words = rows_of(made, run(made.launches).arrays[made.state["exchange"]])
    assert not (words[:-1].astype(np.uint32) == exchanged(made, 3).view(np.uint32)).all()
