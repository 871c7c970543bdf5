"""Plans: which pointers reach which kernel, on which stream, with scratch of their own."""

import ctypes
import gc
import weakref
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from kernwright.runtime import Device, LoadError, Misaligned, Plan, current, direct, plan, state
from kernwright.table import Kernel

GPU = Device("sm_90", 132, "NVIDIA H200", 0)
STREAM = 0x1234


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(plan, "current_stream", lambda _: STREAM)
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: STREAM)
    monkeypatch.setattr(plan, "device_query", lambda: lambda: 0)
    return []


def make_plan(make: ModuleType, launches: list[Any], kind: str, candidate: Any = None) -> Plan:
    found = candidate or make.candidate("control")
    work = make.workload(found)
    dispatch = make.dispatch_of(work)
    request = dispatch._operator("hyper_connection").request_for({**work.fields, "tokens": 1}, kind)
    return Plan(found, "sm_90", kind, request.signature, GPU, make.FakeModule(launches))


def test_a_boundary_launches_three_kernels_on_the_current_stream(
    make: ModuleType, launches: list[Any]
) -> None:
    boundary = make_plan(make, launches, "boundary")
    inputs = make.tensors()
    x, block_input, injection_out = boundary(inputs)
    assert [(launch[0], launch[1], launch[2], launch[4]) for launch in launches] == [
        ("combine_norm_control", (4, 1, 1), (64, 1, 1), 0),
        ("down_control", (4, 1, 1), (64, 1, 1), 0),
        ("up_mix_control", (4, 1, 1), (64, 1, 1), 0),
    ]
    assert all(launch[5] == STREAM for launch in launches)
    residual, block, injection, norm_weight, down_weight, up_weight = (t.data_ptr() for t in inputs)
    combine, down, up = (launch[3] for launch in launches)
    assert combine[:5] == [residual, block, injection, norm_weight, x.data_ptr()]
    y, lora = combine[5], down[2]
    assert down == [y, down_weight, lora, injection_out.data_ptr()]
    assert up == [lora, up_weight, y, block_input.data_ptr()]
    assert lora - y == 512  # y has 4 * 64 float16
    assert [tuple(t.shape) for t in (x, block_input, injection_out)] == [(1, 256), (1, 64), (1, 4)]
    assert x.dtype == torch.float16


def test_outputs_are_fresh_unless_given(make: ModuleType, launches: list[Any]) -> None:
    combine = make_plan(make, launches, "combine")
    inputs = make.tensors(kind="combine")[:3]
    first, second = combine(inputs)[0], combine(inputs)[0]
    assert first.data_ptr() != second.data_ptr()
    given = torch.empty_like(first)
    assert combine(inputs, [given])[0] is given
    assert launches[-1][3][3] == given.data_ptr()


def test_a_tensor_that_is_no_output_of_this_kind_becomes_scratch(
    make: ModuleType, launches: list[Any]
) -> None:
    final = make_plan(make, launches, "final")
    assert [buffer.name for buffer in final.buffers[-3:]] == ["x", "y", "lora"]
    first = make_plan(make, launches, "first")
    assert [buffer.name for buffer in first.buffers] == [
        "residual",
        "norm_weight",
        "down_weight",
        "up_weight",
        "block_input",
        "injection_out",
        "y",
        "lora",
    ]


