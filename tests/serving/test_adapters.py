"""What engines hold, in our terms: by attributes, as vLLM and SGLang name them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kernwright.runtime import Device
from kernwright.runtime.adapters import capture_sizes, process_group


class Group:
    """As a torch.distributed process group looks."""

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 4


def test_the_group_of_a_coordinator() -> None:
    group = Group()
    coordinator = SimpleNamespace(
        rank=5, world_size=4, rank_in_group=1, cpu_group=object(), device_group=group
    )
    assert process_group(coordinator) is group
    assert process_group(group) is group
    assert process_group(None) is None
    assert process_group(SimpleNamespace(device_group=None, process_group=group)) is group


def test_a_real_process_group_is_known(tmp_path: Any) -> None:
    import torch.distributed as distributed

    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        world = distributed.group.WORLD
        assert process_group(SimpleNamespace(device_group=world)) is world
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "group", [SimpleNamespace(rank=0, world_size=2), "tp", SimpleNamespace(device_group=3)]
)
def test_something_else_is_a_sentence(group: Any) -> None:
    with pytest.raises(TypeError) as error:
        process_group(group)
    assert str(error.value) == (
        f"a {type(group).__name__} isn't known as a tensor-parallel group: it has neither rank() and size() nor "
        "device_group nor process_group; pass the torch.distributed process group itself"
    )


VLLM = SimpleNamespace(compilation_config=SimpleNamespace(cudagraph_capture_sizes=[8, 4, 2, 1]))
SGLANG = SimpleNamespace(cuda_graph_bs=[1, 2, 4, 8], tp_size=4)


@pytest.mark.parametrize(
    "source",
    [
        [8, 1, 4, 2, 4],
        (1, 2, 4, 8),
        VLLM,
        VLLM.compilation_config,
        SGLANG,
        SimpleNamespace(graph_runner=SimpleNamespace(capture_bs=[4, 8, 1, 2])),
        SimpleNamespace(capture_bs=range(1, 9), cuda_graph_bs=[8, 4, 2, 1]),
    ],
)
def test_capture_sizes(source: Any) -> None:
    assert capture_sizes(source) == (1, 2, 4, 8)


@pytest.mark.parametrize("source", [SimpleNamespace(), SimpleNamespace(cuda_graph_bs=None), "1,2", 8, None])
def test_no_capture_sizes(source: Any) -> None:
    with pytest.raises(
        TypeError, match=f"a {type(source).__name__} has no list of capture sizes that is known"
    ):
        capture_sizes(source)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "4"])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(
        ValueError, match=r"a capture size is .*; it must be a number of tokens of at least 1"
    ):
        capture_sizes([1, size])


def test_an_engines_sizes_warm_what_they_need(make: ModuleType, gpu: Any) -> None:
    bound = make.dispatch_of(make.workload(make.candidate("control"), tokens=(1, 4)))
    explained = bound.warm_up([Device("sm_90", 132, "NVIDIA H200", 0)], tokens=capture_sizes(VLLM))
    assert [(found.kind, found.chosen) for found in explained[::4]] == [("boundary", "control")] * 3
