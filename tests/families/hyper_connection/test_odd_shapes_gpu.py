"""Generated on the GPU machine itself: shapes and schedules that take the templates' rarer branches."""

from __future__ import annotations

import pytest
from harness.bits import mismatches
from kernwright.evidence.explain import load_dispatch
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.runtime.device import current, serves
from kernwright.specs import find_workspace

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def dispatch(odd_root):
    return load_dispatch(find_workspace(odd_root)).DISPATCH


@pytest.mark.parametrize("kind", ["boundary", "first", "combine", "final"])
def test_every_candidate_equals_the_oracle(dispatch, kind, figures):
    import cupy
    import torch

    device = current(torch.device("cuda", 0))
    compared = 0
    for work in dispatch.table.workloads:
        names = ("dtype", "branches", "hidden", "low_rank", "eps", "norm_weight")
        shape = OracleShape(tokens=1, trees=work.trees, **{name: work.fields[name] for name in names})
        dtype = getattr(torch, shape.dtype)
        for seed, inputs in enumerate(INPUT_KINDS):
            bits = tensors(shape, inputs, seed) | weights(shape, seed, kind)
            expected = boundary(shape, bits, kind)
            given = {
                name: torch.from_numpy(value.view("int16")).view(dtype).cuda() for name, value in bits.items()
            }
            for candidate in work.candidates:
                arch = serves(candidate.builds, device.arch)
                plan = dispatch.plan_named(work.label, candidate.name, arch, kind, device)
                buffers = {
                    buffer.name: torch.full(buffer.shape, 0x7E5A, dtype=torch.int16, device="cuda").view(
                        dtype
                    )
                    for buffer in plan.buffers
                }
                buffers |= {buffer.name: given[buffer.name] for buffer in plan.signature.inputs}
                plan.run(buffers)
                for name in buffers.keys() & expected.keys():
                    found = cupy.asnumpy(cupy.from_dlpack(buffers[name].view(torch.int16))).view("uint16")
                    difference = mismatches(found, expected[name], shape.storage)
                    where = f"{work.label}, {candidate.name}, {inputs}, {name}"
                    assert difference.count == 0, f"{where}: {difference.first}"
                    compared += difference.size
    figures[f"values compared with the oracle, odd shapes, {kind}"] = compared
    assert compared > 0
