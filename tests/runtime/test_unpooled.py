"""Memory that outlives a call: allocated by another thread on the default stream, and handed to the current one."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.runtime.unpooled import unpooled


class Memory:
    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def record_stream(self, stream: Any) -> None:
        self._log.append(("kept for", stream.name))

    def zero_(self) -> Memory:
        self._log.append(("zeroed", threading.current_thread() is threading.main_thread()))
        return self


class Stream:
    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self.device, self._log = name, torch.device("cuda", 3), log

    def wait_stream(self, other: Stream) -> None:
        self._log.append((self.name, "waits for", other.name))


@pytest.mark.parametrize("on_default", [False, True])
def test_another_thread_allocates_under_the_devices_guard(
    monkeypatch: pytest.MonkeyPatch, on_default: bool
) -> None:
    log: list[Any] = []
    default = Stream("default", log)
    current = default if on_default else Stream("current", log)

    @contextmanager
    def guard(device: torch.device) -> Any:
        log.append(("device", device.index))
        yield
        log.append("device left")

    def empty(nbytes: int, *, dtype: torch.dtype, device: torch.device) -> Memory:
        elsewhere = threading.current_thread() is not threading.main_thread()
        log.append(("allocated", nbytes, dtype, device.index, elsewhere))
        return Memory(log)

    cuda = SimpleNamespace(current_stream=lambda _: current, default_stream=lambda _: default, device=guard)
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "empty", empty)
    assert isinstance(unpooled(512, "cuda:3"), Memory)
    handed_over = [] if on_default else [("current", "waits for", "default"), ("kept for", "current")]
    assert log == [
        ("device", 3),
        ("allocated", 512, torch.uint8, 3, True),
        "device left",
        *handed_over,
        ("zeroed", True),
    ]


def test_what_is_made_in_inference_mode_can_be_written_to_outside_of_it() -> None:
    with torch.inference_mode():
        memory = unpooled(16, "cpu")
    memory.add_(1)
    assert memory.dtype == torch.uint8
    assert memory.tolist() == [1] * 16


def test_too_much_memory_is_an_error_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    default = Stream("default", [])
    cuda = SimpleNamespace(
        current_stream=lambda _: default, default_stream=lambda _: default, device=lambda _: nullcontext()
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        unpooled(1 << 50, "cuda:3")
