"""What a CUDA graph of a boundary's kernels costs the host to launch: as captured, and with new arguments set.

A captured graph takes one call of the driver for all its kernels, but its arguments are in it: an eager call, whose
tensors may lie elsewhere each time, has to set them anew, kernel by kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from kernwright.runtime.extended_launch import driver, error_name
from kernwright.runtime.graph_launch import KernelNode
from kernwright.runtime.launch import LaunchSequence


def graph_launches(
    sequence: LaunchSequence, pointers: Sequence[int], stream: int, keep: list[object]
) -> dict[str, Callable[[], object]]:
    """The two launches by the driver alone, of what `sequence` launches."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        sequence(pointers, torch.cuda.current_stream().cuda_stream)
    graph.instantiate()
    captured, ready = graph.raw_cuda_graph(), ctypes.c_void_p(graph.raw_cuda_graph_exec())
    library, count = driver(), ctypes.c_size_t(len(sequence.frames[-1].launches))
    nodes = (ctypes.c_void_p * count.value)()
    checked(library.cuGraphGetNodes(ctypes.c_void_p(captured), nodes, ctypes.byref(count)))
    params = [KernelNode() for _ in nodes]
    for node, found in zip(nodes, params, strict=True):
        checked(library.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(found)))
    # Addresses as plain numbers, so that a call converts nothing.
    launch, update = library["cuGraphLaunch"], library["cuGraphExecKernelNodeSetParams_v2"]
    for function in (launch, update):
        function.argtypes = (ctypes.c_void_p,) * (2 if function is launch else 3)
    changes = [(node, ctypes.addressof(found)) for node, found in zip(nodes, params, strict=True)]
    keep.extend((graph, nodes, params, sequence))

    def as_captured() -> int:
        status: int = launch(ready, stream)
        return status

    def set_anew() -> int:
        for node, found in changes:
            update(ready, node, found)
        status: int = launch(ready, stream)
        return status

    for node, found in changes:
        checked(update(ready, node, found))
    for call in (as_captured, set_anew):
        checked(call())
    torch.cuda.synchronize()
    return {
        f"cuGraphLaunch of {count.value}": as_captured,
        f"cuGraphLaunch of {count.value}, arguments set": set_anew,
    }


def checked(status: int) -> None:
    """Raise for what the driver refuses."""
    if status:
        raise RuntimeError(
            f"the driver refuses a graph's launch or a question about it: {error_name(status)}"
        )
