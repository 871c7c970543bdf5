"""Plans: a candidate resolved on a device, so that a call only fills in pointers and launches.

Scratch comes from torch's allocator on every call, as one block. The allocator ties a block to the stream
it was taken on, so two streams or threads never share scratch, and inside a capture it comes from the
graph's own pool; a block kept by the plan would need a lock or one copy per stream to be as safe. It is
freed when the call returns, which is right for the same reason: its next user is later on the same stream.
It never reaches the driver once the allocator's cache holds a block.
State, which kernels keep between calls, is the plan's own, one block for each stream that calls eagerly, and one for
each stream of each capture: graphs that were captured on one stream may be replayed at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from ..table import Buffer, Candidate, CtaRecord, Kernel, laid_out
from . import fork
from .captures import capture_number
from .current import (
    allocator,
    capturing,
    current_device,
    current_stream,
    device_guard,
    device_query,
    stream_query,
)
from .device import Device
from .direct import Serve, direct
from .errors import Misaligned
from .launch import LaunchSequence, Module
from .request import Signature, pointers
from .state import State, StateKind
from .waits import RECORD

if TYPE_CHECKING:
    import torch

    from .communicator.channel import Channel

_captured: list[State] = []
"""State whose address is in a captured graph, which may be replayed long after its plan is gone."""

TIMEOUT_NS = 30_000_000_000
"""How long a kernel's CTAs wait for each other before they give up."""


