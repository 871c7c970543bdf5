"""The ops on the emulator's ranks: routes by threshold, acquired inputs, results that stay, errors of channels."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.workspaces import load_module
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.families.all_reduce.reference import in_rank_order
from kernwright.runtime import ChannelError, OtherCall, Overlap, PeerTimeout
from kernwright.runtime.communicator.channel import Channel
from kernwright.table import DISAGREEMENT, OVERLAP

HERE = Path(__file__).parent
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@pytest.fixture(scope="session")
def mini(mini_root: Path) -> Any:
    """The dispatch module of the miniature spec."""
    return load_module("mini_dispatch", mini_root / "generated" / "dispatch.py")


@pytest.fixture
def ranks(mini: Any) -> Any:
    """Make a communicator of emulated ranks."""
    return lambda world_size, **more: EmulatedCommunicator(mini.DISPATCH.table, world_size, **more)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit; a NaN equals any NaN."""
    same = bits(found) == bits(expected)
    return bool((same | (found.isnan() & expected.isnan())).all())


def values(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randint(-3, 4, shape, generator=generator).float().exp2()
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def expected(tensor: torch.Tensor) -> torch.Tensor:
    return in_rank_order(tensor.unbind(0)).expand_as(tensor)


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_rank_gets_the_sum_in_rank_order(
    mini: Any, ranks: Any, world_size: int, dtype: torch.dtype
) -> None:
    comm = ranks(world_size)
    for numel in (1, 7, 255, 257, 401):
        tensor = values(world_size, numel, dtype=dtype, seed=numel)
        before = tensor.clone()
        result = mini.all_reduce(tensor, comm=comm)
        assert equal(result, expected(tensor))
        assert equal(tensor, before)
        assert equal(
            mini.all_reduce_sum2(tensor, tensor.flip(1), comm=comm), expected(tensor + tensor.flip(1))
        )
    comm.check()


@pytest.mark.parametrize(
    ("size", "route"),
    [(4, "tagged"), (508, "tagged"), (512, "one"), (516, "one"), (1020, "one"), (1024, "two"), (2048, "two")],
)
def test_thresholds_choose_the_route_and_never_the_bits(mini: Any, ranks: Any, size: int, route: str) -> None:
    """Astride each threshold; all three routes on one channel, one after the other."""
    comm = ranks(4)
    tensor = values(4, size // 4, dtype=torch.float32)
    explanation = mini.all_reduce.explain(tensor, comm=comm)
    assert (explanation.chosen, explanation.contract) == (route, "exact")
    assert equal(mini.all_reduce(tensor, comm=comm), expected(tensor))
    reasons = {d.candidate: d.reason for d in explanation.decisions if d.workload == explanation.workload}
    other = "two" if route != "two" else "one"
    assert f"payload_bytes is {size}, and " in reasons[other]
    assert "(a threshold that wasn't measured on this device)" in reasons[route]


def test_sizes_and_routes_follow_each_other_in_any_order(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    generator = torch.Generator().manual_seed(5)
    for call in range(24):
        numel = int(torch.randint(1, 1025, (1,), generator=generator))
        tensor = values(2, numel, seed=call)
        kind = call % 3
        if kind == 0:
            found = mini.all_reduce(tensor, comm=comm)
        elif kind == 1:
            found = mini.all_reduce_sum2(tensor, tensor, comm=comm)
            tensor = tensor + tensor
        else:
            (view,) = mini.acquire_outputs([(numel,)], tensor.dtype, comm=comm)
            view.copy_(tensor)
            (found,) = mini.all_reduce_symmetric((view,), comm=comm)
        assert equal(found, expected(tensor)), (call, numel, kind)
    comm.check()


def test_special_values(mini: Any, ranks: Any) -> None:
    comm = ranks(4)
    inf, nan = float("inf"), float("nan")
    rows = {
        "zeros": [0.0] * 4,
        "minus zeros": [-0.0] * 4,
        "one plus zero": [-0.0, 0.0, -0.0, -0.0],
        "overflow": [60000.0] * 4,
        "infinities": [inf, -inf, 1.0, 2.0],
        "one infinity": [1.0, 2.0, inf, 3.0],
        "nan": [1.0, nan, 1.0, 1.0],
        "order matters": [2048.0, 0.5, 0.5, 0.5],
    }
    tensor = torch.tensor(list(rows.values())).t().contiguous().half()
    found = mini.all_reduce(tensor, comm=comm)
    assert equal(found, expected(tensor))
    assert found[0, 3] == inf
    assert torch.signbit(found[2, :3]).tolist() == [False, True, False]


def test_any_layout_goes_in_and_the_callers_tensor_stays(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    base = values(2, 12, 10)
    transposed = base.transpose(1, 2)
    found = mini.all_reduce(transposed, comm=comm)
    assert found.is_contiguous()
    assert equal(found, expected(transposed))
    assert equal(base, values(2, 12, 10))
    odd = values(2, 101).view(-1)[1:201].view(2, 100)  # an odd address, an odd stride
    assert equal(mini.all_reduce(odd, comm=comm), expected(odd))
    out = torch.full_like(odd, float("nan"))
    assert mini.all_reduce(odd, comm=comm, out=out) is out
    assert equal(out, expected(odd))
    inplace = odd.clone()
    assert equal(mini.all_reduce(inplace, comm=comm, out=inplace), expected(odd))
    empty = mini.all_reduce(values(2, 0), comm=comm)
    assert empty.shape == (2, 0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("shapes", [[(3, 5), (1, 1)], [(1,), (7,), (2, 3)], [(3,), (218,), (5, 7)]], ids=str)
def test_parts_of_any_size(mini: Any, ranks: Any, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    """Parts that aren't whole words lie one behind the other as well, and so do their sums, by every route."""
    comm = ranks(2)
    given = [values(2, *shape, dtype=torch.float32, seed=sum(shape)).to(dtype) for shape in shapes]
    for _ in range(3):
        acquired = mini.acquire_outputs(shapes, dtype, comm=comm)
        for view, value in zip(acquired, given, strict=True):
            torch.add(value, 0, out=view)
        assert acquired[0].data_ptr() % 16 == 0
        found = mini.all_reduce_symmetric(acquired, comm=comm)
        for results in (acquired, found) if dtype in DTYPES else (acquired,):
            ends = [(result[0].data_ptr(), result[0].nbytes) for result in results]
            assert all(start + size == after for (start, size), (after, _) in itertools.pairwise(ends))
        assert [f.shape for f in found] == [value.shape for value in given]
        for result, value in zip(found, given, strict=True):
            assert torch.equal(result, expected(value))
    comm.check()


def test_a_result_is_held_across_the_next_calls(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    tensors = [values(2, 40, seed=seed) for seed in range(5)]
    results = [mini.all_reduce(tensor, comm=comm) for tensor in tensors]
    assert all(equal(found, expected(tensor)) for found, tensor in zip(results, tensors, strict=True))


def test_joint_payloads_are_one_reduction(mini: Any, ranks: Any) -> None:
    comm = ranks(4)
    shapes = [(3, 16), (3, 40), (5,)]
    acquired = mini.acquire_outputs(shapes, torch.bfloat16, comm=comm)
    assert [tuple(tensor.shape) for tensor in acquired] == [(4, *shape) for shape in shapes]
    starts = [tensor[1].data_ptr() for tensor in acquired]
    assert [b - a for a, b in itertools.pairwise(starts)] == [96, 240]
    given = [values(*tensor.shape, seed=index) for index, tensor in enumerate(acquired)]
    for view, value in zip(acquired, given, strict=True):
        view.copy_(value)
    calls = mini.stats().dispatches.get(("bf16-w56-b4to2048-tp4", "tagged"), 0)
    found = mini.all_reduce_symmetric(acquired, comm=comm)
    assert mini.stats().dispatches["bf16-w56-b4to2048-tp4", "tagged"] == calls + 1
    assert [f.shape for f in found] == [tensor.shape for tensor in acquired]
    assert all(equal(f, expected(value)) for f, value in zip(found, given, strict=True))


def test_two_acquisitions_lie_apart_and_a_third_waits(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    first, second = (mini.acquire_outputs([(8,)], torch.float16, comm=comm)[0] for _ in range(2))
    first.fill_(1)
    second.fill_(2)
    with pytest.raises(RuntimeError, match="all 2 inputs of channel mini are acquired and not reduced yet"):
        mini.acquire_outputs([(8,)], torch.float16, comm=comm)
    assert mini.all_reduce_symmetric([second], comm=comm)[0].tolist() == [[4.0] * 8] * 2
    third = mini.acquire_outputs([(8,)], torch.float16, comm=comm)[0]
    third.fill_(3)
    assert mini.all_reduce_symmetric([first], comm=comm)[0].tolist() == [[2.0] * 8] * 2
    mini.all_reduce.release([third], comm=comm)
    with pytest.raises(ValueError, match="weren't acquired from this communicator, or were reduced already"):
        mini.all_reduce_symmetric([third], comm=comm)


def test_acquired_tensors_come_back_whole_and_in_order(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    a, b = mini.acquire_outputs([(2, 8), (2, 8)], torch.float16, comm=comm)
    for wrong, sentence in (
        ((b, a), "weren't acquired from this communicator"),
        ((a,), "1 tensors were given of 2 that were acquired together; give all"),
        ((a, a), "tensor 1 is torch.float16 of shape"),
        ((a, torch.zeros(2, 2, 8, dtype=torch.float16)), "tensor 1 is torch.float16"),
        ((a.view(torch.bfloat16), b), "tensor 0 is torch.bfloat16"),
        ((a, b.transpose(1, 2)), "tensor 1 is torch.float16"),
        ((), "weren't acquired"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mini.all_reduce_symmetric(wrong, comm=comm)
    a.fill_(1)
    b.fill_(2)
    assert [float(f.sum()) for f in mini.all_reduce_symmetric((a, b), comm=comm)] == [64.0, 128.0]


def test_what_cannot_be_acquired(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    for shapes, sentence in (
        ([], "no shapes were given"),
        ([(0, 8)], r"shape \(0, 8\) has no elements"),
        ([(1025,)], "the outputs have 2050 bytes; channel mini holds 2048"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mini.acquire_outputs(shapes, torch.float16, comm=comm)
    with pytest.raises(
        ValueError, match="channel is 'other'; open ones with inputs to acquire are mini: name one"
    ):
        mini.acquire_outputs([(8,)], torch.float16, comm=comm, channel="other")


def test_over_capacity_and_other_dtypes_fall_back_with_the_reason(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    large = values(2, 1025)
    assert equal(mini.all_reduce(large, comm=comm), expected(large))
    explanation = mini.all_reduce.explain(large, comm=comm)
    assert (explanation.chosen, explanation.contract) == ("reference", "exact")
    assert "payload_bytes is 2050; this candidate serves 4 to 2048" in str(explanation)
    double = values(2, 5, dtype=torch.float64)
    assert torch.equal(mini.all_reduce(double, comm=comm)[0], double.sum(0))
    assert mini.stats().fallbacks["payload_bytes"] >= 1


def test_bad_calls_are_sentences(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    tensor = values(2, 8)
    for call, kind, sentence in (
        (
            lambda: mini.all_reduce(tensor, comm=None),
            TypeError,
            "comm is NoneType; it must be what communicator",
        ),
        (
            lambda: mini.all_reduce(values(3, 8), comm=comm),
            ValueError,
            "with 2 local ranks its first dimension must",
        ),
        (
            lambda: mini.all_reduce(tensor, comm=comm, out=values(2, 9)),
            ValueError,
            "out is torch.bfloat16 of shape",
        ),
        (lambda: mini.all_reduce_sum2(tensor, values(2, 9), comm=comm), ValueError, "both must be alike"),
        (
            lambda: mini.all_reduce(tensor.float().requires_grad_(), comm=comm),
            RuntimeError,
            "has no gradient",
        ),
        (
            lambda: ranks(2, specs=["nothing"]),
            ValueError,
            "spec nothing has no channel for 2 ranks; specs that have",
        ),
    ):
        with pytest.raises(kind, match=sentence):
            call()


def test_a_named_channel_is_the_only_one(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    tensor = values(2, 8)
    assert mini.all_reduce.explain(tensor, comm=comm, channel="mini").chosen == "tagged"
    explanation = mini.all_reduce.explain(tensor, comm=comm, channel="other")
    assert explanation.chosen == "reference"
    assert "channel other was asked for" in str(explanation)


def record(channel: Channel, rank: int, *words: int) -> None:
    begin = channel.plan.offsets["record"]
    channel.memory[rank, begin : begin + 32].view(torch.int32)[:7] = torch.tensor(words, dtype=torch.int32)
    channel.memory[rank, channel.plan.offsets["ticket"] + 3] = 0x80  # as kernels leave it


def test_a_failed_channel_says_who_and_works_after_reset(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    tensor = values(2, 8)
    mini.all_reduce(tensor, comm=comm)
    record(comm.channel("mini"), 1, 3, 1, 0, 2, 7, 5, 1)
    with pytest.raises(PeerTimeout) as caught:
        comm.check()
    error = caught.value
    assert (error.rank, error.peer, error.channel, error.expected, error.seen) == (1, 0, "mini", 7, 5)
    assert str(error) == (
        "rank 1 waited in vain for rank 0 on channel mini: a packet of call 7 (last seen 5, CTA 1); see what that "
        "rank does, then call reset() on all ranks"
    )
    assert mini.all_reduce(tensor, comm=comm).isnan().all()  # a wrong sum never leaves a failed channel
    comm.channel("mini")._checked -= 1
    with pytest.raises(PeerTimeout):  # and after a moment the next call says why
        mini.all_reduce(tensor, comm=comm)
    comm.reset()
    assert equal(mini.all_reduce(tensor, comm=comm), expected(tensor))
    comm.check()
    record(comm.channel("mini"), 0, 1, 0, 0, OVERLAP, 9, 1, 0)
    with pytest.raises(Overlap, match="rank 0 used channel mini in two calls at the same time"):
        comm.check()
    record(comm.channel("mini"), 0, 1, 0, 1, DISAGREEMENT, 9, 0x1F, 0)
    with pytest.raises(
        OtherCall, match=r"rank 0 found rank 1 in another call on channel mini \(call 9, CTA 0;"
    ):
        comm.check()


def test_warm_up_loads_every_part(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    kinds = [(e.chosen, e.kind) for e in mini.warm_up(workloads=["bf16-w56-b4to2048-tp2"], comm=comm)]
    assert kinds == [(c, k) for c in ("tagged", "one", "two") for k in ("symmetric", "staged", "sum2")]
    assert len(comm._loaded) == 3


def plan_named(mini: Any, comm: Any, name: str, numel: int, kind: str = "staged") -> Any:
    work = next(w for w in mini.TABLE.workloads if w.label == f"bf16-w56-b4to2048-tp{comm.world_size}")
    arch = next(iter(work.candidates[0].builds))
    return mini.DISPATCH.plan_named(work.label, name, arch, kind, comm.target, comm=comm, at=2 * numel)


@pytest.mark.parametrize("name", ["tagged", "one", "two"])
@pytest.mark.parametrize("kind", ["staged", "sum2", "symmetric"])
def test_a_route_of_ones_choice(mini: Any, ranks: Any, name: str, kind: str) -> None:
    comm = ranks(4)
    tensor = values(4, 33)
    plan = plan_named(mini, comm, name, 33, kind)
    out = torch.empty_like(tensor)
    if kind == "symmetric":
        (view,) = mini.acquire_outputs([(33,)], torch.bfloat16, comm=comm)
        view.copy_(tensor)
    given = {"staged": [tensor], "sum2": [tensor, tensor], "symmetric": []}[kind]
    plan(given, [out])
    assert equal(out, expected(tensor + tensor if kind == "sum2" else tensor))


def test_an_error_gives_acquired_inputs_back_and_reset_forgets_them(mini: Any, ranks: Any) -> None:
    """Else ranks that fail at different calls would take different slots, and add what nobody wrote."""
    comm = ranks(2)
    (view,) = mini.acquire_outputs([(8,)], torch.float16, comm=comm)
    record(comm.channel("mini"), 0, 1, 0, 1, 0, 7, 5, 1)
    comm.channel("mini")._checked -= 1
    with pytest.raises(PeerTimeout):
        mini.all_reduce_symmetric([view], comm=comm)
    comm.reset()
    held = [mini.acquire_outputs([(8,)], torch.float16, comm=comm)[0] for _ in range(2)]
    assert held[0].data_ptr() == view.data_ptr()
    comm.reset()
    again = mini.acquire_outputs([(8,)], torch.float16, comm=comm)[0]
    assert again.data_ptr() == view.data_ptr()
    again.fill_(1)
    assert mini.all_reduce_symmetric([again], comm=comm)[0].tolist() == [[2.0] * 8] * 2


def test_a_closed_communicator_falls_back_for_sizes_it_has_served_too(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    tensor = values(2, 8)
    mini.all_reduce(tensor, comm=comm)
    assert mini.all_reduce.explain(tensor, comm=comm).chosen == "tagged"
    plan = plan_named(mini, comm, "one", 8)
    comm.close()
    assert mini.all_reduce.explain(tensor, comm=comm).chosen == "reference"
    calls = mini.stats().dispatches["bf16-w56-b4to2048-tp2", "tagged"]
    assert equal(mini.all_reduce(tensor, comm=comm), expected(tensor))
    with pytest.raises(ChannelError, match="channel mini is closed; make a new communicator"):
        plan([tensor], [torch.empty_like(tensor)])
    assert mini.stats().dispatches["bf16-w56-b4to2048-tp2", "tagged"] == calls


def test_by_default_the_first_channel_that_holds_the_payload() -> None:
    from kernwright.generated import dispatch

    comm = EmulatedCommunicator(dispatch.DISPATCH.table, 2, specs=["all_reduce_3584_7168", "all_reduce_7168"])
    small, large = comm.channel("all_reduce_3584_7168"), comm.channel("all_reduce_7168")
    for numel, channel in ((8, small), (2_000_000, large)):
        (view,) = dispatch.acquire_outputs([(numel,)], torch.bfloat16, comm=comm)
        begin = view[0].data_ptr() - channel.addresses[0]
        assert begin == channel.plan.offsets["inputs"]


def test_a_channel_of_another_family_has_no_inputs_to_acquire() -> None:
    from kernwright.generated import dispatch

    comm = EmulatedCommunicator(dispatch.DISPATCH.table, 2, specs=["all_reduce_7168", "qwen38_flash_tp2"])
    with pytest.raises(
        ValueError, match="channel is 'qwen38_flash_tp2'; open ones with inputs to acquire are all_re"
    ):
        dispatch.acquire_outputs([(8,)], torch.bfloat16, comm=comm, channel="qwen38_flash_tp2")
    alone = EmulatedCommunicator(dispatch.DISPATCH.table, 2, specs=["qwen38_flash_tp2"])
    (ordinary,) = dispatch.acquire_outputs([(8,)], torch.bfloat16, comm=alone)
    assert ordinary.shape == (2, 8)


def test_forgetting_what_was_decided_keeps_acquired_inputs(mini: Any, ranks: Any) -> None:
    comm = ranks(2)
    (acquired,) = mini.acquire_outputs([(8,)], torch.float32, comm=comm)
    tensor = values(2, 8, dtype=torch.float32)
    first = mini.all_reduce(tensor, comm=comm)
    known = mini.all_reduce._of[comm]
    assert known.resolved
    mini.DISPATCH.forget()
    assert not known.resolved
    acquired.copy_(tensor)
    assert equal(mini.all_reduce_symmetric((acquired,), comm=comm)[0], first)
