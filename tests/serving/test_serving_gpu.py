"""Serving on a GPU: graphs that are replayed, side streams, shared plans, threads, devices, forks, compilers.

Bits are held against the same call outside of what is tested, and now and then against the torch reference.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from harness.paths import CHECKOUT
from harness.workspaces import load_module
from kernwright.generated import dispatch
from kernwright.runtime import watch
from kernwright.runtime.device import current
from kernwright.runtime.launch import LaunchSequence
from kernwright.table import Kernel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

POISON = 0x7E5A
"""A NaN of FP16 whose bits no kernel stores."""
HC, H, R, ROWS = 4, 2560, 320, 336
ARGUMENTS = ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight")
op = dispatch.hyper_connection


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    dispatch.warm_up(workloads=["qwen38_flash_tp1"])


def tensors(seed: int = 0, device: str = "cuda") -> list[torch.Tensor]:
    """Arguments of a boundary of the library's workload; made on the CPU, so that every device gets the same."""
    generator = torch.Generator().manual_seed(seed)

    def made(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(torch.float16).to(device)

    activations = [made(1, HC * H), made(1, H), made(1, HC)]
    return [
        *activations,
        made(HC * H, scale=0.1),
        made(ROWS, HC * H, scale=0.01),
        made(HC * H, R, scale=0.05),
    ]


def poison(results: Any) -> None:
    for tensor in results:
        tensor.view(torch.int16).fill_(POISON)


def same(found: Any, expected: Any) -> bool:
    return all(
        torch.equal(one.view(torch.int16), other.view(torch.int16))
        for one, other in zip(found, expected, strict=True)
    )


def change(inputs: list[torch.Tensor], turn: int) -> None:
    """Other activations, made on the device."""
    for place, tensor in enumerate(inputs[:3]):
        tensor.copy_(torch.roll(tensor, 1 + place, dims=1))
        tensor.view(torch.int16).bitwise_xor_(turn & 7)


def captured(call: Any, *, stream: torch.cuda.Stream | None = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture a call on a stream of its own, on which it ran before: kernels may keep state for every stream."""
    graph, stream = torch.cuda.CUDAGraph(), stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        results = call()
    return graph, results


@pytest.mark.parametrize("way", ["op", "plan", "operator"])
def test_a_thousand_replays_with_changed_inputs(way: str) -> None:
    inputs = tensors()
    plan = op.plan(*inputs)
    operator = dispatch.torch_ops().hyper_connection_boundary.default
    call = {"op": lambda: op(*inputs), "plan": lambda: plan(*inputs), "operator": lambda: operator(*inputs)}[
        way
    ]
    call()
    graph, results = captured(call)
    assert plan.plan is not None
    for turn in range(1000):
        change(inputs, turn)
        poison(results)
        graph.replay()
        assert same(results, plan(*inputs)), f"replay {turn}"
        if turn % 100 == 0:
            assert same(results, op(*inputs, policy="reference")), f"replay {turn}"


def test_a_chain_in_one_graph_writes_into_given_tensors() -> None:
    layers = [tensors(seed) for seed in range(4)]
    outs = [op(*layer) for layer in layers]
    plans = [op.plan(*layer) for layer in layers]

    def run() -> None:
        for layer, out, plan in zip(layers, outs, plans, strict=True):
            plan(*layer, out=out)

    graph, _ = captured(run)
    for turn in range(50):
        for layer in layers:
            change(layer, turn)
        for out in outs:
            poison(out)
        graph.replay()
        for layer, out in zip(layers, outs, strict=True):
            assert same(out, op(*layer)), f"replay {turn}"


def test_capture_on_a_side_stream_and_replay_on_another() -> None:
    inputs = tensors(1)
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    graph, results = captured(lambda: op(*inputs), stream=side)
    for turn in range(50):
        change(inputs, turn)
        poison(results)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(100_000)
            graph.replay()
        torch.cuda.current_stream().wait_stream(other)
        assert same(results, op(*inputs)), f"replay {turn}"


def test_two_graphs_that_share_a_plan_run_at_once() -> None:
    """Scratch is each graph's own: a plan that kept its scratch would mix them up here.

    The control, because kernels whose CTAs wait for each other may not find room on a GPU that others use, too.
    """
    first, second = tensors(2), tensors(3)
    plan = op.plan(*first, policy="control")
    graphs = [captured(lambda given=given: plan(*given)) for given in (first, second)]
    expected = [op(*first), op(*second)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for turn in range(200):
        for _, results in graphs:
            poison(results)
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(5):
                    graph.replay()
        third = plan(*first)  # eagerly, between the two
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        assert same(third, expected[0]), f"turn {turn}"
        for (_, results), wanted in zip(graphs, expected, strict=True):
            assert same(results, wanted), f"turn {turn}"


def test_a_cold_call_in_a_capture_leaves_the_process_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernwright.families.hyper_connection.op import HyperConnection
    from kernwright.runtime import NotWarm, bind, loader

    inputs = tensors(4)
    expected = op(*inputs)
    monkeypatch.setattr(loader, "_modules", {})
    cold = HyperConnection(bind(dispatch.TABLE))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(NotWarm, match="warm_up"), torch.cuda.graph(graph):
        cold(*inputs)
    torch.cuda.synchronize()
    assert same(cold(*inputs), expected)
    graph, results = captured(lambda: cold(*inputs))
    poison(results)
    graph.replay()
    assert same(results, expected)


def test_a_warm_process_compiles_loads_and_allocates_nothing() -> None:
    inputs = tensors(5)
    out = op(*inputs)
    plan = op.plan(*inputs)
    operator = dispatch.torch_ops().hyper_connection_boundary
    operator.out(*inputs, x=out[0], block_input=out[1], injection_out=out[2])
    torch.cuda.synchronize()
    with watch() as events:
        for _ in range(500):
            plan(*inputs, out=out)
            op(*inputs, out=out)
            operator.out(*inputs, x=out[0], block_input=out[1], injection_out=out[2])
            op(*inputs)
    assert events == []


def test_thirty_two_threads_on_streams_of_their_own() -> None:
    """By the control, which waits for nobody: thirty-two kernels share the GPU here."""
    given = [tensors(100 + number) for number in range(32)]
    expected = [op(*inputs) for inputs in given]
    torch.cuda.synchronize()
    plan = op.plan(*given[0], policy="control")
    ways = (lambda *inputs: op(*inputs, policy="control"), plan)
    barrier = threading.Barrier(32)
    wrong: list[object] = []

    def serve(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            barrier.wait()
            with torch.cuda.stream(stream):
                for turn in range(60):
                    results = ways[turn % 2](*given[number])
                    if not same(results, expected[number]):
                        wrong.append((number, turn))
            stream.synchronize()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_that_made_no_cuda_call_before() -> None:
    inputs = tensors(6)
    expected, plan = op(*inputs), op.plan(*inputs)
    torch.cuda.synchronize()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(plan(*inputs)))
    thread.start()
    thread.join()
    assert same(results[0], expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current_one() -> None:
    here, there = tensors(7), tensors(7, "cuda:1")
    assert torch.cuda.current_device() == 0
    expected = op(*here)
    for results in (
        op(*there),
        op.plan(*there)(*there),
        dispatch.torch_ops().hyper_connection_boundary(*there),
    ):
        assert {tensor.get_device() for tensor in results} == {1}
        assert same([tensor.cpu() for tensor in results], [tensor.cpu() for tensor in expected])
    assert torch.cuda.current_device() == 0


FORKED = """
import os, torch
from kernwright.generated import dispatch
fp16 = lambda *shape: torch.zeros(*shape, dtype=torch.float16, device="cuda")
given = [fp16(1, 10240), fp16(1, 2560), fp16(1, 4), fp16(10240), fp16(336, 10240), fp16(10240, 320)]
dispatch.hyper_connection(*given)
child = os.fork()
if child == 0:
    try:
        dispatch.hyper_connection(*given)
    except RuntimeError as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(len(dispatch.hyper_connection(*given)), flush=True)
"""


def test_a_forked_child_gets_a_sentence() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    said, parent = ran.stdout.splitlines()
    assert said.startswith("ForkedProcess this process was forked from one that had kernels loaded")
    assert parent == "3"


CLEAR = """
extern "C" __global__ void add_one(float* x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  x[threadIdx.x] += 1.0f;
}
"""


def test_programmatic_launches_eagerly_and_captured() -> None:
    """Through `cuLaunchKernelEx`; a kernel that waits for the one in front of it counts right."""
    from kernwright.compiler.compile import compile_source
    from kernwright.runtime import loader
    from kernwright.table import Build

    device = current(torch.device("cuda", 0))
    if int(str(device.arch)[3:]) < 90:
        pytest.skip("programmatic dependent launch is for sm_90 and newer")
    artifact = compile_source(CLEAR, file_name="add_one.cu", arch=str(device.arch))
    module = loader._load_module(artifact.data, Build("0" * 64, "add_one.cu", artifact.source_sha256), device)
    kernel = Kernel((1, 1, 1), (128, 1, 1), ("x",), programmatic=True, symbol="add_one")
    sequence = LaunchSequence(module, [kernel] * 3, ("x",))
    x = torch.zeros(128, device="cuda")

    def run() -> None:
        sequence((x.data_ptr(),), torch.cuda.current_stream().cuda_stream)

    for _ in range(100):
        run()
    assert torch.equal(x, torch.full_like(x, 300.0))
    graph, _ = captured(run)
    x.zero_()
    for _ in range(100):
        graph.replay()
    assert torch.equal(x, torch.full_like(x, 300.0))


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_torchs_own_checks_pass(kind: str) -> None:
    inputs = tensors(8)
    if kind == "first":
        inputs = [inputs[0], *inputs[3:]]
    elif kind == "combine":
        inputs = inputs[:3]
    elif kind == "final":
        inputs[4] = inputs[4][:R].contiguous()
    branches = {"branches": HC} if kind == "first" else {}
    packet = getattr(dispatch.torch_ops(), f"hyper_connection_{kind}")
    assert set(torch.library.opcheck(packet.default, tuple(inputs), branches).values()) == {"SUCCESS"}
    results = packet(*inputs, **branches)
    results = [results] if isinstance(results, torch.Tensor) else results
    names = {
        "boundary": ("x", "block_input", "injection_out"),
        "first": ("block_input", "injection_out"),
        "combine": ("x",),
        "final": ("block_input",),
    }[kind]
    out = {name: torch.empty_like(result) for name, result in zip(names, results, strict=True)}
    assert set(torch.library.opcheck(packet.out, tuple(inputs), branches | out).values()) == {"SUCCESS"}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_steps(mode: str | None) -> None:
    """Also inside CUDA graphs that torch's compiler captures itself."""
    torch._dynamo.reset()
    inputs = tensors(9)

    def step(*given: torch.Tensor) -> Any:
        x, block_input, injection = op(*given)
        return x + 0, block_input + 0, injection + 0

    compiled = torch.compile(step, fullgraph=True, mode=mode)
    before = sum(dispatch.stats().fallbacks.values())
    with torch.inference_mode():
        for turn in range(20):
            change(inputs, turn)
            results = [tensor.clone() for tensor in compiled(*inputs)]
            assert same(results, step(*inputs)), f"turn {turn}"
    assert sum(dispatch.stats().fallbacks.values()) == before


@pytest.fixture
def decoder() -> Iterator[ModuleType]:
    path = CHECKOUT / "examples" / "decoder.py"
    yield load_module("decoder", path)
    del sys.modules["decoder"]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_example_decoder(decoder: ModuleType, compiled: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = decoder.Decoder(vocabulary=64, layers=2, hidden=H, rank=R).to("cuda", torch.float16).eval()
    kinds = [boundary.kind for boundary in model.boundaries]
    run = torch.compile(model, fullgraph=True, dynamic=True) if compiled else model
    tokens, caches = torch.tensor([1], device="cuda"), None
    before = dispatch.stats()
    with torch.inference_mode():
        for _ in range(4):
            logits, caches, trace = run(tokens, caches)
            tokens = logits[-1:].argmax(-1)
            assert decoder.replays(trace, kinds) == 12
    served = sum(dispatch.stats().dispatches.values()) - sum(before.dispatches.values())
    assert served == 4 * 5 * 2  # every boundary of the decoder and of the comparison, by kernels


def test_ranges_reach_a_profiler() -> None:
    code = (
        "import torch\n"
        "from kernwright.generated import dispatch\n"
        "x = torch.zeros(1, 10240, dtype=torch.float16, device='cuda')\n"
        "given = (x, x[:, :2560].clone(), x[:, :4].clone(), None, None, None)\n"
        "plan = dispatch.hyper_connection.plan(*given, kind='combine')\n"
        "plan(*given)\n"
        "torch.cuda.synchronize()\n"
        "print(plan.serve is plan.plan.serve)"
    )
    environment = {"KERNWRIGHT_NVTX": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "False\n"), ran.stderr
