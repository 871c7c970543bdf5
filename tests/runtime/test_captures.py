"""What calls do rarely disturbs no capture: not that of another thread, nor their own thread's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness.fake_cuda import CURRENT, DEFAULT, RELAXED, SIDE, FakeCuda, Memory
from kernwright.families.linear_all_reduce.overlap import lanes
from kernwright.runtime import Device, LoadError, captures, extended_launch, launch, loader
from kernwright.runtime.async_record import AsyncRecord
from kernwright.runtime.captures import beside_captures, capture_number, side_stream
from kernwright.runtime.launch import CudaModule
from kernwright.runtime.unpooled import unpooled, zeroed
from kernwright.table import Build, Kernel


def words(cuda: FakeCuda, values: list[int]) -> Memory:
    return Memory(cuda, torch.tensor(values, dtype=torch.int32))


def test_the_threads_mode_is_as_before_whatever_happens(fake_cuda: FakeCuda) -> None:
    def fail() -> None:
        with beside_captures():
            with beside_captures():
                pass
            assert fake_cuda.mode == RELAXED
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert fake_cuda.mode == 0


def test_without_a_driver_there_are_no_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise LoadError("no driver")

    monkeypatch.setattr(extended_launch, "driver", missing)
    with beside_captures():
        pass


def test_a_capture_has_a_number(fake_cuda: FakeCuda) -> None:
    fake_cuda.capture = 2**40 + 7
    assert capture_number(CURRENT) == 2**40 + 7
    fake_cuda.capture = None
    with pytest.raises(RuntimeError, match="has become invalid, or has ended during a call"):
        capture_number(CURRENT)


def test_the_side_stream_is_made_once(fake_cuda: FakeCuda) -> None:
    assert side_stream(3) is side_stream(3)
    assert side_stream(3).cuda_stream == SIDE


def test_a_record_is_read_beside_captures(fake_cuda: FakeCuda) -> None:
    """Every look, read and end; on a stream that nobody can capture."""
    device = words(fake_cuda, [1, 2])
    record: Any = AsyncRecord(device)  # type: ignore[arg-type]
    assert record.look() is None
    device.tensor += 1
    assert record.look() == [1, 2]
    assert record.look() == [2, 3]
    assert record.read() == [2, 3]
    record.end()
    assert fake_cuda.refused == []
    assert fake_cuda.log == [("copied", SIDE), ("recorded", SIDE)] * 3


def test_what_is_forgotten_waits_for_the_clearing(fake_cuda: FakeCuda) -> None:
    """Else the next copy could hold the words as they were before they were cleared."""
    record: Any = AsyncRecord(words(fake_cuda, [1]))  # type: ignore[arg-type]
    record.look()
    fake_cuda.log.clear()
    record.forget()
    assert record.look() is None
    assert fake_cuda.log == [(SIDE, "waits for", CURRENT), ("copied", SIDE), ("recorded", SIDE)]


def test_a_record_that_is_first_read_in_inference_mode_can_be_read_outside(fake_cuda: FakeCuda) -> None:
    with torch.inference_mode():
        record: Any = AsyncRecord(words(fake_cuda, [4]))  # type: ignore[arg-type]
        record.look()
    record.look()
    assert record.look() == [4]


@pytest.mark.parametrize("capture", [None, 5])
def test_state_is_zero_when_it_is_there(fake_cuda: FakeCuda, capture: int | None) -> None:
    """It is zeroed on a stream of its own, which is waited for: a capture sees nothing of it."""
    fake_cuda.capture = capture
    memory: Any = zeroed(16, "cuda:3")
    assert memory.tolist() == [0] * 16
    kept = [] if capture else [("kept for", CURRENT)]
    assert fake_cuda.log == [("zeros", SIDE), ("ended", SIDE), *kept]
    assert (fake_cuda.refused, fake_cuda.mode) == ([], 0)


def test_scratch_is_made_beside_captures(fake_cuda: FakeCuda) -> None:
    unpooled(16, "cuda:3")
    assert fake_cuda.refused == []
    assert fake_cuda.log == [
        ("empty", DEFAULT),
        (CURRENT, "waits for", DEFAULT),
        ("kept for", CURRENT),
        ("zeroed", CURRENT),
    ]


def test_modules_and_kernels_are_loaded_beside_captures(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy
    import cupy_backends.cuda.api.driver
    import cupy_backends.cuda.api.runtime

    def unsafe(what: str, result: Any = None) -> Any:
        def call(*_: Any) -> Any:
            fake_cuda.unsafe(what)
            return result

        return call

    monkeypatch.setattr(cupy.cuda, "Device", fake_cuda.device_of)
    module = SimpleNamespace(
        load=unsafe("load a module"), get_function=unsafe("load a kernel", SimpleNamespace(ptr=0xF00))
    )
    monkeypatch.setattr(cupy.cuda.function, "Module", lambda: module)
    driver = SimpleNamespace(
        funcSetAttribute=unsafe("set an attribute"),
        occupancyMaxActiveBlocksPerMultiprocessor=unsafe("ask for the occupancy", 2),
        launchCooperativeKernel=lambda *_: None,
    )
    runtime = SimpleNamespace(getDevice=lambda: 3, setDevice=unsafe("bind a context"))
    monkeypatch.setattr(cupy_backends.cuda.api, "driver", driver)
    monkeypatch.setattr(cupy_backends.cuda.api, "runtime", runtime)
    monkeypatch.setattr(loader, "_loaded", [])
    loaded = loader._load_module(b"", Build("0" * 64, "k.cu", "0" * 64), Device("sm_90", 132, "H200", 3))
    assert isinstance(loaded, CudaModule)
    assert loader._loaded == [module]  # unloading is unsafe, too, and a graph may need it
    loaded.launcher(
        Kernel((1, 1, 1), (128, 1, 1), (), shared_bytes=1024, cooperative=True, resident=True, symbol="k")
    )
    assert launch._bound_context(RuntimeError("CUDA_ERROR_INVALID_CONTEXT"))
    assert fake_cuda.refused == []


def test_lanes_are_made_beside_captures(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first events and their stream are the driver's to allocate."""

    def stream(_device: Any, priority: int) -> Any:
        assert priority == lanes.HIGH
        fake_cuda.unsafe("make a stream")
        return "side"

    def record(of: Any) -> None:
        assert of == "side"
        fake_cuda.unsafe("record a new event")

    monkeypatch.setattr(torch.cuda, "Stream", stream, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=record))
    assert len(lanes.CudaLanes(torch.device("cuda", 3), 4).events(4)) == 4


def test_every_unsafe_call_is_refused_without_the_guard(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative control of these tests."""
    monkeypatch.setattr(fake_cuda, "cuThreadExchangeStreamCaptureMode", lambda _: 0)
    for call in (
        lambda: side_stream(3),
        lambda: AsyncRecord(words(fake_cuda, [1])).look(),  # type: ignore[arg-type]
        lambda: unpooled(16, "cuda:3"),
    ):
        with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
            call()
    assert fake_cuda.refused == ["make a stream", "pin memory", "allocate"]
    assert captures.RELAXED == RELAXED
