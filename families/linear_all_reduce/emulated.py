"""The kernels of a row-parallel linear on the emulator, as the run-time's own reductions ask for them.

GEMMs are a library's, so their results are given; a copy engine is a kernel of one thread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...emulator import Argument, DeviceBuffer, EmulatedLaunch, Object, compile_text
from ...table import ITEM_BYTES, Kernel
from .overlap.pipeline import run
from .overlap.reductions import CopyReduction, KernelReduction
from .overlap.rows import WORD, Additions, Slice, words_of

if TYPE_CHECKING:
    import torch

COPY = """extern "C" __global__ void copy(const unsigned char* source, unsigned long long from, unsigned char* target,
                                unsigned long long to, unsigned int numel) {
  const unsigned short* const elements = reinterpret_cast<const unsigned short*>(source + from);
  unsigned short* const copies = reinterpret_cast<unsigned short*>(target + to);
  for (unsigned int i = 0; i < numel; ++i) copies[i] = elements[i];
}
"""
"""What a GEMM does to the channel, and a copy engine to anybody's memory."""
TIMEOUT_NS = 30_000_000_000
SCALARS: Mapping[str, type[np.generic]] = {
    "numel": np.uint32,
    "at": np.uint64,
    "stride": np.uint64,
    "begin_at": np.uint64,
}


@functools.cache
def _copy_kernel() -> Object:
    return compile_text(COPY, "copy.cu")


class EmulatedRanks:
    """Ranks of one channel; calls append launches. One stream a rank: the emulator knows no events."""

    def __init__(
        self, dtype: str, channels: Sequence[NDArray[np.uint8]], partials_at: int, scratch_bytes: int
    ) -> None:
        """Take what is in the channels before the first call.

        Args:
            dtype: of partial sums and results.
            channels: of each rank.
            partials_at: where partial sums begin in a channel, bytes.
            scratch_bytes: room for what one slice fetches; a rank has two, which take turns.
        """
        self.dtype, self.partials_at = dtype, partials_at
        self.launches: list[EmulatedLaunch] = []
        self.channels = [
            DeviceBuffer.inout("channel", memory, rank=rank) for rank, memory in enumerate(channels)
        ]
        scratch = np.zeros(scratch_bytes, np.uint8)
        self.fetched = [
            [DeviceBuffer.inout("fetched", scratch, rank=rank) for _ in range(2)]
            for rank in range(len(channels))
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
            kernels: of the candidate, by name.
            options: of the candidate.
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


class _OneStream:
    """A stream of a rank: all of them are one, in the order in which things are enqueued."""

    def record(self, _event: object) -> None: ...

    def wait(self, _event: object) -> None: ...

    def enqueue(self) -> AbstractContextManager[None]:
        return nullcontext()


class _Lanes:
    """Two lanes, so that the pipeline takes the order in which it overlaps."""

    def __init__(self) -> None:
        self.main, self.side = _OneStream(), _OneStream()

    def events(self, count: int) -> list[None]:
        return [None] * count


class _EmulatedRank:
    """One rank's launches; memory is known by addresses, as the reductions have them."""

    def __init__(
        self,
        group: EmulatedRanks,
        kernel: Object,
        kernels: Mapping[str, Kernel],
        rank: int,
        result: DeviceBuffer,
    ) -> None:
        import torch

        self.group, self.kernel, self.kernels, self.rank = group, kernel, kernels, rank
        self.addresses = tuple((peer + 1) << 40 for peer in range(len(group.channels)))
        self.result = torch.empty((result.array.size, 1), dtype=getattr(torch, group.dtype))
        self.buffers = [(address, group.channels[peer]) for peer, address in enumerate(self.addresses)]
        self.buffers.append((self.result.data_ptr(), result))
        self.memory: torch.Tensor = torch.empty(0)

    def call(self, options: Mapping[str, Any], partial: NDArray[np.uint16], numels: Sequence[int]) -> None:
        element = ITEM_BYTES[self.group.dtype]
        at, slices = 0, list[Slice]()
        for begin, end in pairwise((0, *accumulate(numels))):
            slices.append(Slice(len(slices), begin, end, at))
            self.produce(partial[begin:end], at)
            at += words_of(element * (end - begin)) * WORD
        additions: Additions = options.get("additions", "side")
        run(slices, _Lanes(), lambda _: None, self.reduction(tuple(slices), options.get("stages")), additions)

    def reduction(self, slices: tuple[Slice, ...], stages: int | None) -> KernelReduction | CopyReduction:
        import torch

        at = self.group.partials_at
        if stages is None:
            return KernelReduction(self, at, self.result, self.launch)
        size = CopyReduction.fetched_bytes(
            slices, 1, ITEM_BYTES[self.group.dtype], len(self.addresses), stages
        )
        self.fetched = torch.empty(size, dtype=torch.uint8)  # addresses only; nobody writes to it
        turns = (self.fetched.data_ptr(), self.fetched.data_ptr() + size // 2)
        self.buffers += zip(turns, self.group.fetched[self.rank], strict=True)
        return CopyReduction(self, at, self.result, stages, self.fetched, self.launch, self.copy)

    def produce(self, bits: NDArray[np.uint16], at: int) -> None:
        """The GEMM of a slice."""
        source = DeviceBuffer("partial", bits, "in", self.rank, self.group.dtype)
        self.move(source, 0, self.group.channels[self.rank], self.group.partials_at + at, bits.nbytes)

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
        self.group.launches.append(EmulatedLaunch(_copy_kernel(), "copy", one, one, args, rank=self.rank))

    def launch(self, kernel: str, **given: int) -> None:
        """See `reductions.RankLaunch`."""
        launch = self.kernels[kernel]
        arguments: dict[str, Argument] = {
            "channels": tuple(self.group.channels),
            "rank_base": np.uint32(self.rank),
            "timeout_ns": np.uint64(TIMEOUT_NS),
        }
        for name, value in given.items():
            arguments[name] = SCALARS[name](value) if name in SCALARS else self.buffer(value)[0]
        args = tuple(arguments[name] for name in launch.args)
        self.group.launches.append(
            EmulatedLaunch(self.kernel, launch.symbol, launch.grid, launch.block, args, rank=self.rank)
        )
