"""What vLLM, SGLang and their forks hold, in the terms of this runtime; told apart by attributes, imports neither.

comm = dispatch.communicator(process_group(get_tp_group()))
dispatch.warm_up(tokens=capture_sizes(vllm_config), comm=comm)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

GROUP_ATTRIBUTES = ("device_group", "process_group")
"""Where a coordinator of ranks keeps its `torch.distributed` group; vLLM's and SGLang's have the first."""

SIZE_PATHS = (
    ("compilation_config", "cudagraph_capture_sizes"),  # vLLM's VllmConfig
    ("cudagraph_capture_sizes",),  # its CompilationConfig
    ("cuda_graph_bs",),  # SGLang's ServerArgs
    ("capture_bs",),  # its CudaGraphRunner
    ("graph_runner", "capture_bs"),  # its ModelRunner
)
"""Where engines keep the batch sizes that they capture CUDA graphs for."""


def process_group(group: Any) -> Any:
    """The `torch.distributed` process group of an engine's tensor-parallel group.

    Args:
        group: a coordinator of vLLM or SGLang, a process group, or None for the default group.

    Raises:
        TypeError: it is none of those.
    """
    if group is None or _is_process_group(group):
        return group
    for name in GROUP_ATTRIBUTES:
        found = getattr(group, name, None)
        if found is not None and _is_process_group(found):
            return found
    raise TypeError(
        f"a {type(group).__name__} isn't known as a tensor-parallel group: it has neither rank() and size() nor "
        f"{' nor '.join(GROUP_ATTRIBUTES)}; pass the torch.distributed process group itself"
    )


def _is_process_group(group: Any) -> bool:
    return callable(getattr(group, "rank", None)) and callable(getattr(group, "size", None))


def capture_sizes(source: Any) -> tuple[int, ...]:
    """The numbers of tokens that an engine captures decode graphs for, without repetition, from the smallest.

    Args:
        source: a list of numbers, or what an engine keeps one in: vLLM's VllmConfig or CompilationConfig, SGLang's
            ServerArgs, CudaGraphRunner or ModelRunner.

    Raises:
        TypeError: it has no such list.
        ValueError: a size isn't a number above 0.
    """
    held = (_at(source, path) for path in SIZE_PATHS)
    sizes = source if _is_list(source) else next((found for found in held if found), None)
    if sizes is None:
        raise TypeError(
            f"a {type(source).__name__} has no list of capture sizes that is known here (or it isn't filled in yet); "
            "pass the list itself"
        )
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"a capture size is {size!r}; it must be a number of tokens of at least 1")
    return tuple(sorted(set(sizes)))


def _is_list(source: Any) -> bool:
    return isinstance(source, Iterable) and not isinstance(source, str | bytes | dict)


def _at(source: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        source = getattr(source, name, None)
    return list(source) if _is_list(source) else None
