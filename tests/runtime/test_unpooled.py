"""Memory that outlives a call; on a GPU: `test_captures.py`."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from harness.fake_cuda import FakeCuda
from kernwright.runtime.unpooled import unpooled, zeroed


@pytest.mark.parametrize("make", [unpooled, zeroed])
def test_what_is_made_in_inference_mode_can_be_written_to_outside_of_it(make: Any) -> None:
    with torch.inference_mode():
        memory = make(16, "cpu")
    memory.add_(1)
    assert memory.dtype == torch.uint8
    assert memory.tolist() == [1] * 16


@pytest.mark.parametrize("make", [unpooled, zeroed])
def test_another_thread_allocates(make: Any, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that this thread's allocations are directed to gets nothing."""
    threads: list[threading.Thread] = []
    for how in ("empty", "zeros"):
        real = getattr(torch, how)

        def noted(*shape: Any, real: Any = real, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return real(*shape, **options)

        monkeypatch.setattr(torch, how, noted)
    assert make(512, "cuda:3").tensor.nbytes == 512
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("make", [unpooled, zeroed])
def test_too_much_memory_is_an_error_of_the_caller(
    make: Any, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        make(1 << 50, "cuda:3")
