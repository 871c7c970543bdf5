"""Installing on other people's layers: what is recognised, what is left alone, and who else calls a routed layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernwright.families.linear_all_reduce.overlap.recognise import Recognised, recognise
from kernwright.families.linear_all_reduce.overlap.routed import RoutedForward
from kernwright.families.linear_all_reduce.overlap.trial import Statement, allowed, objections

from . import engines

CPU = torch.device("cpu")
METHOD = "served are vllm.model_executor.layers.linear.UnquantizedLinearMethod"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks over Gloo found."""
    folder = tmp_path_factory.mktemp("install")
    worker = Path(__file__).with_name("install_worker.py")
    results = [folder / f"rank{rank}.json" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(folder / "store"), str(result)],
            env=os.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, result in enumerate(results)
    ]
    said = [process.communicate(timeout=200)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    return [json.loads(result.read_text()) for result in results]


def test_only_layers_that_are_recognised_exactly_are_routed_on_all_ranks_alike(found):
    assert found[0] == found[1]
    assert found[0]["routed"] == [
        "vllm",
        "vllm_alone",
        "vllm_bf16",
        "sglang",
        "plain",
        "plain_square",
        "as_served",
    ]
    reasons = {
        "vllm_bias": "it has a bias, which serving engines add in different ways",
        "vllm_fp8": "its quantisation method is vllm.model_executor.layers.quantization.fp8.Fp8LinearMethod; served",
        "vllm_lora.base_layer": "it is the base_layer of a engines.VllmRowParallelWithLora, which may multiply",
        "sglang_flagged": "its forward reads should_skip_mlp_all_reduce, which may decide what it reduces",
        "sglang_lora": "it has no bias, input_is_parallel, tp_rank, tp_size; a row-parallel layer states",
        "sglang_lora.base_layer": "it is the base_layer of a sglang.srt.lora.layers.SglangRowParallelWithLora",
        "transposed": "a routed call is 1.",
        "averaging": "a routed call is 1 away from its own result, relative L2; allowed is 0.001",
        "fails": "its check failed: RuntimeError: no forward context for 2 dimensions",
        "pairs": "it gives a tuple, and the operator a Tensor",
        "raises": "rank 0: it can't be examined: RuntimeError: not loaded yet",
        "unstated": "it has no tp_rank; a row-parallel layer states",
        "elsewhere": "rank 0: its rank is 1, and 0 in the communicator",
        "one_sided": "rank 1: it doesn't reduce its own result",
    }
    assert list(found[0]["skipped"]) == list(reasons)
    for name, reason in reasons.items():
        assert found[0]["skipped"][name].startswith(reason), name
    assert found[0]["report"][0].startswith("+ vllm: forced: SliceSchedule(route='sliced_nccl'")


def test_every_layer_gives_what_it_gave_and_no_attribute_changes(found):
    """LoRA wrappers, pairs, single tensors, plain modules, and layers that are left alone."""
    for rank in found:
        assert rank["differ"] == []
        assert rank["changed attributes"] == []
        assert rank["wrapped later"]


def test_options_of_a_call_are_for_the_layer_itself(found):
    """`skip_all_reduce=True`, by name or position, and a tensor by name; `skip_all_reduce=False` is routed."""
    assert [rank["options"] for rank in found] == [[True, True, False, False, False, True]] * 2


def test_a_layer_that_changes_later(found):
    """A reloaded weight is used; one of another dtype, or a layer that stops reducing, isn't routed."""
    for rank in found:
        assert rank["reload"] == [True, False, True]
        assert rank["stops reducing"] == [False, True]


def test_copies_and_pickles_compute_by_themselves(found):
    """With their own weights, not the original's; and they may be routed in turn."""
    for rank in found:
        assert rank["copy"] == [False, True, "method"]
        assert rank["pickle"] == [False, True, ["weight"]]
        assert rank["copies may be routed"] == [["twin"], True, True]


def test_grad_and_autocast_are_for_the_layer_itself(found):
    for rank in found:
        assert rank["autocast"] == [False, "torch.bfloat16"]
        assert rank["grad"] == [False, True]


def test_two_threads_on_one_stream(found):
    assert [rank["threads"] for rank in found] == [True, True]


def test_uninstalling_restores_exactly(found):
    """Also where other code has wrapped the routed forward since: it wraps the layer's own from then on."""
    for rank in found:
        assert (rank["left"], rank["back"]) == ([], [])
        assert rank["wrapped by others"] == [False, True]
        assert rank["double"] == "its forward is already replaced, by an installation or by other code"


def test_without_a_check_only_known_classes_are_routed(found):
    for rank in found:
        routed, reason = rank["unchecked"]
        assert routed == ["vllm", "vllm_alone", "vllm_bf16", "sglang"]
        assert reason == "its class engines.Plain isn't known, so only a check can tell what it computes"


def test_what_is_forced_and_serves_nothing_is_refused_at_install(found):
    for rank in found:
        name, schedule = rank["unserved"]
        assert name == "no candidate 'no_such' serves its shape on cpu; the table has none"
        assert "a schedule by itself has neither kernels nor a channel" in schedule


def plain(**changes):
    layer = engines.Plain(24, 16, 0)
    for name, value in changes.items():
        setattr(layer, name, value)
    return layer


class Wrapping(torch.nn.Parameter):
    """A weight that computes in its own way, as torchao's: its dtype says nothing."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


class Two(engines.Plain):
    """Takes two tensors."""

    def forward(self, x, residual):
        return super().forward(x) + residual


class Anything(engines.Plain):
    """Takes anything."""

    def forward(self, *given, **named):
        return super().forward(*given, **named)


class Derived(engines.VllmRowParallel):
    """A class of an engine's that isn't known, as vLLM's PCPOProjRowParallelLinear."""

    __module__, __qualname__ = engines.VLLM, "Derived"


class Inner(engines.Plain):
    """Holds another module."""

    def __init__(self):
        super().__init__(24, 16, 0)
        self.act = torch.nn.GELU()


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (plain(tp_size=4), "it is shared by 4 ranks; the communicator has 2, and one rank reduces nothing"),
        (plain(tp_rank=1), "its rank is 1, and 0 in the communicator"),
        (plain(input_is_parallel=False), "it splits its input itself"),
        (plain(quant_method=engines.VllmFp8()), f"its class is {engines.__name__}.Plain; known ones that"),
        (plain(output_size=16), "its weight is [24, 16] and not [16, 16]: it is stored in another form"),
        (plain(input_size_per_partition=8), "its weight is [24, 16] and not [24, 8]"),
        (
            plain(weight=torch.nn.Parameter(torch.zeros(16, 24).t())),
            "its weight [24, 16] has strides (1, 24)",
        ),
        (
            plain(weight=torch.nn.Parameter(torch.zeros(24, 16, device="meta"))),
            "its weight is on meta, and the",
        ),
        (
            plain(weight=torch.nn.Parameter(torch.zeros(24, 16).to(torch.float8_e4m3fn), False)),
            "its FP8 weight has",
        ),
        (
            plain(weight=torch.nn.Parameter(torch.zeros(24, dtype=torch.int8), False)),
            "its weight is torch.int8",
        ),
        (
            plain(weight=torch.Tensor._make_subclass(Wrapping, torch.zeros(24, 16))),
            "its weight is a Wrapp",
        ),
        (plain(forward=lambda x: x), "its forward is already replaced"),
        (Two(24, 16, 0), "its forward must take one tensor"),
        (Anything(24, 16, 0), "its forward must take one tensor"),
        (Inner(), "it contains other modules"),
        (
            Derived(24, 16, engines.VllmUnquantized(), 0),
            "its class is vllm.model_executor.layers.linear.Derived",
        ),
    ],
    ids=lambda value: None if isinstance(value, torch.nn.Module) else value[:30],
)
def test_what_is_left_alone(layer, reason):
    found = recognise(layer, 0, 2, CPU)
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_a_promise_of_the_engine_that_no_schedule_keeps(monkeypatch):
    layer = engines.VllmRowParallel(24, 16, engines.VllmUnquantized(), 0)
    assert recognise(layer, 0, 2, CPU) == Recognised("none", True, True)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert recognise(layer, 0, 2, CPU) == "VLLM_BATCH_INVARIANT is set, and no schedule keeps that promise"


