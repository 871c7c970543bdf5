"""torch.compile's caches on the disk: an old graph dispatches by the new verdict; the fingerprint makes a new one."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernwright.runtime.compile_cache import tag_compile_caches

PROGRAM = """
import ctypes, json, os, sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from harness import tables
from kernwright.runtime import Device, dispatch, plan
from kernwright.runtime.compile_cache import tag_compile_caches
from kernwright.runtime import op as op_base

launched = []
class Recorder:
    def launcher(self, kernel):
        return lambda *_: launched.append(kernel.symbol)

op_base.current = lambda _: Device("sm_90", 132, "NVIDIA H200", 0)
dispatch.load = lambda *_: Recorder()
plan.stream_query, plan.device_query = lambda: lambda _: 0, lambda: None
verdict = os.environ["VERDICT"]
work = tables.workload(tables.candidate("control"), tables.candidate("fast"),
                         records=(tables.record("fast", verdict),))
bound = tables.dispatch_of(work, root=Path("/cached/generated"))
if os.environ["TAG"] == "1":
    tag_compile_caches(bound.fingerprint())
op = bound.operators["hyper_connection"]
torch.compile(lambda *tensors: op(*tensors), fullgraph=True)(*tables.tensors())
print(json.dumps({
    "hits": counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"],
    "misses": counters["aot_autograd"]["autograd_cache_miss"] + counters["inductor"]["fxgraph_cache_miss"],
    "launched": launched,
}))
"""

FAST = ["combine_norm_fast", "down_fast", "up_mix_fast"]
CONTROL = ["combine_norm_control", "down_control", "up_mix_control"]


@pytest.fixture
def ran(python: Callable[..., str]) -> Callable[..., Any]:
    """A fresh process that compiles one call; what it found in the caches, and what was launched."""

    def run(verdict: str, *, tag: bool, **environment: str) -> Any:
        return json.loads(python(PROGRAM, VERDICT=verdict, TAG=str(int(tag)), **environment).splitlines()[-1])

    return run


def test_a_cached_graph_dispatches_by_the_verdict_of_today(ran: Callable[..., Any]) -> None:
    first = ran("admitted", tag=False)
    assert (first["hits"], first["launched"]) == (0, FAST)
    assert first["misses"] > 0
    flipped = ran("rejected", tag=False)
    assert flipped["hits"] > 0
    assert flipped["misses"] == 0  # the old graph
    assert flipped["launched"] == CONTROL  # and the new choice
    tagged = ran("rejected", tag=True)
    assert tagged["hits"] == 0
    assert tagged["misses"] == first["misses"]


@pytest.mark.long
def test_a_tagged_cache_compiles_anew_for_another_verdict_or_policy(ran: Callable[..., Any]) -> None:
    first = ran("admitted", tag=True)
    again = ran("admitted", tag=True)
    flipped = ran("rejected", tag=True)
    policy = ran("admitted", tag=True, KERNWRIGHT_POLICY="control")
    untagged = ran("admitted", tag=False, KERNWRIGHT_POLICY="control")
    found = (first, again, flipped, policy, untagged)
    assert [one["hits"] > 0 for one in found] == [False, True, False, False, False]
    assert [one["misses"] > 0 for one in found] == [True, False, True, True, True]
    assert [one["launched"] for one in found] == [FAST, FAST, CONTROL, CONTROL, CONTROL]
    assert ran("rejected", tag=False, KERNWRIGHT_POLICY="control")["misses"] == 0


def test_a_tag_keeps_those_of_others_and_replaces_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler.config, "cache_key_tag", "engine=3")
    assert tag_compile_caches("ab") == "engine=3,kernwright=ab"
    assert tag_compile_caches("cd") == "engine=3,kernwright=cd"
    assert torch.compiler.config.cache_key_tag == "engine=3,kernwright=cd"


def test_without_torchs_setting_the_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "config", SimpleNamespace())
    with pytest.raises(
        RuntimeError, match=r"has no torch.compiler.config.cache_key_tag; update torch, or give"
    ):
        tag_compile_caches("ab")
