"""What one call costs the CPU, from Python to the last launch; a JSON file of the figures if a name is given.

On a GPU: our plan, our operator of torch and our op (three kernels a call), a plan of one kernel, and beside them,
interleaved in the same process, what others cost: CuPy's RawKernel, a Triton launch, `torch.add_`, an operator of
torch that does nothing. Only the host's time is measured: the kernels are short and the queue is emptied between
batches, so that no launch waits for room. "Changing": no call has the addresses of the one before, as in a model
whose layers share a plan; all others repeat a call.

Without a GPU the same Python runs with launches that do nothing, and the output says so; such figures compare
versions of this toolkit with each other, and nothing else.

    python benchmarks/call_cost.py [--batches 200] [--profile] [figures.json]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from _call_cost_graph import graph_launches
from kernwright.generated import dispatch
from kernwright.runtime import Device, loader, plan
from kernwright.runtime import dispatch as dispatching
from kernwright.runtime import op as op_base
from kernwright.runtime.device import current
from kernwright.runtime.launch import LaunchSequence
from kernwright.table import Kernel

BRANCHES, HIDDEN, RANK, ROWS = 4, 2560, 320, 336
CALLS = 50
"""In a batch: few enough for the driver's queue of about a thousand launches."""

Calls = Mapping[str, Callable[[], object]]

ADD = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }'


def tensors(device: str) -> list[torch.Tensor]:
    """Arguments of a boundary of the library's HC4 x H2560 workload."""

    def made(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) * 0.02).to(device, torch.float16)

    state = BRANCHES * HIDDEN
    activations = (made(1, state), made(1, HIDDEN), made(1, BRANCHES))
    return [*activations, made(state), made(ROWS, state), made(state, RANK)]


class Nothing:
    """Stands for loaded machine code."""

    def launcher(self, _kernel: Kernel) -> Callable[[int, int, int], None]:
        """A launcher that launches nothing."""
        return lambda _stream, _parameters, _extra: None


def pretend_a_gpu() -> None:
    """CPU tensors count as an H200's from now on, and launching does nothing."""
    device = Device("sm_90", 132, "NVIDIA H200", 0)
    replaced: Any = op_base
    replaced.current = lambda _: device
    replaced = dispatching
    replaced.load = lambda *_: Nothing()
    replaced = plan
    # Builtin functions, as torch's own are; one of several devices, which has to be asked for.
    replaced.stream_query = lambda: {0: 0}.__getitem__
    replaced.device_query = lambda: int


def ours(device: str) -> dict[str, Callable[[], object]]:
    """Our ways to call a boundary."""
    arguments = tensors(device)
    op, operator = dispatch.hyper_connection, dispatch.torch_ops().hyper_connection_boundary.default
    boundary, dispatched = op.plan(*arguments), op.plan(*arguments, policy="measured")
    launched = 0 if dispatched.plan is None else len(dispatched.plan.candidate.steps["boundary"])
    combining = (*arguments[:3], None, None, None)
    combine = op.plan(*combining, kind="combine")
    out, x = boundary(*arguments), combine(*combining)
    boundary_serve, combine_serve = boundary.serve, combine.serve
    combined, written = combining[:3], x[:1]
    changing, changing_combined = in_turn(arguments), in_turn(list(combined))
    assert boundary.plan is not None, "torch serves the boundary here: see dispatch.explain(...)"
    found: dict[str, Callable[[], object]] = {}
    if device == "cuda":  # a candidate that keeps state makes it on a GPU
        found[f"as dispatched, {launched} kernels, out="] = lambda: dispatched(*arguments, out=out)
    return found | {
        "plan, 3 kernels": lambda: boundary(*arguments),
        "plan, 3 kernels, out=": lambda: boundary(*arguments, out=out),
        "plan, 1 kernel": lambda: combine(*combining),
        "plan, 1 kernel, out=": lambda: combine(*combining, out=x),
        "serve, 3 kernels, out=": lambda: boundary_serve(arguments, out),
        "serve, 1 kernel, out=": lambda: combine_serve(combined, written),
        "serve, 3 kernels, out=, changing": lambda: boundary_serve(next(changing), out),
        "serve, 1 kernel, out=, changing": lambda: combine_serve(next(changing_combined), written),
        "op": lambda: op(*arguments),
        "op, out=": lambda: op(*arguments, out=out),
        "torch.ops.kernwright": lambda: operator(*arguments),
    }