class Plan:
    """The launches of one kind of an op by one candidate on one device.

    Calling it takes the signature's inputs (contiguous, of its shapes and dtypes, on the plan's device: not
    checked again; that they are aligned is) and gives the signature's outputs, fresh unless `outputs`
    are given. It launches on torch's current stream and doesn't wait. Threads may call it at the same time.
    """

    def __init__(
        self,
        candidate: Candidate,
        arch: str,
        kind: str,
        signature: Signature,
        device: Device,
        module: Module,
        constants: Mapping[str, bytes] | None = None,
        ranks: int = 1,
        channel: Channel | None = None,
        record: CtaRecord = CtaRecord(),  # noqa: B008
    ) -> None:
        """Resolve names to positions.

        Args:
            device: where; without an ordinal it is the emulator's.
            constants: arguments that aren't tensors, as the bytes that kernels take.
            ranks: that share the launches; with several, tensors that kernels take for every rank carry the rank
                as their first dimension, as scratch and state do, and the grids have it along y.
            channel: where the kernels talk to peers: its error record is read periodically, and its calls are
                serialised where the stream changes.
            record: what CTAs that wait for each other leave in the state `record`.

        Raises:
            LoadError: the module lacks a kernel, a kernel takes a buffer that isn't provided, or its CTAs wait
                for each other and don't fit on the device at once.
            ForkedProcess: the process was forked from one that had plans.
        """
        import torch

        if device.index is not None:
            fork.refuse()
            fork.used()
        self.candidate, self.arch, self.kind, self.signature = candidate, arch, kind, signature
        self._index, self._channel = device.index, channel
        self._loose = signature.alignment - 1
        kernels = [_for_ranks(candidate.kernels[name], ranks) for name in candidate.steps[kind]]
        given = (*signature.inputs, *signature.outputs)
        scratch = _used(candidate.scratch, kernels, {buffer.name for buffer in given}, ranks)
        state = _used(candidate.state, kernels, set(), ranks)
        self.buffers: tuple[Buffer, ...] = (*given, *scratch)
        """Every buffer that the kernels may touch in a call: inputs, outputs, scratch."""
        self._structs = _structs(candidate, self.buffers, ranks)
        values = [
            slot
            for index, buffer in enumerate((*self.buffers, *state))
            for slot in _slots(buffer.name, self._structs.get(index))
        ]
        fixed = {"timeout_ns": TIMEOUT_NS.to_bytes(8, "little")} if candidate.arguments else {}
        self._sequence = LaunchSequence(module, kernels, values, {**fixed, **(constants or {})})
        made = [(buffer.shape, getattr(torch, buffer.dtype)) for buffer in signature.outputs]
        self._outputs = [(shape, torch.empty(shape, device="meta").stride(), dtype) for shape, dtype in made]
        offsets, self._scratch_bytes = laid_out({buffer.name: buffer.nbytes for buffer in scratch})
        self._offsets = list(offsets.values())
        self._scratch = ((self._scratch_bytes,), (1,), torch.uint8)
        offsets, self._state_bytes = laid_out({buffer.name: buffer.nbytes for buffer in state})
        self._state_offsets = list(offsets.values())
        self._state: dict[int | tuple[int, int], State] = {}
        record_at = offsets.get(RECORD)
        place = "cpu" if device.index is None else f"cuda:{device.index}"
        self._state_kind = StateKind(candidate.name, place, self._state_bytes, record_at, record)
        self.serve: Serve = self._step_by_step
        """The function that a call of the plan runs; frequent callers keep it."""
        if self._index is not None and not self._structs:
            self.serve = direct(
                self._sequence,
                index=self._index,
                current=device_query(),
                stream_of=stream_query(),
                given=len(given),
                alignment=signature.alignment,
                misaligned=self._refuse,
                made=self._outputs,
                scratch=self._scratch if self._scratch_bytes else None,
                scratch_offsets=self._offsets,
                check=None if channel is None else channel.check_sometimes,
                follow=None if channel is None else channel.follow,
                state_of=self._state_of if self._state_bytes else None,
                state_offsets=self._state_offsets,
            )
            if channel is not None:
                self.serve = channel.in_turn(self.serve)

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device; None for the emulator's."""
        return self._index

    @property
    def graphs(self) -> int:
        """Graphs that calls have made to be launched as; 0 where kernels are launched one by one."""
        return sum(len(frame.graphs) for frame in self._sequence.frames)

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None
    ) -> Sequence[torch.Tensor]:
        """Compute the signature's outputs from its inputs; see the class."""
        return self.serve(inputs, outputs)

    def _step_by_step(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None, /
    ) -> Sequence[torch.Tensor]:
        """On the emulator, or where a kernel takes a struct of pointers."""
        index = self._index
        if index is not None:
            fork.refuse()
            if current_device() != index:
                with device_guard(index):
                    return self._step_by_step(inputs, outputs)
        if self._channel is not None:
            self._channel.check_sometimes()
        empty = allocator((*inputs, *(outputs or ()))[0].device.type)
        if outputs is None:
            outputs = [empty(*made) for made in self._outputs]
        addresses = [tensor.data_ptr() for tensor in (*inputs, *outputs)]
        if any(address & self._loose for address in addresses):
            self._refuse(addresses)
        if self._scratch_bytes:
            scratch = empty(*self._scratch)
            base = scratch.data_ptr()
            addresses += [base + offset for offset in self._offsets]
        self._launch(addresses)
        return outputs

    def _spread(self, addresses: list[int]) -> list[int]:
        """Give every rank its own part of those buffers that kernels take as a struct of pointers."""
        spread: list[int] = []
        for index, address in enumerate(addresses):
            struct = self._structs.get(index)
            if struct is None:
                spread.append(address)
            else:
                spread += [address + struct.stride * rank for rank in range(struct.ranks)]
                spread += [0] * (struct.length - struct.ranks)
        return spread

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch on buffers that are all the caller's, scratch too: what a verifier compares and poisons.

        Raises:
            ValueError: one of `buffers` is missing, or its size, layout or device doesn't fit.
        """
        for buffer in self.buffers:
            _check(buffer, tensors.get(buffer.name), self._index)
        with device_guard(self._index):
            self._launch([tensors[buffer.name].data_ptr() for buffer in self.buffers])

    def prepare(self) -> None:
        """Make the state of torch's current stream, so that the first call there allocates nothing."""
        if self._state_bytes and self._index is not None:
            self._state_of(current_stream(self._index))

    def check(self) -> None:
        """Raise if kernels whose CTAs wait for each other gave up, in calls that have ended; waits for a copy.

        Calls check this periodically, without waiting, for the calls before them on their stream.

        Raises:
            CtasApart: they did.
        """
        for state in list(self._state.values()):  # other threads may be adding to them
            if state.record is not None:
                state.record.check()

    def reset(self) -> None:
        """Reset all state, that of captured graphs too; waits for the device, so that nobody may be capturing."""
        import torch

        if self._index is None or not self._state:
            return
        torch.cuda.synchronize(self._index)
        for state in list(self._state.values()):
            state.memory.zero_()
            if state.record is not None:
                state.record.forget()
        torch.cuda.synchronize(self._index)

    def _refuse(self, addresses: Sequence[int]) -> NoReturn:
        found = [
            f"{buffer.name} at {address:#x}"
            for buffer, address in zip(self.buffers, addresses, strict=False)  # they end with scratch
            if address & self._loose
        ]
        raise Misaligned(
            f"a plan takes tensors that start at a multiple of {self._loose + 1} bytes; {', '.join(found)} doesn't: "
            "copy it, or call the op, which falls back"
        )

    def _launch(self, addresses: list[int]) -> None:
        """Call with the plan's device as the current one."""
        if self._channel is None:
            self._launch_alone(addresses)
            return
        with self._channel.turn():
            self._launch_alone(addresses)

    def _launch_alone(self, addresses: list[int]) -> None:
        """No other thread is between following and launching on the channel."""
        if self._structs:
            addresses = self._spread(addresses)
        # The emulator's calls end when they return: it has one stream.
        stream = 0 if self._index is None else current_stream(self._index)
        if self._channel is not None:
            self._channel.follow(stream)
        if self._state_bytes:
            base = self._state_of(stream)
            addresses = addresses + [base + offset for offset in self._state_offsets]
        self._sequence(addresses, stream)

    def _state_of(self, stream: int) -> int:
        if self._index is not None and capturing():
            return self._state_of_capture(stream)
        state = self._state.get(stream)
        if state is None:
            state = self._state.setdefault(stream, self._state_kind.make())
        elif state.record is not None:
            state.record.poll()
        return state.address

    def _state_of_capture(self, stream: int) -> int:
        key = capture_number(stream), stream
        state = self._state.get(key)
        if state is None:
            state = self._state[key] = self._state_kind.make()
            _captured.append(state)
        return state.address