def test_a_decorated_forward_of_an_engine_is_left_alone():
    """Its own code reads nothing; the function that it closes over does."""

    def twice(forward):
        def decorated(self, input_):
            output, bias = forward(self, input_)
            return output + output, bias

        return decorated

    names = {"__module__": engines.VLLM, "__qualname__": "RowParallelLinear"}
    body = {**names, "forward": twice(engines.VllmRowParallel.forward)}
    kind = type("RowParallelLinear", (engines.VllmRowParallel,), body)
    found = recognise(kind(24, 16, engines.VllmUnquantized(), 0), 0, 2, CPU)
    assert found == "its forward reads forward, which may decide what it reduces"


def test_a_layer_whose_weight_has_gone_computes_by_itself():
    """As where a method repacks it after the installation."""
    layer = engines.VllmRowParallel(24, 16, engines.VllmUnquantized(), 0)
    routed = RoutedForward(layer, recognise(layer, 0, 2, CPU), "a group")
    x = torch.zeros(2, 16)
    assert routed.serves(x.to(layer.weight.dtype)) == (not layer.weight.requires_grad)
    del layer.weight
    assert not routed.serves(x)


def test_of_two_threads_that_install_one_takes_the_layer():
    layer = plain()
    seen = recognise(layer, 0, 2, CPU)
    first, second = RoutedForward(layer, seen, "a group"), RoutedForward(layer, seen, "a group")
    assert (first.enter(), second.enter()) == (True, False)
    second.leave()
    assert layer.forward is first
    first.leave()
    assert "forward" not in vars(layer)


def test_ranks_that_differ_leave_a_layer_alone():
    alike, other = Statement(None, "one"), Statement(None, "another")
    assert objections([{"a": alike}, {"a": alike}]) == {}
    assert objections([{"a": alike}, {"a": other}]) == {
        "a": "the ranks would route it differently: rank 0: one; rank 1: another"
    }
    assert objections([{"a": alike}, {}]) == {"a": "rank 1: it has no such layer"}


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_check_tells_roundings_from_what_is_wrong(dtype, ranks):
    """Sums that round every addition pass; results that aren't reduced, or reduced twice, don't."""
    generator = torch.Generator().manual_seed(ranks)
    parts = [torch.randn(64, 512, generator=generator, dtype=torch.float64) for _ in range(ranks)]
    ours = sum(part.to(dtype).float() for part in parts).to(dtype).double()
    own = parts[0].to(dtype)
    for part in parts[1:]:
        own = own + part.to(dtype)
    most = allowed(dtype, ranks, scaled=True)
    assert (own.double() - ours).norm() / own.double().norm() < allowed(dtype, ranks, scaled=False)
    assert most < 0.13
    assert (own.double() - parts[0]).norm() / own.double().norm() > 0.5