def in_turn(arguments: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The arguments and copies of them, by turns: no call has the addresses of the one before."""
    return cycle((arguments, [tensor.clone() for tensor in arguments]))


def launchers() -> dict[str, Callable[[], object]]:
    """The launching alone, by CuPy's driver module and by `cuLaunchKernelEx`, three times the same small kernel."""
    arguments = tensors("cuda")
    combining = (*arguments[:3], None, None, None)
    combine = dispatch.hyper_connection.plan(*combining, kind="combine")
    chosen = combine.selection.chosen if combine.selection else None
    assert chosen is not None
    kernel = chosen.candidate.kernels[chosen.candidate.steps["combine"][0]]
    module = loader.load(dispatch.TABLE.root, chosen.build, chosen.arch, current(torch.device("cuda", 0)))
    x = combine(*combining)[0]
    keep.extend((*arguments, x))
    named = dict(zip(("residual", "block", "injection", "x"), (*arguments[:3], x), strict=True))
    pointers = [named[name].data_ptr() for name in kernel.args]
    stream = torch.cuda.current_stream().cuda_stream
    found: dict[str, Callable[[], object]] = {}
    for name, programmatic in (("launchKernel x 3", False), ("cuLaunchKernelEx x 3", True)):
        sequence = LaunchSequence(module, [replace(kernel, programmatic=programmatic)] * 3, kernel.args)
        found[name] = lambda sequence=sequence: sequence(pointers, stream)
        if not programmatic:
            found |= graph_launches(sequence, pointers, stream, keep)
    return found | same_kernel_by_cupy(kernel, chosen.build.source, [named[name] for name in kernel.args])


def same_kernel_by_cupy(
    kernel: Kernel, source: str, given: list[torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """Our kernel of one launch by CuPy's RawKernel: with CuPy arrays made once, and from torch tensors."""
    import cupy
    from kernwright.compiler.nvrtc import FLAGS

    text = (dispatch.TABLE.root / source).read_text(encoding="utf-8")
    options = tuple(flag for flag in FLAGS if "ptxas" not in flag)
    raw = cupy.RawModule(code=text, options=options).get_function(kernel.symbol)
    use_torchs_stream()
    arrays = tuple(cupy.from_dlpack(tensor) for tensor in given)
    others = tuple(array.copy() for array in arrays)
    keep.append((arrays, others))
    grid, block, changing = kernel.grid, kernel.block, cycle((arrays, others))
    return {
        "CuPy RawKernel, the same kernel": lambda: raw(grid, block, arrays),
        "CuPy RawKernel, changing": lambda: raw(grid, block, next(changing)),
        "the same, of torch tensors": lambda: raw(grid, block, tuple([t.data_ptr() for t in given])),
    }


def others(device: str) -> dict[str, Callable[[], object]]:
    """What torch itself costs, and launchers of others that are installed here."""
    library: Any = torch.library.Library("kernwright_call_cost", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("nothing(Tensor x) -> ()")
    library.impl("nothing", lambda _: None, "CPU")
    library.impl("nothing", lambda _: None, "CUDA")
    keep.append(library)
    nothing = torch.ops.kernwright_call_cost.nothing.default
    one = torch.zeros(128, device=device)
    found: dict[str, Callable[[], object]] = {
        "Library no-op": lambda: nothing(one),
        "torch.add_": lambda: one.add_(1.0),
    }
    if device == "cuda":
        found |= launchers() | cupy_launch(one) | triton_launch(one)
    return found


keep: list[object] = []
"""Owners of what the calls use."""


def cupy_launch(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """CuPy's RawKernel, as its manual calls it, on torch's stream."""
    import cupy

    kernel = cupy.RawKernel(ADD, "add_one")
    array = cupy.from_dlpack(x)
    use_torchs_stream()
    return {"CuPy RawKernel, one argument": lambda: kernel((1,), (128,), (array,))}


def use_torchs_stream() -> None:
    """CuPy launches on torch's current stream from now on."""
    import cupy

    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    stream.use()
    keep.append(stream)


def triton_launch(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Triton's launcher, where Triton is installed."""
    try:
        from _call_cost_triton import add_one
    except ImportError:
        return {}
    return {"Triton, 1 kernel": lambda: add_one[(1,)](x, SIZE=128)}


def measure(calls: Calls, batches: int, settle: Callable[[], None]) -> dict[str, list[float]]:
    """Microseconds of a call, one figure a batch; the ways take turns, forwards and backwards."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(CALLS):
            call()
        settle()
    for batch in range(batches):
        for name in list(calls) if batch % 2 else reversed(list(calls)):
            call = calls[name]
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
            settle()
    return times


def profile(name: str, call: Callable[[], object], settle: Callable[[], None]) -> None:
    """Where a call's time goes, by function."""
    profiler = cProfile.Profile()
    for _ in range(200):
        profiler.enable()
        for _ in range(CALLS):
            call()
        profiler.disable()
        settle()
    print(f"\n{name}, {200 * CALLS} calls")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument("--batches", type=int, default=200, help=f"batches of {CALLS} calls")
    parser.add_argument(
        "--profile", action="store_true", help="also profile the plan, the op and the operator"
    )
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    settle = torch.cuda.synchronize if on_gpu else lambda: None
    if not on_gpu:
        pretend_a_gpu()
    with torch.inference_mode(), dispatch.policy("control"):  # three kernels, whatever was measured
        calls = ours(device) | others(device)
        times = measure(calls, options.batches, settle)
        where = torch.cuda.get_device_name() if on_gpu else "no GPU: launches are pretended and cost nothing"
        print(
            f"microseconds a call on the host ({where}); median of {options.batches} batches, and the least"
        )
        for name, found in times.items():
            print(f"  {name:28s} {statistics.median(found):7.2f} {min(found):7.2f}")
        if options.profile:
            for name in ("plan, 3 kernels", "op", "torch.ops.kernwright"):
                profile(name, calls[name], settle)
    if options.figures:
        figures = {
            name: {"median_us": statistics.median(found), "least_us": min(found)}
            for name, found in times.items()
        }
        document = {"device": where, "torch": torch.__version__, "batches": options.batches, "calls": figures}
        options.figures.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
