"""Backends of channels' memory, step by step; CUDA and torch's symmetric memory are fakes."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.runtime.communicator import memory as memory_module
from kernwright.runtime.communicator.memory import IpcMemory, SymmetricMemory

CPU = torch.device("cpu")
SIZE = 64


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_torchs_multicast_switch_is_restored(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    """It is set while memory is made and exchanged, an error or not, and is the process's own otherwise."""
    import torch.distributed._symmetric_memory as symmetric

    seen: list[str | None] = []
    peers = [torch.zeros(SIZE, dtype=torch.uint8) for _ in range(2)]

    def made(*_: Any, **__: Any) -> torch.Tensor:
        seen.append(os.environ.get(memory_module.MULTICAST))
        return torch.ones(SIZE, dtype=torch.uint8)

    def exchanged(*_: Any) -> Any:
        seen.append(os.environ.get(memory_module.MULTICAST))
        if len(seen) == 3:
            raise RuntimeError("no peers")
        return SimpleNamespace(get_buffer=lambda rank, shape, dtype: peers[rank][: shape[0]].view(dtype))

    monkeypatch.setattr(symmetric, "empty", made)
    monkeypatch.setattr(symmetric, "rendezvous", exchanged)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    if before is None:
        monkeypatch.delenv(memory_module.MULTICAST, raising=False)
    else:
        monkeypatch.setenv(memory_module.MULTICAST, before)
    group: Any = SimpleNamespace()
    shared = SymmetricMemory(SIZE, CPU)
    assert not shared.own.any()
    assert shared.reach([None, None], group) == tuple(peer.data_ptr() for peer in peers)
    with pytest.raises(RuntimeError, match="no peers"):
        shared.reach([None, None], group)
    assert seen == ["1", "1", "1"]
    assert os.environ.get(memory_module.MULTICAST) == before


@pytest.mark.parametrize("before", [None, "0"])
@pytest.mark.parametrize("first_out", [0, 1])
def test_multicast_stays_off_until_the_last_thread_is_done(
    monkeypatch: pytest.MonkeyPatch, before: str | None, first_out: int
) -> None:
    """Two threads make communicators at once; either may be the first that is done."""
    monkeypatch.delenv(memory_module.MULTICAST, raising=False)
    if before is not None:
        monkeypatch.setenv(memory_module.MULTICAST, before)
    threads = [memory_module.without_multicast() for _ in range(2)]
    for thread in threads:
        thread.__enter__()
    threads[first_out].__exit__(None, None, None)
    assert os.environ.get(memory_module.MULTICAST) == "1"
    threads[1 - first_out].__exit__(None, None, None)
    assert os.environ.get(memory_module.MULTICAST) == before


class Runtime:
    """CUDA's handles, written down; what is in `fails` raises."""

    def __init__(self, *fails: str) -> None:
        self.did: list[tuple[str, Any]] = []
        self.fails = fails

    def _do(self, what: str, value: Any, result: Any = None) -> Any:
        self.did.append((what, value))
        if f"{what} {value}" in self.fails:
            raise RuntimeError(f"no luck with {what} {value}")
        return result

    def malloc(self, size: int) -> int:
        return int(self._do("malloc", size, 1000))

    def free(self, address: int) -> None:
        self._do("free", address)

    def ipcGetMemHandle(self, address: int) -> bytes:
        return bytes(self._do("offer", address, b"mine"))

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        return int(self._do("open", handle.decode(), 2000 + len(handle)))

    def ipcCloseMemHandle(self, address: int) -> None:
        self._do("close", address)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(*fails: str) -> Runtime:
        runtime = Runtime(*fails)
        array = torch.ones(SIZE, dtype=torch.uint8)
        pointers = SimpleNamespace(UnownedMemory=lambda *_: None, MemoryPointer=lambda *_: None)
        cupy = SimpleNamespace(cuda=pointers, ndarray=lambda *_: array, uint8=None)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        for name in ("cupy_backends", "cupy_backends.cuda"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace())
        monkeypatch.setitem(sys.modules, "cupy_backends.cuda.api", SimpleNamespace(runtime=runtime))
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda _: 1)
        return runtime

    return make


GROUP: Any = None


def test_memory_by_handles_is_left_before_it_is_freed(cuda: Any) -> None:
    runtime = cuda()
    shared = IpcMemory(SIZE, CPU)
    assert shared.offer == b"mine"
    assert not shared.own.any()
    assert shared.reach([b"a", b"mine", b"ccc"], GROUP) == (2001, 1000, 2003)
    shared.leave()
    shared.leave()
    shared.free()
    assert runtime.did == [
        ("malloc", SIZE), ("offer", 1000), ("open", "a"), ("open", "ccc"), ("close", 2003), ("close", 2001),
        ("free", 1000),
    ]  # fmt: skip


def test_memory_whose_handle_is_not_given_is_freed(cuda: Any) -> None:
    runtime = cuda("offer 1000")
    with pytest.raises(RuntimeError, match="no luck with offer"):
        IpcMemory(SIZE, CPU)
    assert runtime.did[-1] == ("free", 1000)


def test_what_was_opened_before_a_handle_failed_is_closed(cuda: Any) -> None:
    runtime = cuda("open ccc")
    shared = IpcMemory(SIZE, CPU)
    with pytest.raises(RuntimeError, match="no luck with open ccc"):
        shared.reach([b"a", b"mine", b"ccc"], GROUP)
    shared.leave()
    assert runtime.did[-1] == ("close", 2001)
    assert ("close", 2003) not in runtime.did
