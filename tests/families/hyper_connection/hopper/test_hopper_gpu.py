"""The Hopper routes on a real GPU: the oracle's bits in chains that overlap, in graphs, and where CTAs stay away.

Exhaustive, too: the seeded sigmoid on every FP32 input, the seeded norm on every sum.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from harness.bits import mismatches, same
from harness.depths import DEPTHS
from harness.layers import layers
from kernwright.compiler.compile import compile_source
from kernwright.evidence.graphs import capture
from kernwright.families.hyper_connection.evidence import EVIDENCE, as_torch, shape_of
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.shape import KINDS
from kernwright.generated.dispatch import DISPATCH
from kernwright.generator.environment import make_environment
from kernwright.runtime import dispatch as dispatch_module
from kernwright.runtime import plan as plan_module
from kernwright.runtime.device import current, serves
from kernwright.specs import families, find_workspace
from kernwright.table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

ROUTES = ("one_kernel", "two_kernels")
POISON = 0x7E5A

CASES = [
    (work, candidate)
    for work in DISPATCH.table.workloads
    for candidate in work.candidates
    if candidate.route in ROUTES
]
BOUNDARIES = pytest.mark.parametrize(
    ("work", "candidate"), CASES, ids=[f"{work.label}-{candidate.name}" for work, candidate in CASES]
)


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def here():
    import torch

    found = current(torch.device("cuda", 0))
    if found.arch is None or not found.arch.startswith("sm_90"):
        pytest.skip(f"the routes for Hopper have builds for sm_90; this is {found}")
    return found


@pytest.fixture(scope="module")
def chain_of(cupy):
    """So many layers of a shape and their answers, once for all candidates: the oracle takes a minute for 96."""
    shapes = {work.label: shape_of(work) for work, _ in CASES}

    @cache
    def chain(label, depth):
        return list(layers(shapes[label], depth, seed=31, xp=cupy))

    return chain


@pytest.fixture(scope="module")
def answer_of(cupy):
    """Inputs and the oracle's answer, once for all candidates of a workload."""
    shapes = {work.label: shape_of(work) for work, _ in CASES}

    @cache
    def answer(label, kind, inputs, seed):
        bits = tensors(shapes[label], inputs, seed, cupy) | weights(shapes[label], seed, kind, cupy)
        return bits, boundary(shapes[label], bits, kind)

    return answer


def load_plan(work, candidate, kind, here):
    return DISPATCH.plan_named(work.name, candidate.name, serves(candidate.builds, here.arch), kind, here)


def poisoned(buffer):
    import torch

    made = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device="cuda")
    made.view(torch.int16).fill_(POISON)
    return made


def bits_of(tensor):
    import cupy
    import torch

    return cupy.from_dlpack(tensor.view(torch.int16)).view(cupy.uint16)


@DEPTHS
@BOUNDARIES
def test_layers_with_16_inputs_each(here, work, candidate, chain_of, depth):
    """Launched without a pause, so that grids overlap; Inf and NaN are among the inputs."""
    import torch

    shape = shape_of(work)
    plan = load_plan(work, candidate, "boundary", here)
    device = torch.device("cuda", 0)
    for layer in chain_of(work.label, depth):
        fixed = {name: as_torch(bits, shape.dtype, device) for name, bits in layer.weights.items()}
        given = {name: as_torch(bits, shape.dtype, device) for name, bits in layer.inputs.items()}
        runs = []
        for token in range(given["residual"].shape[0]):
            mine = {name: tensor[token : token + 1].contiguous() for name, tensor in given.items()}
            runs.append({buffer.name: poisoned(buffer) for buffer in plan.buffers} | mine | fixed)
        torch.cuda.synchronize()
        for buffers in runs:
            plan.run(buffers)
        for token, buffers in enumerate(runs):
            for name in KINDS["boundary"].outputs:
                expected = layer.expected[name][token : token + 1]
                difference = mismatches(bits_of(buffers[name]), expected, shape.storage)
                assert difference.count == 0, (
                    f"layer {layer.index}, token {token}, {name}: {difference.first}"
                )


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
@BOUNDARIES
def test_all_kinds_of_values(here, work, candidate, kind, answer_of):
    import torch

    shape, device = shape_of(work), torch.device("cuda", 0)
    plan = load_plan(work, candidate, kind, here)
    for seed, inputs in enumerate(INPUT_KINDS):
        bits, expected = answer_of(work.label, kind, inputs, seed)
        buffers = {buffer.name: poisoned(buffer) for buffer in plan.buffers}
        buffers |= {
            buffer.name: as_torch(bits[buffer.name], shape.dtype, device) for buffer in plan.signature.inputs
        }
        plan.run(buffers)
        for buffer in plan.signature.outputs:
            difference = mismatches(bits_of(buffers[buffer.name]), expected[buffer.name], shape.storage)
            assert difference.count == 0, f"{kind}, {inputs}, {buffer.name}: {difference.first}"


