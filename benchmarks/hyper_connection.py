"""96 hyper-connection boundaries with distinct weights on one GPU: distance from the truth, and time.

`python benchmarks/hyper_connection.py OUT.json` checks every contestant before it is timed, then times all of them
in one run, with the read floor: the same bytes, merely read.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import cupy
import torch
from kernwright.evidence.chain import layer_weights
from kernwright.evidence.oracle import Shape, tensors
from kernwright.evidence.oracle.truth import boundary as truth
from kernwright.evidence.oracle.truth import relative_l2
from kernwright.generated.dispatch import DISPATCH
from kernwright.runtime.device import current, serves
from measure import Timing, capture, paired, replay_time
from peers import TRITON_TILES, Boundary, compiled, eager, triton_boundary

LAYERS = 96
OUTPUTS = ("x", "block_input", "injection_out")

READ = r"""
extern "C" __global__ void read_all(const uint4* data, size_t words, unsigned int* sink) {
  unsigned int seen = 0;
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < words; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride);
    const uint4 c = __ldcs(data + i + 2 * stride), d = __ldcs(data + i + 3 * stride);
    seen ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < words; i += stride) { const uint4 a = __ldcs(data + i); seen ^= a.x ^ a.y ^ a.z ^ a.w; }
  if (seen == 0x9e3779b9u) *sink = seen;
}
"""


def as_torch(bits, dtype: str) -> torch.Tensor:
    """The same memory as a torch tensor."""
    return torch.from_dlpack(bits.view("int16")).view(getattr(torch, dtype))


class Model:
    """The weights of all layers, in one allocation each, and the first layer's inputs."""

    def __init__(self, work) -> None:
        names = ("dtype", "branches", "hidden", "low_rank", "eps", "norm_weight")
        self.shape = Shape(tokens=1, trees=work.trees, **{name: work.fields[name] for name in names})
        self.weights = []
        for layer in range(LAYERS):
            bits = layer_weights(self.shape, 500 + layer, cupy)
            self.weights.append({name: as_torch(value, self.shape.dtype) for name, value in bits.items()})
        bits = tensors(self.shape, "normal", 7, cupy)
        self.first = {
            name: as_torch(bits[name], self.shape.dtype) for name in ("residual", "block", "injection")
        }

    def run(self, boundary: Boundary) -> list[tuple[torch.Tensor, ...]]:
        """The chain: x is the next residual, block_input the next block, injection_out the next injection."""
        results = []
        state, block, injection = self.first.values()
        for weights in self.weights:
            state, block, injection = boundary(state, block, injection, *weights.values())
            results.append((state, block, injection))
        return results


def ours(label: str, candidate: str, arch: str, device) -> Boundary:
    """A candidate's plan as a boundary."""
    plan = DISPATCH.plan_for(label, candidate, arch, "boundary", device)
    return lambda *arguments: tuple(plan(arguments))


def contestants(work, device) -> dict[str, Boundary]:
    """Everything that is compared: peers, then our candidates."""
    arch = serves(work.control.builds, device.arch)
    return {
        "torch eager": eager,
        "torch.compile": compiled,
        "triton": triton_boundary(2, 1024, 8, 4),
        **{entry.name: ours(work.label, entry.name, arch, device) for entry in work.candidates},
    }


def distances(
    model: Model, found: dict[str, Boundary], control: str
) -> dict[str, dict[str, dict[str, float]]]:
    """Relative L2 from the unrounded FP64 function, a boundary at a time on equal inputs: median and worst."""
    inputs = [tuple(model.first.values()), *model.run(found[control])[:-1]]
    measured: dict[str, dict[str, list[float]]] = {name: {out: [] for out in OUTPUTS} for name in found}
    for arguments, weights in zip(inputs, model.weights, strict=True):
        given = dict(zip(("residual", "block", "injection"), arguments, strict=True)) | weights
        wanted = truth(model.shape, given, rounded=False)
        for name, boundary in found.items():
            for out, tensor in zip(OUTPUTS, boundary(*arguments, *weights.values()), strict=True):
                measured[name][out].append(relative_l2(tensor, wanted[out]))
    return {
        name: {
            out: {"median": statistics.median(values), "mean": statistics.mean(values), "max": max(values)}
            for out, values in by_output.items()
        }
        for name, by_output in measured.items()
    }


