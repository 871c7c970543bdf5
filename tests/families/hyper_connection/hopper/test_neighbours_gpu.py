"""On a real GPU: what attributes say of a neighbour, boundaries behind one, a plan that finds out and recovers."""

from __future__ import annotations

import time

import pytest
from harness.bits import same
from kernwright.compiler.compile import compile_source
from kernwright.evidence.graphs import capture
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.families.hyper_connection.neighbours import Footprint, coresidency, share_sm
from kernwright.generated.dispatch import DISPATCH
from kernwright.runtime.current import current_stream
from kernwright.runtime.device import current, serves
from kernwright.runtime.errors import CtasApart
from kernwright.runtime.launch import CudaModule, LaunchSequence
from kernwright.runtime.waits import LOOK_SECONDS
from kernwright.table import Kernel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

WORK = next(
    work
    for work in DISPATCH.table.workloads
    if work.spec == "qwen38_flash_tp1" and work.fields["dtype"] == "float16"
)
CTAS, THREADS = 132, 256
FOREIGN = """
extern "C" __global__ void ordinary(float* buffer) { buffer[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }
extern "C" __global__ void early(float* buffer) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long began = clock64();
  while (clock64() - began < 8000) {
  }
  buffer[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f;
}
extern "C" __global__ void chained(float* buffer) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  buffer[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f;
}
"""


@pytest.fixture(scope="module")
def here():
    import torch

    found = current(torch.device("cuda", 0))
    if found.arch is None or not found.arch.startswith("sm_90"):
        pytest.skip(f"the routes for Hopper have builds for sm_90; this is {found}")
    return found


@pytest.fixture(scope="module")
def module(here):
    import cupy

    artifact = compile_source(FOREIGN, file_name="foreign.cu", arch=here.arch)
    loaded = cupy.cuda.function.Module()
    loaded.load(artifact.data)
    return loaded


def load_plan(name, here):
    candidate = next(entry for entry in WORK.candidates if entry.name == name)
    return DISPATCH.plan_named(WORK.name, name, serves(candidate.builds, here.arch), "boundary", here)


def test_attributes_of_a_plan_and_of_a_neighbour(here, module):
    plan = load_plan("one_kernel", here)
    function = module.get_function("ordinary")
    before = Footprint.of(function, CTAS, THREADS, name="ordinary")
    assert before.carveout == -1
    (sentence,) = coresidency(plan, before).obstacles
    assert "carveout of ordinary is left to the driver" in sentence
    share_sm(function)
    after = Footprint.of(function, CTAS, THREADS, name="ordinary")
    assert after.carveout == 100
    assert coresidency(plan, after)
    large = Footprint.of(function, CTAS, THREADS, 124_000, name="ordinary")
    (sentence,) = coresidency(plan, large).obstacles
    assert "bytes of shared memory: hyper_connection_boundary_one_kernel needs" in sentence


@pytest.mark.parametrize("kind", ["ordinary", "early", "chained"])
@pytest.mark.parametrize("name", ["one_kernel", "two_kernels"])
def test_boundaries_behind_a_neighbour_are_right(here, module, name, kind):
    """96 boundaries, each behind a foreign kernel that ends before, with, or long after their weights came."""
    import torch

    chain = EVIDENCE.chain(WORK, torch.device("cuda", 0), seed=55)
    control = load_plan(WORK.control.name, here)
    expected = [tensor for result in chain.run(control) for tensor in result]
    share_sm(module.get_function("early"))
    buffer = torch.zeros(CTAS * THREADS, device="cuda")
    kernel = Kernel((CTAS, 1, 1), (THREADS, 1, 1), ("buffer",), programmatic=kind == "chained", symbol=kind)
    foreign = LaunchSequence(CudaModule(module, here.sm_count), [kernel], ["buffer"])
    plan = load_plan(name, here)

    def step(inputs):
        foreign([buffer.data_ptr()], current_stream(here.index))
        return plan(inputs)

    graph = capture(lambda: chain.run(step))
    found = [tensor for result in graph.result for tensor in result]
    for replay in range(200):
        for tensor in found:
            tensor.view(torch.int16).fill_(0x7E5A)
        graph.replay()
        assert same(found, expected), f"replay {replay}"
    plan.check()
    assert len(set(buffer.tolist())) == 1


def call_for_seconds(plan, inputs, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(2 * LOOK_SECONDS)
        plan(inputs)


def test_a_plan_finds_out_and_recovers(here):
    """A record that says that CTAs gave up: NaN, an exception from a later call that waits for nothing, reset."""
    import torch

    chain = EVIDENCE.chain(WORK, torch.device("cuda", 0), seed=3)
    inputs = [*chain.first, *chain.weights[0]]
    plan = load_plan("one_kernel", here)
    expected = [tensor.clone() for tensor in plan(inputs)]
    plan.check()
    (state,) = plan._state.values()
    at = plan._state_kind.record_at
    torch.cuda.synchronize()
    state.memory[at : at + 32] = torch.tensor(
        [1, 5, 300, 2, 1, 0, 0, 0], dtype=torch.int32, device="cuda"
    ).view(torch.uint8)
    with pytest.raises(CtasApart, match="CTA 5 waited in vain for row 300 of branch 2 of call 1"):
        plan.check()
    with pytest.raises(CtasApart):
        call_for_seconds(plan, inputs, 5)
    plan.reset()
    for _ in range(3):
        time.sleep(2 * LOOK_SECONDS)
        assert same(plan(inputs), expected)
    plan.check()


def test_a_look_costs_a_call_little(here):
    """Calls that look, against calls that don't: microseconds of the host, and nothing is waited for."""
    import torch

    chain = EVIDENCE.chain(WORK, torch.device("cuda", 0), seed=3)
    inputs = [*chain.first, *chain.weights[0]]
    plan = load_plan("one_kernel", here)
    plan(inputs)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # a tenth of a second: whoever waited for the stream would show it
    time.sleep(2 * LOOK_SECONDS)
    began = time.perf_counter()
    plan(inputs)
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    assert took < 0.02
