"""A foreign kernel between boundaries: it takes so many microseconds, and writes its own buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy
import torch
from kernwright.compiler.compile import compile_source
from kernwright.evidence.graphs import capture, replay_ms
from kernwright.families.hyper_connection.neighbours import share_sm
from kernwright.runtime.current import current_stream
from kernwright.runtime.device import Device
from kernwright.runtime.launch import CudaModule, LaunchSequence
from kernwright.table import Kernel

CTAS, THREADS = 132, 256
"""As an attention kernel of one token might have it."""
CALLS = 96
MICROSECONDS = 5.0
CLOCK_GHZ = 1.7
"""A first guess, which calibration corrects."""

SOURCE = """
__device__ __forceinline__ void work(float* buffer, unsigned long long cycles) {
  const long long began = clock64();
  while (clock64() - began < static_cast<long long>(cycles)) {
  }
  buffer[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<float>(threadIdx.x);
}
extern "C" __global__ void ordinary(float* buffer, unsigned long long cycles) { work(buffer, cycles); }

// The kernel behind may begin at once.
extern "C" __global__ void early(float* buffer, unsigned long long cycles) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  work(buffer, cycles);
}
extern "C" __global__ void early_carveout(float* buffer, unsigned long long cycles) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  work(buffer, cycles);
}

// It is launched programmatically itself, so it waits, too.
extern "C" __global__ void chained(float* buffer, unsigned long long cycles) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  work(buffer, cycles);
}
"""

KINDS = ("ordinary", "early", "early_carveout", "chained")


@dataclass(frozen=True)
class Foreign:
    """The kernel in all its kinds, loaded on a device."""

    module: Any
    here: Device
    buffer: torch.Tensor
    cycles: int

    @classmethod
    def load(cls, here: Device) -> Foreign:
        """Compile, load, and find how many cycles make a graph of them take so many microseconds each."""
        assert here.arch is not None
        assert here.index is not None
        artifact = compile_source(SOURCE, file_name="foreign.cu", arch=here.arch)
        module = cupy.cuda.function.Module()
        with cupy.cuda.Device(here.index):
            module.load(artifact.data)
            for kind in ("early_carveout", "chained"):
                share_sm(module.get_function(kind))
        buffer = torch.zeros(CTAS * THREADS, device=f"cuda:{here.index}")
        cycles = round(MICROSECONDS * CLOCK_GHZ * 1000)
        for _ in range(3):
            took = 1000 * alone_ms(cls(module, here, buffer, cycles), "ordinary") / CALLS
            cycles = max(100, round(cycles + (MICROSECONDS - took) * CLOCK_GHZ * 1000))
        return cls(module, here, buffer, cycles)

    def launcher(self, kind: str) -> Any:
        """A function that launches it on torch's current stream."""
        kernel = Kernel(
            (CTAS, 1, 1), (THREADS, 1, 1), ("buffer", "cycles"), programmatic=kind == "chained", symbol=kind
        )
        launch = LaunchSequence(
            CudaModule(self.module, self.here.sm_count),
            [kernel],
            ["buffer"],
            {"cycles": self.cycles.to_bytes(8, "little")},
        )
        assert self.here.index is not None
        index, pointers = self.here.index, [self.buffer.data_ptr()]
        return lambda: launch(pointers, current_stream(index))


def alone_ms(foreign: Foreign, kind: str) -> float:
    """Milliseconds of a graph of nothing but them."""
    launch = foreign.launcher(kind)

    def run() -> None:
        for _ in range(CALLS):
            launch()

    graph = capture(run)
    replay_ms(graph, 20)
    return replay_ms(graph, 20)
