"""A team's own kernel as what candidates are compared with: `module:function`, or a `.cu` file with its launch.

Either takes the tensors of the op's signature: a function gets the inputs, in order, and gives the outputs; a
kernel's parameters are pointers to the inputs, then to the outputs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from ..compiler.compile import compile_source
from ..compiler.nvrtc import CompileFailed
from ..compiler.resources import LogUnreadable
from ..runtime.current import current_stream
from ..runtime.device import Device
from ..runtime.request import Signature

if TYPE_CHECKING:
    import torch

    from ..compiler.artifact import Artifact
    from .family_evidence import Call

_DIM = r"[1-9]\d*(?:,[1-9]\d*){0,2}"
_KERNEL = re.compile(
    rf"(?P<path>.+\.cu):(?P<symbol>[A-Za-z_]\w*):(?P<grid>{_DIM}):(?P<block>{_DIM})(?::(?P<shared>\d+))?"
)
_FUNCTION = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")


class ExternalUnusable(ValueError):
    """The text names no callable and no kernel, or what it names isn't there."""


@dataclass(frozen=True)
class ExternalKernel:
    path: Path
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


def parse(text: str) -> ExternalKernel | tuple[str, str]:
    """Read `file.cu:symbol:GRID:BLOCK[:SHARED]` (`324`, or `8,2,1`) or `module:function`.

    Raises:
        ExternalUnusable: it is neither.
    """
    if match := _KERNEL.fullmatch(text):
        shared = int(match["shared"] or 0)
        return ExternalKernel(
            Path(match["path"]), match["symbol"], _dim3(match["grid"]), _dim3(match["block"]), shared
        )
    if (match := _FUNCTION.fullmatch(text)) and not match["module"].endswith(".cu"):
        return match["module"], match["function"]
    raise ExternalUnusable(
        f'"{text}" names neither a function (module:function) nor a kernel (file.cu:symbol:GRID:BLOCK[:SHARED], '
        f"e.g. ours.cu:my_kernel:324:256)"
    )


def load(text: str, signature: Signature, device: Device) -> Call:
    """What `text` names, as a call.

    Raises:
        ExternalUnusable: it isn't there, or doesn't compile; the call raises it for outputs that the op hasn't.
    """
    named = parse(text)
    if isinstance(named, ExternalKernel):
        return _kernel(named, signature, device)
    module, function = named
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ExternalUnusable(f"{text} can't be imported: {error}") from error
    if not callable(found):
        raise ExternalUnusable(f"{text} is a {type(found).__name__}, which can't be called; name a function")
    call = cast(Callable[..., Any], found)
    wanted = [(buffer.shape, f"torch.{buffer.dtype}") for buffer in signature.outputs]

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = call(*inputs)
        results = tuple(results) if isinstance(results, tuple | list) else (results,)
        given = [(tuple(getattr(one, "shape", ())), str(getattr(one, "dtype", type(one)))) for one in results]
        if given != wanted:
            raise ExternalUnusable(f"{text} gives {_listed(given)}; the op's outputs are {_listed(wanted)}")
        if {one.data_ptr() for one in results} & {one.data_ptr() for one in inputs}:
            raise ExternalUnusable(
                f"{text} gives an input back, so a second call would see other inputs; copy it"
            )
        return results

    return run


def _kernel(kernel: ExternalKernel, signature: Signature, device: Device) -> Call:
    import torch

    source = source_of(kernel)
    function = load_kernel(source, kernel.path.name, kernel.symbol, device)
    outputs = [(buffer.shape, getattr(torch, buffer.dtype)) for buffer in signature.outputs]

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = [torch.empty(shape, dtype=dtype, device=inputs[0].device) for shape, dtype in outputs]
        pointers = [tensor.data_ptr() for tensor in (*inputs, *results)]
        assert device.index is not None
        stream = SimpleNamespace(ptr=current_stream(device.index))
        function(kernel.grid, kernel.block, pointers, kernel.shared_bytes, stream)
        return results

    return run


def source_of(kernel: ExternalKernel) -> str:
    """The text of the kernel's file.

    Raises:
        ExternalUnusable: it can't be read.
    """
    try:
        return kernel.path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExternalUnusable(f"{kernel.path} can't be read: {error}") from error


def compiled(source: str, file_name: str, symbol: str, arch: str) -> Artifact:
    """Machine code with a kernel of that name in it; needs no GPU.

    Raises:
        ExternalUnusable: the source has an error, or no such kernel.
    """
    try:
        artifact = compile_source(source, file_name=file_name, arch=arch)
    except (CompileFailed, LogUnreadable) as error:  # the latter where a file defines no kernel
        raise ExternalUnusable(f"{file_name} doesn't compile for {arch}: {error}") from error
    if symbol not in artifact.kernels:
        there = ", ".join(sorted(artifact.kernels))
        raise ExternalUnusable(
            f'{file_name} has no extern "C" kernel {symbol}; it has {there}: name one of them'
        )
    return artifact


def load_kernel(source: str, file_name: str, symbol: str, device: Device) -> Callable[..., None]:
    """Compile a source for a GPU that is here, and load one of its kernels; errors as `compiled`."""
    import cupy

    assert device.arch is not None
    assert device.index is not None
    artifact = compiled(source, file_name, symbol, device.arch)
    module: Any = cupy.cuda.function.Module()
    with cupy.cuda.Device(device.index):
        module.load(artifact.data)
    return cast("Callable[..., None]", module.get_function(symbol))


def _listed(tensors: Sequence[tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{dtype} of shape {shape}" for shape, dtype in tensors)


def _dim3(text: str) -> tuple[int, int, int]:
    x, y, z = ([int(part) for part in text.split(",")] + [1, 1])[:3]
    return x, y, z