def best_triton(model: Model) -> tuple[tuple[int, ...], Boundary]:
    """The fastest of the tile sizes on this machine."""
    timed = []
    for tiles in TRITON_TILES:
        boundary = triton_boundary(*tiles)
        graph = capture(lambda boundary=boundary: model.run(boundary))
        timed.append((replay_time(graph, 5), tiles))
        del graph
    tiles = min(timed)[1]
    return tiles, triton_boundary(*tiles)


def read_floor(model: Model) -> torch.cuda.CUDAGraph:
    """A graph that merely reads the weights' used rows, layer by layer."""
    kernel = cupy.RawKernel(READ, "read_all")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    rows = model.shape.low_rank + model.shape.branches
    flat = torch.cat(
        [weights["down_weight"][:rows].flatten() for weights in model.weights]
        + [weights["up_weight"].flatten() for weights in model.weights]
    )
    words = flat.numel() * 2 // 16

    def run() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((132 * 8,), (512,), (flat.data_ptr(), words, sink.data_ptr()))

    run.flat = flat  # type: ignore[attr-defined]  # the graph reads it: it lives as long as the function
    return run


def benchmark(work, device) -> dict[str, object]:
    """All figures of one workload."""
    model = Model(work)
    found = contestants(work, device)
    control = work.control.name
    report: dict[str, object] = {"workload": work.label, "layers": LAYERS}
    tiles, found["triton"] = best_triton(model)
    report["triton_tiles"] = dict(zip(("rows", "block", "columns", "warps"), tiles, strict=True))
    report["relative_l2"] = distances(model, found, control)
    reference = model.run(found[control])
    for entry in work.candidates:
        for layer, (ours_, theirs) in enumerate(zip(model.run(found[entry.name]), reference, strict=True)):
            same = all(
                torch.equal(a.view(torch.int16), b.view(torch.int16))
                for a, b in zip(ours_, theirs, strict=True)
            )
            assert same, f"{entry.name} differs from {control} in layer {layer}"
    graphs = {
        name: capture(lambda boundary=boundary: model.run(boundary)) for name, boundary in found.items()
    }
    floor = read_floor(model)
    graphs["read floor"] = capture(floor)
    timings = paired(graphs)
    bytes_read = floor.flat.numel() * 2  # type: ignore[attr-defined]
    report["read_bytes"] = bytes_read
    report["read_TB_per_s"] = bytes_read / timings["read floor"].median / 1e9
    report["chain"] = {name: timing.to_json() for name, timing in timings.items()}
    _print(report, timings)
    return report


def _print(report: dict[str, object], timings: dict[str, Timing]) -> None:
    floor = timings["read floor"].median
    print(f"\n{report['workload']}: {LAYERS} boundaries, distinct weights, CUDA graph, scope chain")
    distance = report["relative_l2"]
    for name, timing in sorted(timings.items(), key=lambda item: item[1].median):
        error = distance.get(name, {}).get("block_input", {}).get("mean")  # type: ignore[attr-defined]
        print(
            f"  {name:14s} {timing.median:7.3f} ms  spread {timing.spread:5.1%}  {timing.median / floor:5.2f} x floor"
            + (f"  mean relative L2 of block_input {error:.3e}" if error is not None else "")
        )


def main() -> None:
    """Measure both dtypes of the library's workload and write one JSON file."""
    device = current(torch.device("cuda", 0))
    reports = [
        benchmark(work, device) for work in DISPATCH.table.workloads if work.spec == "qwen38_flash_tp1"
    ]
    document = {
        "scope": "chain",
        "device": {"name": device.name, "arch": device.arch, "sm_count": device.sm_count},
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "reports": reports,
    }
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "figures/hyper_connection.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
