"""Launching: every argument in its slot, constants included, whoever else is calling."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kernwright.runtime import LoadError, extended_launch
from kernwright.runtime.launch import CudaModule, LaunchSequence
from kernwright.table import Kernel

ONE, THREADS = (1, 1, 1), (128, 1, 1)


class Recording:
    """Reads what the driver would read."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes, self.seen = sizes, []  # type: ignore[var-annotated]

    def launcher(self, kernel: Kernel) -> Any:
        def launch(stream: int, parameters: int, _extra: int) -> None:
            addresses = (ctypes.c_void_p * len(kernel.args)).from_address(parameters)
            values = [
                ctypes.string_at(address, self.sizes.get(name, 8))
                for name, address in zip(kernel.args, addresses, strict=True)
                if address
            ]
            self.seen.append((kernel.symbol, stream, values))

        return launch


def test_values_and_constants_reach_every_kernel_that_takes_them() -> None:
    module = Recording({"rank": 4, "channels": 24})
    channels = b"".join(value.to_bytes(8, "little") for value in (11, 22, 33))
    kernels = [
        Kernel(ONE, THREADS, ("x", "channels", "rank"), symbol="first"),
        Kernel(ONE, THREADS, ("rank", "y", "x"), symbol="second"),
    ]
    sequence = LaunchSequence(
        module, kernels, ("x", "y"), {"channels": channels, "rank": (3).to_bytes(4, "little")}
    )
    sequence((0x1234567890AB, 2**64 - 1), 7)
    x, rank = (0x1234567890AB).to_bytes(8, "little"), b"\3\0\0\0"
    assert module.seen == [("first", 7, [x, channels, rank]), ("second", 7, [rank, b"\xff" * 8, x])]


