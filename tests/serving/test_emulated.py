"""All ways to call, with real kernels behind them: small shapes on the emulator, held against the torch reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness.paths import ODD
from harness.workspaces import generated_workspace, load_module
from kernwright.emulator.build import compile_text
from kernwright.emulator.module import EmulatedModule
from kernwright.families.hyper_connection.op import HyperConnection
from kernwright.runtime import Device, dispatch
from kernwright.runtime import op as op_base
from kernwright.runtime.loader import source_text
from kernwright.table import Build


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The dispatch module of small, odd shapes."""
    root = generated_workspace(tmp_path_factory.mktemp("emulated") / "odd_emulated", ODD / "specs")
    return load_module("odd_emulated", root / "generated" / "dispatch.py")


@pytest.fixture
def emulated(odd: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """It, dispatching CPU tensors to kernels on the emulator."""
    loaded: dict[str, EmulatedModule] = {}

    def load(root: Path, build: Build, _arch: str, _device: Device) -> EmulatedModule:
        if build.sha256 not in loaded:
            loaded[build.sha256] = EmulatedModule(compile_text(source_text(root, build), "kernel.cu"))
        return loaded[build.sha256]

    monkeypatch.setattr(op_base, "current", lambda _: Device("sm_90", None, "emulator"))
    monkeypatch.setattr(dispatch, "load", load)
    return odd


def arguments(odd: Any, kind: str, seed: int) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    work = next(work for work in odd.TABLE.workloads if work.fields["branches"] == 3)
    fields = {name: value[0] if isinstance(value, tuple) else value for name, value in work.fields.items()}
    signature = odd.hyper_connection.request_for(fields, kind).signature
    generator = torch.Generator().manual_seed(seed)
    made = {
        buffer.name: torch.randn(*buffer.shape, generator=generator).to(getattr(torch, buffer.dtype))
        for buffer in signature.inputs
    }
    options = {"kind": kind, "eps": fields["eps"], "branches": fields["branches"]}
    return [made.get(name) for name in HyperConnection.arguments], options


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_every_way_gives_the_references_bits(emulated: Any, kind: str, same_bits: Any) -> None:
    torch._dynamo.reset()
    op = emulated.hyper_connection
    given, options = arguments(emulated, kind, 0)
    plan = op.plan(*given, **options)
    assert plan.plan is not None
    operator = getattr(emulated.torch_ops(), f"hyper_connection_{kind}").default
    more = {name: value for name, value in options.items() if name != "kind"}
    compiled = torch.compile(lambda *given: op(*given, **options), backend="aot_eager", fullgraph=True)
    dispatched = sum(emulated.stats().dispatches.values())
    for seed in range(3):
        given, _ = arguments(emulated, kind, seed)
        expected = op(*given, **options, policy="reference")
        present = [result for result in expected if result is not None]
        out = tuple(None if result is None else torch.full_like(result, float("nan")) for result in expected)
        assert same_bits(op(*given, **options), expected)
        assert same_bits(plan(*given), expected)
        assert same_bits(plan(*given, out=out), expected)
        assert same_bits(compiled(*given), expected)
        found = operator(*[tensor for tensor in given if tensor is not None], **more)
        assert same_bits([found] if isinstance(found, torch.Tensor) else found, present)
    assert sum(emulated.stats().dispatches.values()) - dispatched == 3 * 5


def test_a_chain_of_boundaries_as_a_decoder_has_it(emulated: Any, same_bits: Any) -> None:
    op = emulated.hyper_connection
    (given, options), chain = arguments(emulated, "boundary", 7), []
    for policy in (None, "reference"):
        residual, block, injection = given[:3]
        for _ in range(4):
            residual, block, injection = op(residual, block, injection, *given[3:], **options, policy=policy)
        chain.append((residual, block, injection))
    assert same_bits(*chain)
