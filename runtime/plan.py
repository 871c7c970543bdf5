"""Plans: a candidate resolved on a device, so that a call only fills in pointers and launches.

Scratch comes from torch's allocator on every call, as one block. The allocator ties a block to the stream
it was taken on, so two streams or threads never share scratch, and inside a capture it comes from the
graph's own pool; a block kept by the plan would need a lock or one copy per stream to be as safe. It is
freed when the call returns, which is right for the same reason: its next user is later on the same stream.
It costs half a microsecond of a call and never reaches the driver once the allocator's cache holds a block.
State, which kernels keep between calls, is the plan's own, one block for each stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .device import Device
from .errors import ForkedProcess, Misaligned, NotWarm
from .launch import Module, Sequenced
from .request import Buffer, Signature
from .table import Candidate, Kernel

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256
"""Bytes; what the allocators of CUDA and torch give, so that kernels see no difference."""

MISALIGNED = 15
"""The bits of an address that must be 0: kernels load 16 bytes at once."""

TIMEOUT_NS = 30_000_000_000
"""How long a kernel's CTAs wait for each other before they give up."""


class Plan:
    """The launches of one kind of an op by one candidate on one device.

    Calling it takes the signature's inputs (contiguous, of its shapes and dtypes, on the plan's device: not
    checked again; that they are 16-byte aligned is) and gives the signature's outputs, fresh unless `outputs`
    are given. It launches on torch's current stream and doesn't wait. Threads may call it at the same time.
    """

    __slots__ = (
        "_empty",
        "_index",
        "_offsets",
        "_outputs",
        "_scratch_bytes",
        "_sequence",
        "_state",
        "_state_bytes",
        "_state_offsets",
        "arch",
        "buffers",
        "candidate",
        "kind",
        "signature",
    )

    def __init__(
        self, candidate: Candidate, arch: str, kind: str, signature: Signature, device: Device, module: Module
    ) -> None:
        """Resolve names to positions.

        Raises:
            LoadError: the module lacks a kernel, a kernel takes a buffer that nobody provides, or its CTAs wait
                for each other and don't fit on the device at once.
            ForkedProcess: the process was forked from one that had plans.
        """
        refuse_after_fork()
        _load_torch()
        assert device.index is not None
        self.candidate, self.arch, self.kind, self.signature = candidate, arch, kind, signature
        self._index = device.index
        kernels = [candidate.kernels[name] for name in candidate.steps[kind]]
        given = (*signature.inputs, *signature.outputs)
        scratch = _used(candidate.scratch, kernels, {buffer.name for buffer in given})
        state = _used(candidate.state, kernels, set())
        self.buffers: tuple[Buffer, ...] = (*given, *scratch)
        """Every buffer that the kernels may touch in a call: inputs, outputs, scratch."""
        values = [buffer.name for buffer in (*self.buffers, *state)]
        constants = {"timeout_ns": TIMEOUT_NS.to_bytes(8, "little")} if candidate.arguments else {}
        self._sequence = Sequenced(module, kernels, values, constants)
        self._outputs = [
            (buffer.shape, _strides(buffer.shape), getattr(_torch, buffer.dtype))
            for buffer in signature.outputs
        ]
        self._empty: Allocate | None = None
        self._offsets, self._scratch_bytes = _pack(scratch)
        self._state_offsets, self._state_bytes = _pack(state)
        self._state: dict[int, torch.Tensor] = {}

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None
    ) -> Sequence[torch.Tensor]:
        """Compute the signature's outputs from its inputs; see the class."""
        if _forked:
            refuse_after_fork()
        if current_device() != self._index:
            with _torch.cuda.device(self._index):
                return self(inputs, outputs)
        address = _torch.Tensor.data_ptr
        empty = self._empty
        if empty is None:
            empty = self._empty = allocator(inputs[0].device.type)
        if outputs is None:
            outputs = [empty(*made) for made in self._outputs]
        pointers = [*map(address, inputs), *map(address, outputs)]
        for pointer in pointers:
            if pointer & MISALIGNED:
                raise self._misaligned(pointers)
        if self._scratch_bytes:
            scratch = empty((self._scratch_bytes,), (1,), _torch.uint8)
            base = scratch.data_ptr()
            pointers += [base + offset for offset in self._offsets]
        self._launch(pointers)
        return outputs

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch on buffers that are all the caller's, scratch too: what a verifier compares and poisons.

        Args:
            tensors: one for each of `buffers`, by name.

        Raises:
            ValueError: one is missing, or its size, layout or device doesn't fit.
        """
        for buffer in self.buffers:
            _check(buffer, tensors.get(buffer.name), self._index)
        pointers = [tensors[buffer.name].data_ptr() for buffer in self.buffers]
        if current_device() == self._index:
            self._launch(pointers)
        else:
            with _torch.cuda.device(self._index):
                self._launch(pointers)

    def prepare(self) -> None:
        """Make the state of torch's current stream, so that a capture on it finds it."""
        if self._state_bytes:
            self._state_of(current_stream(self._index))

    def _misaligned(self, pointers: Sequence[int]) -> Misaligned:
        found = [
            f"{buffer.name} at {pointer:#x}"
            for buffer, pointer in zip(self.buffers, pointers, strict=False)  # they end with scratch
            if pointer & MISALIGNED
        ]
        return Misaligned(
            f"a plan takes tensors that start at a multiple of 16 bytes; {', '.join(found)} doesn't: copy it, or "
            "call the op, which falls back"
        )

    def _launch(self, pointers: list[int]) -> None:
        stream = current_stream(self._index)
        if self._state_bytes:
            base = self._state_of(stream)
            pointers = pointers + [base + offset for offset in self._state_offsets]
        self._sequence(pointers, stream)

    def _state_of(self, stream: int) -> int:
        state = self._state.get(stream)
        if state is None:
            import torch

            if capturing():
                raise NotWarm(
                    f"candidate {self.candidate.name} keeps state for every stream, and has none yet for the one "
                    "that is being captured; call the op, or prepare() of its plan, on that stream once before the "
                    "capture"
                )
            made = torch.zeros(self._state_bytes, dtype=torch.uint8, device=torch.device("cuda", self._index))
            state = self._state.setdefault(stream, made)
        return state.data_ptr()