def test_threads_never_see_each_others_arguments() -> None:
    barrier = threading.Barrier(8)
    wrong = []

    class Slow:
        def launcher(self, _: Kernel) -> Any:
            def launch(stream: int, parameters: int, _extra: int) -> None:
                addresses = (ctypes.c_void_p * 2).from_address(parameters)
                for _ in range(3):
                    sys.setswitchinterval(1e-6)
                    found = [ctypes.c_uint64.from_address(address).value for address in addresses if address]
                    if found != [stream, stream + 1]:
                        wrong.append((stream, found))

            return launch

    sequence = LaunchSequence(Slow(), [Kernel(ONE, THREADS, ("a", "b"), symbol="k")] * 3, ("a", "b"))

    def call(number: int) -> None:
        barrier.wait()
        for _ in range(200):
            sequence((number, number + 1), number)

    interval = sys.getswitchinterval()
    try:
        threads = [threading.Thread(target=call, args=(10 * number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


class Driver:
    """Stands for `cupy_backends.cuda.api.driver`: one CTA fits an SM."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def launchKernel(self, *arguments: int) -> None:
        self.calls.append(arguments)

    def funcSetAttribute(self, *arguments: int) -> None:
        self.calls.append(("attribute", *arguments))

    def occupancyMaxActiveBlocksPerMultiprocessor(self, *_: int) -> int:
        return 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    import cupy_backends.cuda.api.driver
    import cupy_backends.cuda.api.runtime

    monkeypatch.setattr(cupy_backends.cuda.api, "driver", found)
    return found


def loaded(*names: str) -> CudaModule:
    def get_function(name: str) -> Any:
        if name not in names:
            raise RuntimeError("CUDA_ERROR_NOT_FOUND: named symbol not found")
        return SimpleNamespace(ptr=0xF00)

    return CudaModule(SimpleNamespace(get_function=get_function), 132)


def test_the_driver_gets_geometry_stream_and_parameters(driver: Driver) -> None:
    launcher = loaded("k").launcher(Kernel((132, 2, 3), (64, 1, 2), ("x",), shared_bytes=50_000, symbol="k"))
    launcher(5, 0xABC, 0)
    assert driver.calls == [
        ("attribute", 0xF00, 8, 50_000),
        (0xF00, 132, 2, 3, 64, 1, 2, 50_000, 5, 0xABC, 0),
    ]


def test_a_kernel_that_the_module_lacks_is_a_load_error(driver: Driver) -> None:
    with pytest.raises(LoadError, match="could not load kernel gone: CUDA_ERROR_NOT_FOUND"):
        loaded("k").launcher(Kernel(ONE, THREADS, (), symbol="gone"))


def test_ctas_that_wait_for_each_other_must_fit_at_once(driver: Driver) -> None:
    module = loaded("k")
    module.launcher(Kernel((132, 1, 1), THREADS, (), resident=True, symbol="k"))
    with pytest.raises(
        LoadError, match=r"wait for each other, and 264 of 128 threads are launched; this device hol"
    ):
        module.launcher(Kernel((132, 2, 1), THREADS, (), resident=True, symbol="k"))
    module.launcher(Kernel((264, 1, 1), THREADS, (), symbol="k"))


def test_a_thread_without_a_context_gets_one(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy_backends.cuda.api.driver
    import cupy_backends.cuda.api.runtime

    bound: list[int] = []
    runtime = SimpleNamespace(getDevice=lambda: 3, setDevice=bound.append)
    monkeypatch.setattr(cupy_backends.cuda.api, "runtime", runtime)
    launches: list[str] = []

    class Unbound:
        def launcher(self, kernel: Kernel) -> Any:
            def launch(*_: int) -> None:
                if not bound:
                    raise RuntimeError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")
                launches.append(kernel.symbol)

            return launch

    kernels = [Kernel(ONE, THREADS, ("x",), symbol=name) for name in ("a", "b")]
    LaunchSequence(Unbound(), kernels, ("x",))((1,), 0)
    assert (bound, launches) == ([3], ["a", "b"])


def test_a_thread_without_a_context_gets_one_for_looking_up_kernels_too(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy_backends.cuda.api.runtime

    bound: list[int] = []
    monkeypatch.setattr(
        cupy_backends.cuda.api, "runtime", SimpleNamespace(getDevice=lambda: 1, setDevice=bound.append)
    )
    module = Recording({})

    class Unbound:
        def launcher(self, kernel: Kernel) -> Any:
            if not bound:
                raise LoadError("could not load kernel k: CUDA_ERROR_INVALID_CONTEXT: invalid device context")
            return module.launcher(kernel)

    LaunchSequence(Unbound(), [Kernel(ONE, THREADS, ("x",), symbol="k")], ("x",))((9,), 0)
    assert bound == [1]
    assert module.seen == [("k", 0, [(9).to_bytes(8, "little")])]


def test_other_errors_of_the_driver_reach_the_caller() -> None:
    class Failing:
        def launcher(self, _: Kernel) -> Any:
            def launch(*_: int) -> None:
                raise RuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")

            return launch

    with pytest.raises(RuntimeError, match="OUT_OF_RESOURCES"):
        LaunchSequence(Failing(), [Kernel(ONE, THREADS, ("x",), symbol="k")], ("x",))((1,), 0)


def test_a_programmatic_launch_says_so_to_the_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as bindings

    seen: list[Any] = []
    status = 0

    def launch_kernel_ex(config: int, function: int, parameters: int, extra: int) -> int:
        copied = extended_launch.LaunchConfig.from_buffer_copy(ctypes.string_at(config, 56))
        seen.append((copied, function, parameters, extra))
        return status

    def get_error_name(found: int, name: Any) -> None:
        name._obj.value = {1: b"CUDA_ERROR_INVALID_VALUE"}[found]

    library = SimpleNamespace(
        cuLaunchKernelEx=launch_kernel_ex,
        cuGetErrorName=get_error_name,
        cuThreadExchangeStreamCaptureMode=lambda _: 0,
    )
    monkeypatch.setattr(extended_launch, "driver", lambda: library)
    kernel = Kernel((132, 2, 3), (384, 4, 5), ("x",), shared_bytes=1024, programmatic=True, symbol="k")
    launch = loaded("k").launcher(kernel)
    assert driver.calls == [
        ("attribute", 0xF00, 8, 1024),
        ("attribute", 0xF00, 9, 100),
    ]  # the largest carveout of shared memory
    launch(0x55, 0xABC, 0)
    launch(0x66, 0xABC, 0)
    (config, *rest), (other, *_) = seen
    assert rest == [0xF00, 0xABC, 0]
    assert [config.stream, other.stream] == [0x55, 0x66]

    expected = bindings.CUlaunchConfig()
    expected.gridDimX, expected.gridDimY, expected.gridDimZ = kernel.grid
    expected.blockDimX, expected.blockDimY, expected.blockDimZ = kernel.block
    expected.sharedMemBytes, expected.hStream = 1024, 0x55
    attribute = bindings.CUlaunchAttribute()
    attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    expected.attrs, expected.numAttrs = [attribute], 1
    assert same_config(config, expected)
    assert same_attribute(config, attribute)

    status = 1
    with pytest.raises(RuntimeError, match="kernel k wasn't launched: CUDA_ERROR_INVALID_VALUE"):
        launch(0x55, 0xABC, 0)


def same_config(config: Any, expected: Any) -> bool:
    """All but the address of the attributes, byte for byte."""
    ours = bytes(config)
    theirs = ctypes.string_at(expected.getPtr(), ctypes.sizeof(config))
    return ours[:28] + ours[32:40] + ours[48:52] == theirs[:28] + theirs[32:40] + theirs[48:52]


def same_attribute(config: Any, expected: Any) -> bool:
    """The identity and the first word of the value."""
    ours = bytes(config.attributes.contents)
    theirs = ctypes.string_at(expected.getPtr(), len(ours))
    return len(ours) == 72 and ours[:4] + ours[8:12] == theirs[:4] + theirs[8:12]


def test_without_a_driver_a_programmatic_kernel_is_a_load_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    extended_launch.driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(
        LoadError, match=r"needs the driver of CUDA 11\.8 or newer, which could not be loaded"
    ):
        loaded("k").launcher(Kernel(ONE, THREADS, (), programmatic=True, symbol="k"))