@dataclass(frozen=True, slots=True)
class PointerStruct:
    """How a buffer is taken as one pointer a rank."""

    length: int
    """Pointers in the struct."""
    ranks: int
    """Of them that are used."""
    stride: int
    """Bytes from one rank's part to the next."""


def _structs(candidate: Candidate, buffers: Sequence[Buffer], ranks: int) -> dict[int, PointerStruct]:
    found = {}
    for index, buffer in enumerate(buffers):
        length = pointers(candidate.arguments.get(buffer.name, ""))
        if length:
            found[index] = PointerStruct(length, ranks, buffer.nbytes // ranks)
    return found


def _slots(name: str, struct: PointerStruct | None) -> list[str]:
    """The 64-bit slots of an argument, the first under its own name."""
    length = struct.length if struct else 1
    return [name, *(f"{name}[{index}]" for index in range(1, length))]


def _for_ranks(kernel: Kernel, ranks: int) -> Kernel:
    """All ranks in one grid; only a kernel that waits for peers must be on the device as a whole."""
    x, y, z = kernel.grid
    return kernel if ranks == 1 else replace(kernel, grid=(x, y * ranks, z), cooperative=kernel.resident)


def _used(
    named: Mapping[str, tuple[tuple[int, ...], str]], kernels: Sequence[Kernel], given: set[str], ranks: int
) -> list[Buffer]:
    # A name that is an output of this kind wins: another kind may need the same buffer as scratch only.
    used = {name for kernel in kernels for name in kernel.args} - given
    buffers = [Buffer(name, *named[name]) for name in named if name in used]
    if ranks == 1:
        return buffers
    return [Buffer(buffer.name, (ranks, *buffer.shape), buffer.dtype) for buffer in buffers]


def _check(buffer: Buffer, tensor: torch.Tensor | None, index: int | None) -> None:
    if tensor is None:
        raise ValueError(f"buffer {buffer.name} is missing; it is {buffer.dtype} of shape {buffer.shape}")
    fits = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == buffer.nbytes
    if not fits or tensor.get_device() != (-1 if index is None else index):
        raise ValueError(
            f"buffer {buffer.name} is {tensor.dtype} of shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()} on {tensor.device}; it must be {buffer.dtype} of shape {buffer.shape}, "
            f"contiguous, on {'the CPU' if index is None else f'cuda:{index}'}"
        )