class RawStream:
    """A CUDA stream that torch owns, in the form in which CuPy's launcher takes one."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        """Hold the handle; its owner keeps it alive."""
        self.ptr = ptr


Allocate = Callable[[tuple[int, ...], tuple[int, ...], Any], "torch.Tensor"]
"""Shape, strides and dtype to a tensor without values, on the current device."""

_torch: Any = None
"""torch, as soon as there is a plan: an import statement costs 0.1 us, and a call would execute four."""


def _load_torch() -> Any:
    global _torch
    import torch

    _torch = torch
    return torch


def current_stream(index: int) -> int:
    """Handle of torch's current stream on device `index`."""
    # The raw handle costs a tenth of torch.cuda.current_stream(), which makes a Python object of it; Triton
    # and torch's own compiler launch through the same function.
    handle: int = (_torch or _load_torch())._C._cuda_getCurrentRawStream(index)
    return handle


def current_device() -> int:
    """Ordinal of torch's current CUDA device, where CUDA is in use already."""
    # torch.cuda.current_device() also asks whether CUDA has been initialised, which costs as much as the answer.
    device: int = (_torch or _load_torch())._C._cuda_getDevice()
    return device


def capturing() -> bool:
    """Whether torch's current stream is being captured into a CUDA graph."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def allocator(device: str) -> Allocate:
    """The cheapest way to memory on the current device of a type, `cuda` or `cpu`."""
    torch = _torch or _load_torch()
    # What torch's compiler puts into the code that it generates: a third of the cost of torch.empty.
    found: Allocate | None = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", None)
    if found is not None:
        return found
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


_forked = False
"""Whether this process was forked from one that had plans: its CUDA context stayed behind."""


def refuse_after_fork() -> None:
    """Raise a sentence where CUDA would crash or hang.

    Raises:
        ForkedProcess: this process was forked from one that had plans.
    """
    if _forked:
        raise ForkedProcess(
            "this process was forked from one that had kernels loaded, and a CUDA context doesn't survive a fork; "
            "start workers with the method `spawn` or `forkserver`, or fork before the first call on a GPU"
        )


def _note_fork() -> None:
    global _forked
    _forked = _forked or _torch is not None


os.register_at_fork(after_in_child=_note_fork)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return tuple(strides) if shape else ()


def _used(
    named: Mapping[str, tuple[tuple[int, ...], str]], kernels: Sequence[Kernel], given: set[str]
) -> list[Buffer]:
    # A name that is an output of this kind wins: another kind may need the same buffer as scratch only.
    used = {name for kernel in kernels for name in kernel.args} - given
    return [Buffer(name, *named[name]) for name in named if name in used]


def _pack(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    offsets, size = [], 0
    for buffer in buffers:
        offsets.append(size)
        size += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, size


def _check(buffer: Buffer, tensor: torch.Tensor | None, index: int) -> None:
    if tensor is None:
        raise ValueError(f"buffer {buffer.name} is missing; it is {buffer.dtype} of shape {buffer.shape}")
    fits = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == buffer.nbytes
    if not fits or tensor.get_device() != index:
        raise ValueError(
            f"buffer {buffer.name} is {tensor.dtype} of shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()} on {tensor.device}; it must be {buffer.dtype} of shape {buffer.shape}, "
            f"contiguous, on cuda:{index}"
        )
