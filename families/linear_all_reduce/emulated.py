"""The kernels of a row-parallel linear on the emulator, as the run-time's own reductions ask for them.

GEMMs are a library's, so their results are given; a copy engine is a kernel of one thread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...emulator import Argument, DeviceBuffer, EmulatedLaunch, Object, Program, compile_text
from ...evidence.emulated import EmulatedCase
from ...evidence.family_evidence import Case, ChannelEvidence
from ...evidence.tensors import as_torch
from ...runtime.loader import source_text
from ...table import ITEM_BYTES, Candidate, Kernel, Workload
from ..all_reduce.oracle import all_reduce
from ..all_reduce.payloads import payloads
from .inputs import activations
from .oracle import quantise_rows
from .overlap.lanes import Lanes, Stream
from .overlap.pipeline import run
from .overlap.reductions import ChannelPartials, CopyReduction, KernelReduction
from .overlap.rows import WORD, Slice, SliceSchedule, words_of

ROWS = 6
"""Kernels of ours count elements, so the emulator takes the slices of a few rows."""
REDUCING = ("reduce", "add")
"""Kernels that a candidate has which reduces by kernels of ours."""
COPY = """extern "C" __global__ void copy(const unsigned char* source, unsigned long long from, unsigned char* target,
                                unsigned long long to, unsigned int numel) {
  const unsigned short* const elements = reinterpret_cast<const unsigned short*>(source + from);
  unsigned short* const copies = reinterpret_cast<unsigned short*>(target + to);
  for (unsigned int i = 0; i < numel; ++i) copies[i] = elements[i];
}
"""
"""What a GEMM does to the channel, and a copy engine to anybody's memory."""
TIMEOUT_NS = 30_000_000_000
WIDE = ("at", "stride", "begin_at")
"""Scalars of 64 bits."""


@functools.cache
def _copy_kernel() -> Object:
    return compile_text(COPY, "copy.cu")


class EmulatedRanks:
    """Ranks of one channel; calls append launches. One stream a rank: the emulator knows no events."""

    def __init__(self, dtype: str, channels: Sequence[NDArray[np.uint8]], partials_at: int) -> None:
        """Take the dtype of results, the ranks' channels before the first call, and where partial sums begin."""
        self.dtype, self.partials_at = dtype, partials_at
        self.launches: list[EmulatedLaunch] = []
        self.channels = [
            DeviceBuffer.inout("channel", memory, rank=rank) for rank, memory in enumerate(channels)
        ]

    def call(
        self,
        kernel: Object,
        kernels: Mapping[str, Kernel],
        options: Mapping[str, Any],
        partials: NDArray[np.uint16],
        slices: Sequence[int],
        skip: Sequence[int] = (),
    ) -> list[DeviceBuffer]:
        """One call on all ranks but `skip`; gives the ranks' results.

        Args:
            kernel: the candidate's text, compiled.
            kernels, options: of the candidate.
            partials: [ranks, elements], what the ranks' GEMMs compute.
            slices: elements of each slice.
            skip: ranks that stay away.
        """
        number, total = len(self.launches), sum(slices)
        results = [
            DeviceBuffer(f"result{number}", np.zeros(total, np.uint16), "out", rank, self.dtype)
            for rank in range(len(self.channels))
        ]
        for rank, result in enumerate(results):
            if rank not in skip:
                _EmulatedRank(self, kernel, kernels, rank, result).call(options, partials[rank], slices)
        return results


class _TwoLanes(Lanes):
    """In the order in which things are enqueued, but two, so that the pipeline overlaps them."""

    main = Stream()


