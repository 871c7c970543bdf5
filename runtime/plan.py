"""Plans: a candidate resolved on a device, so that a call only fills in pointers and launches.

Scratch comes from torch's allocator on every call, as one block. The allocator ties a block to the stream
it was taken on, so two streams or threads never share scratch, and inside a capture it comes from the
graph's own pool; a block kept by the plan would need a lock or one copy per stream to be as safe. It is
freed when the call returns, which is right for the same reason: its next user is later on the same stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .device import Device
from .errors import LoadError
from .loader import Function, Module
from .request import Buffer, Signature
from .table import Candidate, Dim3, Kernel

if TYPE_CHECKING:
    import torch

SCRATCH_ALIGNMENT = 256
"""Bytes; what the allocators of CUDA and torch give, so that kernels see no difference."""

DEFAULT_SHARED_LIMIT = 48 * 1024
"""Bytes of dynamic shared memory above which the driver wants to be asked first."""

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a plan, with its arguments as positions among the plan's buffers."""

    function: Function
    grid: Dim3
    block: Dim3
    args: tuple[int, ...]
    shared_bytes: int


class Plan:
    """The launches of one kind of an op by one candidate on one device.

    Calling it takes the signature's inputs (contiguous, 16-byte aligned, on the plan's device: not checked
    again) and gives the signature's outputs, fresh unless `outputs` are given. It launches on torch's
    current stream and doesn't wait.
    """

    __slots__ = (
        "_index",
        "_launches",
        "_offsets",
        "_outputs",
        "_scratch_bytes",
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
            LoadError: the module lacks a kernel, or a kernel takes a buffer that nobody provides.
        """
        import torch

        assert device.index is not None
        self.candidate, self.arch, self.kind, self.signature = candidate, arch, kind, signature
        self._index = device.index
        kernels = [candidate.kernels[name] for name in candidate.steps[kind]]
        given = (*signature.inputs, *signature.outputs)
        scratch = _scratch(candidate, kernels, {buffer.name for buffer in given})
        self.buffers: tuple[Buffer, ...] = (*given, *scratch)
        """Every buffer that the kernels may touch: inputs, outputs, scratch."""
        position = {buffer.name: index for index, buffer in enumerate(self.buffers)}
        self._launches = [_launch(kernel, position, module, candidate) for kernel in kernels]
        # A tensor made like an input of its shape and dtype costs half of one made from numbers.
        twins = {(buffer.shape, buffer.dtype): index for index, buffer in enumerate(signature.inputs)}
        self._outputs = [
            (buffer.shape, getattr(torch, buffer.dtype), twins.get((buffer.shape, buffer.dtype)))
            for buffer in signature.outputs
        ]
        self._offsets, self._scratch_bytes = _pack(scratch)

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None
    ) -> Sequence[torch.Tensor]:
        """Compute the signature's outputs from its inputs; see the class."""
        import torch

        if outputs is None:
            outputs = [
                torch.empty_like(inputs[twin])
                if twin is not None
                else inputs[0].new_empty(shape, dtype=dtype)
                for shape, dtype, twin in self._outputs
            ]
        pointers = [tensor.data_ptr() for tensor in inputs]
        pointers += [tensor.data_ptr() for tensor in outputs]
        if self._scratch_bytes:
            scratch = inputs[0].new_empty(self._scratch_bytes, dtype=torch.uint8)
            base = scratch.data_ptr()
            pointers += [base + offset for offset in self._offsets]
        self._run(pointers)
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
        self._run([tensors[buffer.name].data_ptr() for buffer in self.buffers])

    def _run(self, pointers: list[int]) -> None:
        stream = current_stream(self._index)
        if current_device() == self._index:
            for launch in self._launches:
                args = [pointers[position] for position in launch.args]
                launch.function(launch.grid, launch.block, args, launch.shared_bytes, stream)
            return
        import torch

        with torch.cuda.device(self._index):
            self._run(pointers)


class RawStream:
    """A CUDA stream that torch owns, in the form in which CuPy's launcher takes one."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        """Hold the handle; its owner keeps it alive."""
        self.ptr = ptr


def current_stream(index: int) -> RawStream:
    """torch's current stream on device `index`."""
    import torch

    # The raw handle costs a tenth of torch.cuda.current_stream(), which makes a Python object of it; Triton
    # and torch's own compiler launch through the same function.
    return RawStream(torch._C._cuda_getCurrentRawStream(index))


def current_device() -> int:
    """Ordinal of torch's current CUDA device."""
    import torch

    return torch.cuda.current_device()


def _scratch(candidate: Candidate, kernels: Sequence[Kernel], given: set[str]) -> list[Buffer]:
    # A name that is an output of this kind wins: another kind may need the same buffer as scratch only.
    used = {name for kernel in kernels for name in kernel.args} - given
    return [Buffer(name, *candidate.scratch[name]) for name in candidate.scratch if name in used]


def _launch(kernel: Kernel, position: Mapping[str, int], module: Module, candidate: Candidate) -> Launch:
    unknown = [name for name in kernel.args if name not in position]
    if unknown:
        raise LoadError(
            f"kernel {kernel.symbol} of {candidate.name} takes {', '.join(unknown)}, which is neither a "
            f"tensor of this kind nor scratch; known are {', '.join(position)}: run `kernwright generate`"
        )
    try:
        function: Any = module.get_function(kernel.symbol)
        if kernel.shared_bytes > DEFAULT_SHARED_LIMIT:
            from cupy_backends.cuda.api import driver

            driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, kernel.shared_bytes)
    except Exception as error:
        raise LoadError(f"kernel {kernel.symbol} of {candidate.name} can't be had: {error}") from error
    args = tuple(position[name] for name in kernel.args)
    return Launch(function, kernel.grid, kernel.block, args, kernel.shared_bytes)


def _pack(scratch: Sequence[Buffer]) -> tuple[list[int], int]:
    offsets, size = [], 0
    for buffer in scratch:
        offsets.append(size)
        size += -(-buffer.nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
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
