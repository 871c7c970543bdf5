"""A case of the evidence as launches on the emulator: rows are quantised, then partial sums reduced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...emulator import DeviceBuffer, EmulatedLaunch, Program, compile_text
from ...evidence.emulated import EmulatedCase
from ...evidence.family_evidence import Case, ChannelEvidence
from ...evidence.tensors import as_torch, bits_of
from ...runtime.loader import source_text
from ...table import ITEM_BYTES, Candidate, Workload
from ..all_reduce.oracle import all_reduce
from .emulated import EmulatedRanks
from .oracle import quantise_rows
from .overlap.reductions import CopyReduction
from .overlap.rows import WORD, SliceSchedule

if TYPE_CHECKING:
    import torch

REDUCING = ("reduce", "add")
"""Kernels that a candidate has which reduces by kernels of ours."""


def emulated_case(
    evidence: ChannelEvidence,
    root: Path,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    case: Case,
    partials: NDArray[np.uint16],
    x: torch.Tensor | None,
) -> EmulatedCase:
    """All kernels of a candidate, with the right bits of codes, scales and results.

    Args:
        evidence: says what is in the channel.
        root: folder of the dispatch module.
        partials: [ranks, elements], of all rows; a GEMM would write them.
        x: [ranks, M, K], if it is quantised.
    """
    text = compile_text(source_text(root, candidate.builds[arch]), Path(candidate.builds[arch].source).name)
    inputs: dict[str, torch.Tensor] = {}
    buffers: dict[str, tuple[DeviceBuffer, ...]] = {}
    expected: dict[DeviceBuffer, Any] = {}
    launches: list[EmulatedLaunch] = []
    if "quantise" in candidate.kernels:
        assert x is not None
        inputs["x"] = x
        bits = bits_of(inputs)["x"]
        for rank, rows in enumerate(bits):
            launch, stored = _quantise(text, workload, candidate, rows, rank)
            launches.append(launch)
            expected |= stored
        for name in ("codes", "scales"):
            buffers[name] = tuple(buffer for buffer in expected if buffer.name == name)
    if any(name in candidate.kernels for name in REDUCING):
        dtype = str(workload.fields["dtype"])
        group, slices = _ranks(evidence, workload, candidate, case, partials)
        results = group.call(text, candidate.kernels, candidate.options, partials, slices)
        answer = all_reduce(list(partials), dtype)
        expected |= dict.fromkeys(results, answer)
        buffers["result"] = tuple(results)
        launches += group.launches
        inputs["partials"] = as_torch(partials, dtype, _cpu())
    return EmulatedCase(Program(tuple(launches), buffers, ("result",)), expected, inputs)


def _ranks(
    evidence: ChannelEvidence,
    workload: Workload,
    candidate: Candidate,
    case: Case,
    partials: NDArray[np.uint16],
) -> tuple[EmulatedRanks, list[int]]:
    """The ranks with their channels, no longer than the call needs, and the elements of its slices."""
    ranks, width = len(partials), int(str(workload.fields["width"]))
    dtype, offsets = str(workload.fields["dtype"]), workload.channel
    element = ITEM_BYTES[dtype]
    schedule = SliceSchedule(candidate.route, tuple(candidate.options.get("slices", (1,))))  # in any row
    slices = schedule.slices(partials.shape[1] // width, width * element)
    room = sum(WORD + (part.end - part.begin) * width * element for part in slices)
    memory = np.zeros((ranks, (offsets["partials"] + room) // WORD * WORD), np.uint8)
    call = evidence.call_before(case)
    if call is not None:
        evidence.after_call(workload, call, memory.view(np.int32))
    stages = candidate.options.get("stages")
    fetched = (
        2 * WORD if stages is None else CopyReduction.fetched_bytes(slices, width, element, ranks, stages)
    )
    group = EmulatedRanks(dtype, list(memory), offsets["partials"], fetched // 2)
    return group, [(part.end - part.begin) * width for part in slices]


def _quantise(
    text: Any, workload: Workload, candidate: Candidate, rows: NDArray[np.uint16], rank: int
) -> tuple[EmulatedLaunch, dict[DeviceBuffer, Any]]:
    """The quantisation of a rank's rows, and what it must store."""
    nonfinite: Any = workload.fields["nonfinite"]
    dtype = str(workload.fields["dtype"])
    codes, scales = quantise_rows(rows, dtype, nonfinite)
    x = DeviceBuffer("x", np.ascontiguousarray(rows), "in", rank, dtype)
    stored = (
        DeviceBuffer.output("codes", codes.shape, "uint8", rank),
        DeviceBuffer.output("scales", scales.shape, "float32", rank),
    )
    kernel = candidate.kernels["quantise"]
    grid = (min(kernel.grid[0], len(rows)), 1, 1)  # CTAs beyond the rows do nothing
    args = (x, *stored, np.uint32(len(rows)))
    launch = EmulatedLaunch(text, kernel.symbol, grid, kernel.block, args, rank=rank)
    return launch, dict(zip(stored, (codes, scales), strict=True))


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")