class _EmulatedRank:
    """One rank's channel and kernels, as the reductions have them; memory is known by addresses."""

    def __init__(
        self,
        group: EmulatedRanks,
        kernel: Object,
        kernels: Mapping[str, Kernel],
        rank: int,
        result: DeviceBuffer,
    ) -> None:
        self.group, self.kernel, self.kernels, self.first = group, kernel, kernels, rank
        self.addresses = tuple((peer + 1) << 40 for peer in range(len(group.channels)))
        self.memory = torch.empty(1, 0)  # nothing writes to it, nor to the next: only addresses count
        self.result = torch.empty((result.array.size, 1), dtype=getattr(torch, group.dtype))
        self.buffers = [*zip(self.addresses, group.channels, strict=True), (self.result.data_ptr(), result)]

    def call(self, options: Mapping[str, Any], partial: NDArray[np.uint16], numels: Sequence[int]) -> None:
        at, slices = 0, list[Slice]()
        for begin, end in pairwise((0, *accumulate(numels))):
            slices.append(Slice(len(slices), begin, end, at))
            at += words_of(partial[begin:end].nbytes) * WORD

        def multiply(part: Slice) -> None:
            source = DeviceBuffer(
                "partial", partial[part.begin : part.end], "in", self.first, self.group.dtype
            )
            channel, to = self.group.channels[self.first], self.group.partials_at + part.at
            self.move(source, 0, channel, to, source.array.nbytes)

        reduction = self.reduction(tuple(slices), options.get("stages"))
        run(slices, _TwoLanes(), multiply, reduction, options.get("additions", "side"))

    def reduction(self, slices: tuple[Slice, ...], stages: int | None) -> ChannelPartials:
        rank: Any = self
        where = (rank, self.group.partials_at, self.result, rank)
        if stages is None:
            return KernelReduction(*where)
        element = self.result.element_size()
        size = CopyReduction.fetched_bytes(slices, 1, element, len(self.addresses), stages)
        self.fetched = torch.empty(size, dtype=torch.uint8)
        for turn in range(2):
            half = DeviceBuffer.inout("fetched", np.zeros(size // 2, np.uint8), rank=self.first)
            self.buffers.append((self.fetched.data_ptr() + turn * (size // 2), half))
        return CopyReduction(*where, stages, self.fetched)

    def copy(self, target: int, source: int, size: int) -> None:
        """What a copy engine does."""
        self.move(*self.buffer(source), *self.buffer(target), size)

    def buffer(self, address: int) -> tuple[DeviceBuffer, int]:
        """The buffer that an address lies in, and where."""
        begin, buffer = max(entry for entry in self.buffers if entry[0] <= address)
        assert address - begin < buffer.array.nbytes
        return buffer, address - begin

    def move(self, source: DeviceBuffer, from_: int, target: DeviceBuffer, to: int, size: int) -> None:
        args = (source, np.uint64(from_), target, np.uint64(to), np.uint32(size // 2))
        one = (1, 1, 1)
        self.group.launches.append(EmulatedLaunch(_copy_kernel(), "copy", one, one, args, rank=self.first))

    def __call__(self, kernel: str, **given: int) -> None:
        """Launch a kernel, as `overlap.kernels.Kernels`."""
        launch = self.kernels[kernel]
        arguments: dict[str, Argument] = {
            "channels": tuple(self.group.channels),
            "rank_base": np.uint32(self.first),
            "timeout_ns": np.uint64(TIMEOUT_NS),
        }
        for name, value in given.items():
            if name == "numel":
                arguments[name] = np.uint32(value)
            else:
                arguments[name] = np.uint64(value) if name in WIDE else self.buffer(value)[0]
        args = tuple(arguments[name] for name in launch.args)
        self.group.launches.append(
            EmulatedLaunch(self.kernel, launch.symbol, launch.grid, launch.block, args, rank=self.first)
        )


def emulated_case(
    evidence: ChannelEvidence,
    root: Path,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    case: Case,
    values: str,
) -> EmulatedCase:
    """All kernels of a candidate, for a few rows, with the right bits of codes, scales and results.

    Args:
        evidence: says what is in the channel.
        root: folder of the dispatch module.
        values: of the activations that are quantised; partial sums, which a GEMM would write, are of every kind.
    """
    build, fields = candidate.builds[arch], workload.fields
    text = compile_text(source_text(root, build), Path(build.source).name)
    dtype, nonfinite = str(fields["dtype"]), fields["nonfinite"]
    assert case.at is not None
    m = min(ROWS, case.at)
    ranks, width, k = (int(str(fields[name])) for name in ("world_size", "width", "k"))
    inputs: dict[str, torch.Tensor] = {}
    buffers: dict[str, tuple[DeviceBuffer, ...]] = {}
    expected: dict[DeviceBuffer, Any] = {}
    launches: list[EmulatedLaunch] = []
    if "quantise" in candidate.kernels:
        bits = activations(dtype, values, case.seed, ranks, m, k)
        inputs["x"] = as_torch(bits, dtype, torch.device("cpu"))
        for rank, rows in enumerate(bits):
            stored = quantise_rows(rows, dtype, nonfinite)  # type: ignore[arg-type]
            launch, written = _quantise(text, candidate.kernels["quantise"], rows, dtype, rank, stored)
            launches.append(launch)
            expected |= zip(written, stored, strict=True)
        for name in ("codes", "scales"):
            buffers[name] = tuple(buffer for buffer in expected if buffer.name == name)
    if any(name in candidate.kernels for name in REDUCING):
        partials = payloads(dtype, "mixed", case.seed, ranks, m * width)
        schedule = SliceSchedule.of(candidate.route, {**candidate.options, "align": 1})  # in any row
        slices = schedule.slices(m, width * ITEM_BYTES[dtype])
        group = EmulatedRanks(dtype, _channels(evidence, workload, case, slices), schedule.partials_at)
        numels = [(part.end - part.begin) * width for part in slices]
        results = group.call(text, candidate.kernels, candidate.options, partials, numels)
        expected |= dict.fromkeys(results, all_reduce(list(partials), dtype))
        buffers["result"] = tuple(results)
        launches += group.launches
        inputs["partials"] = as_torch(partials, dtype, torch.device("cpu"))
    return EmulatedCase(Program(tuple(launches), buffers, ("result",)), expected, inputs)


def _channels(
    evidence: ChannelEvidence, workload: Workload, case: Case, slices: Sequence[Slice]
) -> list[NDArray[np.uint8]]:
    """The ranks' memory before the call, no longer than it needs."""
    fields, last = workload.fields, slices[-1]
    row = int(str(fields["width"])) * ITEM_BYTES[str(fields["dtype"])]
    room = last.at + words_of((last.end - last.begin) * row) * WORD
    memory = np.zeros((int(str(fields["world_size"])), workload.channel["partials"] + room), np.uint8)
    call = evidence.call_before(case)
    if call is not None:
        evidence.after_call(workload, call, memory.view(np.int32))
    return list(memory)


def _quantise(
    text: Object,
    kernel: Kernel,
    rows: NDArray[np.uint16],
    dtype: str,
    rank: int,
    stored: tuple[NDArray[Any], NDArray[Any]],
) -> tuple[EmulatedLaunch, tuple[DeviceBuffer, DeviceBuffer]]:
    """The quantisation of a rank's rows, and the buffers of codes and scales that it must store."""
    x = DeviceBuffer("x", np.ascontiguousarray(rows), "in", rank, dtype)
    codes = DeviceBuffer.output("codes", stored[0].shape, "uint8", rank)
    scales = DeviceBuffer.output("scales", stored[1].shape, "float32", rank)
    grid = (min(kernel.grid[0], len(rows)), 1, 1)  # CTAs beyond the rows do nothing
    args = (x, codes, scales, np.uint32(len(rows)))
    launch = EmulatedLaunch(text, kernel.symbol, grid, kernel.block, args, rank=rank)
    return launch, (codes, scales)