@pytest.mark.parametrize("replays", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
@BOUNDARIES
def test_replays_of_a_graph(cupy, here, work, candidate, replays):
    """96 boundaries, each reading what the one before has stored: the control's bits, first, last and in between."""
    import torch

    chain = EVIDENCE.chain(work, torch.device("cuda", 0), seed=77)
    control = load_plan(work, work.control, "boundary", here)
    plan = load_plan(work, candidate, "boundary", here)
    expected = [tensor for result in chain.run(control) for tensor in result]
    graph = capture(lambda: chain.run(plan))
    found = [tensor for result in graph.result for tensor in result]
    for replay in range(replays):
        if replay % 100 == 0:
            for tensor in found:
                tensor.view(torch.int16).fill_(POISON)
        graph.replay()
        if replay % 100 == 0 or replay == replays - 1:
            assert same(found, expected), f"replay {replay}"


@pytest.mark.parametrize("work", [work for work, _ in CASES][:1], ids=lambda work: work.label)
def test_two_ctas_fit_an_sm(here, work):
    """This boundary's, and the one that prefetches behind it."""
    from cupy_backends.cuda.api import driver
    from kernwright.runtime.loader import load

    candidate = next(entry for entry in work.candidates if entry.route == "one_kernel")
    kernel = candidate.kernels["boundary"]
    arch = serves(candidate.builds, here.arch)
    module = load(DISPATCH.table.root, candidate.builds[arch], arch, here)
    module.launcher(kernel)  # asks for the shared memory
    function = module._module.get_function(kernel.symbol)
    threads = kernel.block[0]
    assert driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, kernel.shared_bytes) == 2


@pytest.mark.parametrize("work", [work for work, _ in CASES][:1], ids=lambda work: work.label)
def test_a_cta_that_stays_away(cupy, here, work, monkeypatch):
    """A grid of two CTAs fewer: NaN where it was needed and a record, in 50 ms instead of never."""
    import torch

    monkeypatch.setattr(plan_module, "TIMEOUT_NS", 50_000_000)
    candidate = next(entry for entry in work.candidates if entry.route == "one_kernel")
    kernel = candidate.kernels["boundary"]
    short = replace(kernel, grid=(kernel.grid[0] - 2, 1, 1))
    broken = replace(candidate, kernels={**candidate.kernels, "boundary": short})
    table: Table = replace(DISPATCH.table, workloads=(replace(work, candidates=(work.control, broken)),))
    dispatch = dispatch_module.Dispatch(table)
    dispatch.register(DISPATCH.operator(work.family))
    plan = dispatch.plan_named(
        work.name, candidate.name, serves(candidate.builds, here.arch), "boundary", here
    )
    shape, device = shape_of(work), torch.device("cuda", 0)
    bits = tensors(shape, "normal", 1, cupy) | weights(shape, 1, xp=cupy)
    buffers = {buffer.name: poisoned(buffer) for buffer in plan.buffers}
    buffers |= {b.name: as_torch(bits[b.name], shape.dtype, device) for b in plan.signature.inputs}
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    plan.run(buffers)
    end.record()
    end.synchronize()
    assert 40 < start.elapsed_time(end) < 1000
    assert bool(buffers["block_input"].isnan().all())
    (state,) = plan._state.values()
    at = plan._state_kind.record_at
    failures, _cta, row, branch, expected, seen = state.memory[at : at + 24].view(torch.int32).tolist()
    assert failures >= 1
    assert (
        310 <= row < 320
    )  # the last CTA of a branch has the injections' rows alone, the one before it these
    assert (branch, expected, seen) == (3, 1, 0)


EXHAUSTIVE = """
__device__ __forceinline__ bool same(float a, float b) {
  return __float_as_uint(a) == __float_as_uint(b) || (a != a && b != b);
}
extern "C" __global__ void compare(unsigned long long* wrong) {
  const unsigned int threads = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long sigmoids = 0, norms = 0;
  for (unsigned long long bits = first; bits < (1ull << 32); bits += threads) {
    const float value = __uint_as_float(static_cast<unsigned int>(bits));
    sigmoids += !same(seeded_sigmoid(value), sigmoid(value));
    if (bits < (1ull << 31)) {  // a sum of squares isn't negative
      const float mean = divide(value, static_cast<float>(LENGTH)) + EPSILON;
      norms += !same(seeded_inverse_rms<LENGTH>(value, EPSILON), divide(1.0f, square_root(mean)));
    }
  }
  atomicAdd(wrong, sigmoids);
  atomicAdd(wrong + 1, norms);
}
"""


@pytest.mark.parametrize(
    ("length", "epsilon"), [(2560, "1e-6f"), (2048, "1e-5f"), (256, "0x1p-70f"), (7168, "1e-6f")]
)
def test_seeded_functions_on_every_input(cupy, here, length, epsilon):
    workspace = find_workspace()
    environment = make_environment(workspace, families(workspace))
    parts = [environment.get_template(f"prelude/{name}.cuh.j2").render() for name in ("arithmetic", "seeded")]
    constants = f"constexpr int LENGTH = {length};\nconstexpr float EPSILON = {epsilon};\n"
    text = "\n".join([*parts, constants, EXHAUSTIVE])
    artifact = compile_source(text, file_name="seeded.cu", arch=serves({"sm_90": None}, here.arch))
    module = cupy.cuda.function.Module()
    module.load(artifact.data)
    wrong = cupy.zeros(2, cupy.uint64)
    module.get_function("compare")((132 * 8, 1, 1), (256, 1, 1), (wrong,))
    sigmoids, norms = cupy.asnumpy(wrong).tolist()
    assert (sigmoids, norms) == (0, 0)