def test_two_calls_that_overlap_do_not_share_scratch(
    make: ModuleType, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = make_plan(make, launches, "boundary")
    real, kept = current.allocator("cpu"), []

    def keep(*made: Any) -> torch.Tensor:  # as another stream's allocation would
        kept.append(real(*made))
        return kept[-1]

    monkeypatch.setattr(direct, "allocator", lambda _: keep)
    boundary(make.tensors())
    boundary(make.tensors())
    scratch = [launches[call][3][5] for call in (0, 3)]
    assert len(set(scratch)) == 2
    assert set(scratch) <= {tensor.data_ptr() for tensor in kept}


def test_memory_comes_from_torch_with_or_without_its_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for removed in (False, True):
        if removed:
            monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
        made = current.allocator("cpu")((3, 4), (4, 1), torch.bfloat16)
        assert (tuple(made.shape), made.stride(), made.dtype) == ((3, 4), (4, 1), torch.bfloat16)


def test_outputs_are_contiguous_tensors_of_their_own(make: ModuleType, launches: list[Any]) -> None:
    inputs = [torch.nn.Parameter(tensor, requires_grad=False) for tensor in make.tensors()]
    made = make_plan(make, launches, "boundary")(inputs)
    assert [(type(tensor), tensor.is_contiguous(), tensor.storage_offset()) for tensor in made] == [
        (torch.Tensor, True, 0)
    ] * 3
    assert len({tensor.untyped_storage().data_ptr() for tensor in made}) == 3


def test_a_plan_looks_at_the_addresses(make: ModuleType, launches: list[Any]) -> None:
    combine = make_plan(make, launches, "combine")
    inputs = make.tensors(kind="combine")[:3]
    off = torch.zeros(257, dtype=torch.float16)[1:].view(1, 256)
    with pytest.raises(Misaligned, match=r"residual at 0x[0-9a-f]+2 doesn't: copy it, or call the op, which"):
        combine([off, *inputs[1:]])
    with pytest.raises(Misaligned, match="multiple of 16 bytes; x at 0x"):
        combine(inputs, [off])
    assert launches == []


def test_a_verifier_owns_every_buffer(
    make: ModuleType, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = make_plan(make, launches, "boundary")
    buffers = {b.name: torch.zeros(b.shape, dtype=torch.float16) for b in boundary.buffers}
    boundary._index = -1  # the CPU's, for the check of devices
    boundary.run(buffers)
    assert launches[1][3] == [buffers[n].data_ptr() for n in ("y", "down_weight", "lora", "injection_out")]
    with pytest.raises(ValueError, match=r"buffer lora is missing; it is float16 of shape \(1, 32\)"):
        boundary.run({name: tensor for name, tensor in buffers.items() if name != "lora"})
    buffers["y"] = torch.zeros(1, 255, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"buffer y is torch.float16 of shape \(1, 255\)"):
        boundary.run(buffers)


def test_a_kernel_that_takes_what_nobody_gives(make: ModuleType, launches: list[Any]) -> None:
    broken = replace(make.candidate("control"), scratch={})
    with pytest.raises(LoadError, match="kernel combine_norm_control takes y, which is neither"):
        make_plan(make, launches, "boundary", broken)


def test_a_kernel_that_the_module_lacks(make: ModuleType, launches: list[Any]) -> None:
    class Empty:
        def launcher(self, kernel: Kernel) -> Any:
            raise LoadError(f"could not load kernel {kernel.symbol}: CUDA_ERROR_NOT_FOUND")

    found = make.candidate("control")
    request = (
        make.dispatch_of()
        ._operator("hyper_connection")
        .request_for({**make.workload().fields, "tokens": 1}, "combine")
    )
    with pytest.raises(LoadError, match="could not load kernel combine_control: CUDA_ERROR_NOT_FOUND"):
        Plan(found, "sm_90", "combine", request.signature, GPU, Empty())


def test_another_current_device_is_switched_for_the_launch(
    make: ModuleType, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [1]
    monkeypatch.setattr(plan, "device_query", lambda: lambda: here[0])

    class Guard:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before, here[0] = here[0], self.index

        def __exit__(self, *_: object) -> None:
            here[0] = self.before

    monkeypatch.setattr(direct, "device_guard", Guard)
    seen = []

    class Watching:
        def launcher(self, _: Kernel) -> Any:
            return lambda stream, *_: seen.append((here[0], stream))

    monkeypatch.setattr(plan, "stream_query", lambda: lambda index: 100 + index)
    signature = make_plan(make, launches, "combine").signature
    combine = Plan(make.candidate("control"), "sm_90", "combine", signature, GPU, Watching())
    combine(make.tensors(kind="combine")[:3])
    assert seen == [(0, 100)]
    assert here == [1]


def test_the_stream_is_torchs_current_one_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0x5000 + index, raising=False)
    for ask in (current.current_stream, current.stream_query()):
        assert [ask(index) for index in (0, 3)] == [0x5000, 0x5003]


def test_a_single_device_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 5, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert current.device_query() is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ask = current.device_query()
    assert ask is not None
    assert ask() == 5


def test_tensors_that_are_missing_launch_nothing(make: ModuleType, launches: list[Any]) -> None:
    """The frame still has the last call's addresses, which nobody promised to keep."""
    combine = make_plan(make, launches, "combine")
    inputs = make.tensors(kind="combine")[:3]
    (x,) = combine(inputs)
    launches.clear()
    with pytest.raises(ValueError, match="3 tensors were given, and this plan takes 4, inputs and outputs"):
        combine(inputs, [])
    with pytest.raises(ValueError, match="5 tensors were given, and this plan takes 4, inputs and outputs"):
        combine([*inputs, x], [x])
    with pytest.raises(AttributeError, match="data_ptr"):
        combine([*inputs[:2], None], [x])
    assert launches == []
    combine(inputs, [x])
    assert len(launches) == 1


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[torch.Tensor]]:
    """The states that are made, in order."""
    made: list[weakref.ref[torch.Tensor]] = []

    def zeroed(nbytes: int, device: str) -> torch.Tensor:
        assert (nbytes, device) == (256, "cuda:0")
        memory = torch.zeros(nbytes, dtype=torch.uint8)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(state, "zeroed", zeroed)
    monkeypatch.setattr(plan, "_captured", [])
    return made


def with_state(make: ModuleType, launches: list[Any]) -> Plan:
    """A plan whose kernel takes its state as the fifth argument."""
    found = make.candidate("control")
    kernel = replace(found.kernels["combine"], args=("residual", "block", "injection", "x", "words"))
    found = replace(
        found,
        kernels={**found.kernels, "combine": kernel},
        state={"words": ((4,), "int64"), "other": ((1,), "int32")},
    )
    return make_plan(make, launches, "combine", found)


def test_every_stream_and_every_capture_has_a_state(
    make: ModuleType,
    launches: list[Any],
    states: list[weakref.ref[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Captures on one stream, as many as there are, without a call outside of them; calls of one capture share."""
    now: list[Any] = [0, None]
    monkeypatch.setattr(plan, "stream_query", lambda: lambda _: now[0])
    monkeypatch.setattr(plan, "current_stream", lambda _: now[0])
    monkeypatch.setattr(plan, "capturing", lambda: now[1] is not None)
    monkeypatch.setattr(plan, "capture_number", lambda stream: now[1] if stream == now[0] else None)
    combine = with_state(make, launches)
    wheres = [
        (7, None),
        (7, None),
        (9, None),
        *((7, 100 + n) for n in range(60)),
        (9, 100),
        (7, 100),
        (7, None),
    ]
    for now[:] in wheres:
        combine(make.tensors(kind="combine")[:3])
    taken: dict[tuple[int, int | None], set[int]] = {}
    for where, launch in zip(wheres, launches, strict=True):
        taken.setdefault(where, set()).add(launch[3][4])
    assert all(len(addresses) == 1 for addresses in taken.values())
    assert len(set.union(*taken.values())) == len(taken) == len(states) == 63
    now[:] = 11, None
    combine.prepare()
    assert len(states) == 64


def test_a_captured_state_outlives_its_plan(
    make: ModuleType,
    launches: list[Any],
    states: list[weakref.ref[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph has its address, and may be replayed at any time; that of eager calls goes with the plan."""
    monkeypatch.setattr(plan, "capture_number", lambda _: 1)
    combine = with_state(make, launches)
    for captured in (False, True):
        monkeypatch.setattr(plan, "capturing", lambda captured=captured: captured)
        combine(make.tensors(kind="combine")[:3])
    del combine
    gc.collect()
    eager, kept = (memory() for memory in states)
    assert eager is None
    assert kept is not None
    assert kept.data_ptr() == launches[1][3][4]


def test_ranks_that_share_a_launch_get_pointers_of_their_own(
    make: ModuleType, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a call and by a verifier's `run`, and without a device, as on the emulator."""
    seen: list[list[int]] = []

    class Reading:
        def launcher(self, _: Kernel) -> Any:
            def launch(_stream: int, parameters: int, _extra: int) -> None:
                address = ctypes.c_void_p.from_address(parameters).value
                assert address is not None
                seen.append(list((ctypes.c_uint64 * 4).from_address(address)))

            return launch

    found = replace(make.candidate("control"), arguments={"residual": "pointers[4]"})
    signature = make_plan(make, launches, "combine").signature
    shapes = [replace(buffer, shape=(2, *buffer.shape)) for buffer in (*signature.inputs, *signature.outputs)]
    wide = replace(signature, inputs=tuple(shapes[:3]), outputs=tuple(shapes[3:]))
    combine = Plan(found, "sm_90", "combine", wide, replace(GPU, index=None), Reading(), ranks=2)
    tensors = [torch.zeros(buffer.shape, dtype=torch.float16) for buffer in shapes]
    residual = tensors[0].data_ptr()
    combine(tensors[:3], tensors[3:])
    combine.run({buffer.name: tensor for buffer, tensor in zip(shapes, tensors, strict=True)})
    assert seen == [[residual, residual + 512, 0, 0]] * 2
