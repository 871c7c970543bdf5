"""What `make sanitize` runs under compute-sanitizer: every candidate of small shapes, every kind.

Eager calls only: the allocator's cache is off then, so that every tensor lies alone, and captures need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kernwright.evidence.explain import load_dispatch
from kernwright.runtime.device import current, serves
from kernwright.specs import find_workspace

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def dispatch(odd_root: Path) -> Any:
    """The dispatch module of shapes that take the templates' rarer branches."""
    return load_dispatch(find_workspace(odd_root)).DISPATCH


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_every_candidate(dispatch: Any, kind: str) -> None:
    device = current(torch.device("cuda", 0))
    generator = torch.Generator().manual_seed(1)
    for work in dispatch.table.workloads:
        if work.family != "hyper_connection":
            continue
        for candidate in work.candidates:
            arch = serves(candidate.builds, device.arch)
            if arch is None or candidate.capabilities:
                continue
            plan = dispatch.plan_named(work.name, candidate.name, arch, kind, device)
            given = {
                buffer.name: (torch.randn(*buffer.shape, generator=generator) * 0.1).to(
                    getattr(torch, buffer.dtype)
                )
                for buffer in plan.signature.inputs
            }
            expected = dispatch.reference(work, kind, given)  # on the CPU: only our kernels are looked at
            inputs = [tensor.cuda() for tensor in given.values()]
            for _ in range(2):
                for buffer, result in zip(plan.signature.outputs, plan(inputs), strict=True):
                    found, wanted = result.cpu().view(torch.int16), expected[buffer.name].view(torch.int16)
                    assert torch.equal(found, wanted), f"{work.label}, {candidate.name}, {buffer.name}"
    torch.cuda.synchronize()
